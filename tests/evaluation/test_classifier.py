"""Classifiers that are trained together equal a classifier trained alone with layers of torch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation import classifier
from fairseq_lxsr.evaluation.classifier import Classifiers, train_classifiers
from fairseq_lxsr.evaluation.labelled import ClassifierConfig

CLASSES = 3
SEEDS = (1, 2, 3)
CONFIG = ClassifierConfig(
    hidden=(10, 8), dropout=0, input_dropout=0, epochs=6, batch_size=12, seeds=len(SEEDS)
)


def data(count: int, seed: int = 0, noise: float = 1.0):
    """Draw features [count, 16] around a direction per class, and their labels [count]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    features = 2 * np.eye(CLASSES, 16)[labels] + noise * rng.standard_normal((count, 16))
    return features.astype(np.float32), labels


TRAIN = data(100)
DEV = data(40, seed=1)
TEST_FEATURES, TEST_LABELS = data(500, seed=2)


def plain_training(
    config: ClassifierConfig, seed: int, features, labels, dev_features, dev_labels, l2=0.0
):
    """Train one classifier with layers and Adam of torch.

    Returns:
        the best accuracy on dev, and the parameters of the chosen epoch.
    """
    initial_layers = classifier.start_layers(config, features.shape[1], CLASSES)
    model = torch.nn.Sequential()
    for depth, (weight, bias) in enumerate(initial_layers):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[2])
        # The classifiers of a seed, one per strength of L2, follow those of the seeds before it.
        row = (seed - 1) * len(config.l2) + config.l2.index(l2)
        layer.weight.data = weight[row].detach().T.clone()
        layer.bias.data = bias[row, 0].detach().clone()
        model.append(layer)
        if depth < len(initial_layers) - 1:
            model.append(torch.nn.Tanh())
    features = torch.from_numpy(features)
    labels = torch.from_numpy(labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    order = np.random.Generator(np.random.SFC64(seed))
    best_accuracy = -1.0
    parameters = None
    for _ in range(config.epochs):
        for rows in torch.from_numpy(order.permutation(len(features))).split(config.batch_size):
            loss = F.cross_entropy(model(features[rows]), labels[rows])
            for layer in model:
                if isinstance(layer, torch.nn.Linear):
                    loss = loss + l2 * layer.weight.square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        predicted = model(torch.from_numpy(dev_features)).argmax(1).numpy()
        accuracy = (predicted == dev_labels).mean()
        is_tie = accuracy == best_accuracy
        if accuracy > best_accuracy or (is_tie and config.ties == "last"):
            best_accuracy = accuracy
            parameters = [parameter.detach().clone() for parameter in model.parameters()]
    return best_accuracy, parameters


@pytest.mark.parametrize(
    ("hidden", "ties"),
    [
        pytest.param((10, 8), "first", id="layers"),
        pytest.param((), "first", id="linear"),
        pytest.param((10, 8), "last", id="last tie"),
    ],
)
def test_classifiers_trained_together_equal_those_trained_alone(hidden, ties):
    config = replace(CONFIG, hidden=hidden, ties=ties)

    together = train_classifiers(config, *TRAIN, *DEV, CLASSES)

    for seed in SEEDS:
        _, parameters = plain_training(config, seed, *TRAIN, *DEV)
        # torch.nn.Sequential lists the weight and the bias of each layer in turn.
        expected_weights = parameters[0::2]
        expected_biases = parameters[1::2]
        for (weight, bias), expected_weight, expected_bias in zip(
            together.layers, expected_weights, expected_biases, strict=True
        ):
            torch.testing.assert_close(weight[seed - 1], expected_weight.T, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(bias[seed - 1, 0], expected_bias, atol=1e-5, rtol=1e-4)


# With little noise the classes are separable, so that several epochs are perfect on dev.
SEPARABLE_TRAIN = data(60, noise=0.1)
SEPARABLE_DEV = data(20, seed=1, noise=0.1)


def weights_of_a_perfect_classifier(ties: str, epochs: int) -> torch.Tensor:
    config = replace(CONFIG, hidden=(), learning_rate=0.05, ties=ties, epochs=epochs)
    trained = train_classifiers(config, *SEPARABLE_TRAIN, *SEPARABLE_DEV, CLASSES)
    dev_features, dev_labels = SEPARABLE_DEV
    assert (trained.predict(dev_features) == dev_labels).all()
    [(weight, _)] = trained.layers
    return weight


def test_the_first_of_several_best_epochs_is_chosen_so_that_later_ones_change_nothing():
    after_11 = weights_of_a_perfect_classifier("first", epochs=11)
    after_12 = weights_of_a_perfect_classifier("first", epochs=12)

    assert torch.equal(after_12, after_11)


def test_the_last_of_several_best_epochs_is_chosen_with_ties_last():
    after_11 = weights_of_a_perfect_classifier("last", epochs=11)
    after_12 = weights_of_a_perfect_classifier("last", epochs=12)

    assert not torch.equal(after_12, after_11)


def test_the_strength_of_l2_is_chosen_on_dev():
    """Each seed has the accuracy of its best strength, when each is trained alone."""
    train = data(60, noise=2)
    dev_features, dev_labels = data(200, seed=1, noise=2)
    config = replace(CONFIG, hidden=(8,), epochs=20, l2=(0.0, 0.01, 10.0))

    trained = train_classifiers(config, *train, dev_features, dev_labels, CLASSES)

    accuracies = (trained.predict(dev_features) == dev_labels).mean(axis=1)
    # Rounding may change the class of two of the 200 examples.
    tolerance = 0.011
    for seed, accuracy in zip(SEEDS, accuracies, strict=True):
        alone = [
            plain_training(config, seed, *train, dev_features, dev_labels, strength)[0]
            for strength in config.l2
        ]
        assert accuracy == pytest.approx(max(alone), abs=tolerance)


WITH_DROPOUT = replace(CONFIG, dropout=0.2, input_dropout=0.2)


def test_a_seed_gives_the_same_classifier_with_any_number_of_seeds():
    one_seed = train_classifiers(replace(WITH_DROPOUT, seeds=1), *TRAIN, *DEV, CLASSES)
    three_seeds = train_classifiers(replace(WITH_DROPOUT, seeds=3), *TRAIN, *DEV, CLASSES)

    [weight_of_seed_1] = one_seed.layers[0][0]
    same_seed, another_seed, _ = three_seeds.layers[0][0]
    torch.testing.assert_close(same_seed, weight_of_seed_1)
    assert (another_seed != weight_of_seed_1).any()


def test_training_is_repeatable():
    first = train_classifiers(WITH_DROPOUT, *TRAIN, *DEV, CLASSES)
    second = train_classifiers(WITH_DROPOUT, *TRAIN, *DEV, CLASSES)

    np.testing.assert_array_equal(first.predict(TEST_FEATURES), second.predict(TEST_FEATURES))


def test_classifiers_with_dropout_learn():
    train = data(300)
    dev = data(100, seed=1)

    trained = train_classifiers(replace(WITH_DROPOUT, epochs=60), *train, *dev, CLASSES)

    accuracies = (trained.predict(TEST_FEATURES) == TEST_LABELS).mean(axis=1)
    # Guessing one of three classes would be right in a third of the cases.
    assert (accuracies > 0.75).all()


def one_generator_per_seed() -> list[np.random.Generator]:
    """Return generators for two seeds."""
    return [np.random.Generator(np.random.SFC64(seed)) for seed in (1, 2)]


def test_dropout_of_a_fifth_multiplies_the_rest_by_five_fourths():
    ones = torch.ones(2, 500, 100)

    dropped = classifier.drop_(ones, one_generator_per_seed(), rate=0.2)

    assert dropped.unique().tolist() == [0, pytest.approx(1 / (1 - 0.2), abs=1e-4)]
    # The mean of the ones is kept.
    assert dropped.mean().item() == pytest.approx(1, abs=0.01)


def test_each_seed_has_its_own_dropout():
    first_seed, second_seed = classifier.drop_(torch.ones(2, 10, 10), one_generator_per_seed(), 0.2)

    assert (first_seed != second_seed).any()


def test_an_epoch_has_every_example_once_for_each_seed(monkeypatch):
    # Chunks of one batch each, so that the examples are gathered in several parts.
    monkeypatch.setattr(classifier, "CHUNK_BYTES", 1)
    num_examples = 50
    # The feature of an example is its label.
    labels = torch.arange(num_examples)
    features = torch.arange(float(num_examples))[:, None]
    config = replace(CONFIG, seeds=2, batch_size=12)

    epoch = list(classifier.batches(config, features, labels, one_generator_per_seed()))

    batch_labels = torch.cat([label for _, label, _ in epoch], dim=1)
    batch_features = torch.cat([feature for feature, _, _ in epoch], dim=1)
    assert [label.shape[1] for _, label, _ in epoch] == [12, 12, 12, 12, 2]
    for labels_of_seed in batch_labels:
        torch.testing.assert_close(labels_of_seed.sort().values, labels)
    torch.testing.assert_close(batch_features[..., 0], batch_labels.float())


def test_predictions_do_not_depend_on_the_size_of_blocks(monkeypatch):
    features, _ = TRAIN
    layers = [(torch.randn(2, 16, CLASSES), torch.randn(2, 1, CLASSES))]
    in_one_block = Classifiers(layers, normalise=True).predict(features)

    # 7 does not divide the 100 examples, so the last block is smaller.
    monkeypatch.setattr(classifier, "PREDICT_ROWS", 7)

    in_small_blocks = Classifiers(layers, normalise=True).predict(features)
    np.testing.assert_array_equal(in_small_blocks, in_one_block)


FEATURES, LABELS = data(20)


@pytest.mark.parametrize(
    ("labels", "dev_features", "dev_labels", "message"),
    [
        pytest.param(np.zeros(20, dtype=np.int64), FEATURES, LABELS, "one class", id="one class"),
        pytest.param(LABELS, FEATURES[:, :15], LABELS, "16 .*15", id="dev of other width"),
        pytest.param(LABELS, FEATURES[:0], LABELS[:0], r"dev .*\(0, 16\)", id="empty dev"),
    ],
)
def test_invalid_features_and_labels_are_refused(labels, dev_features, dev_labels, message):
    with pytest.raises(InputError, match=message):
        train_classifiers(CONFIG, FEATURES, labels, dev_features, dev_labels, CLASSES)
