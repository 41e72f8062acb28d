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

CONFIG = ClassifierConfig(
    hidden=(10, 8), dropout=0, input_dropout=0, epochs=6, batch_size=12, seeds=3
)


def data(count: int, seed: int = 0, classes: int = 3, noise: float = 1.0):
    """Draw features [count, 16] around a direction per class, and their labels [count]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    features = 2 * np.eye(classes, 16)[labels] + noise * rng.standard_normal((count, 16))
    return features.astype(np.float32), labels


TRAIN = data(100)
DEV = data(40, seed=1)


def plain_training(
    config: ClassifierConfig, seed: int, features, labels, dev_features, dev_labels, l2=0.0
):
    """Train one classifier with layers and Adam of torch.

    Returns:
        the best accuracy on dev, and the parameters of the chosen epoch.
    """
    initial_layers = classifier.start_layers(config, features.shape[1], 3)
    model = torch.nn.Sequential()
    for depth, (weight, bias) in enumerate(initial_layers):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[2])
        number = (seed - 1) * len(config.l2) + config.l2.index(l2)
        layer.weight.data = weight[number].detach().T.clone()
        layer.bias.data = bias[number, 0].detach().clone()
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


@pytest.mark.parametrize(("hidden", "ties"), [((10, 8), "first"), ((), "first"), ((10, 8), "last")])
def test_classifiers_trained_together_equal_those_trained_alone(hidden, ties):
    config = replace(CONFIG, hidden=hidden, ties=ties)
    together = train_classifiers(config, *TRAIN, *DEV, 3)
    for seed in (1, 2, 3):
        _, parameters = plain_training(config, seed, *TRAIN, *DEV)
        for depth, (weight, bias) in enumerate(together.layers):
            expected_weight = parameters[2 * depth].T
            expected_bias = parameters[2 * depth + 1]
            torch.testing.assert_close(weight[seed - 1], expected_weight, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(bias[seed - 1, 0], expected_bias, atol=1e-5, rtol=1e-4)


def test_ties_decide_whether_the_first_or_last_best_epoch_is_chosen():
    # The classes are separable, so that several epochs are perfect on dev.
    train = data(60, noise=0.1)
    dev = data(20, seed=1, noise=0.1)
    config = replace(CONFIG, hidden=(), learning_rate=0.05)

    def trained(ties, epochs):
        return train_classifiers(replace(config, ties=ties, epochs=epochs), *train, *dev, 3)

    first = trained("first", 12)
    last = trained("last", 12)
    assert (first.predict(dev[0]) == last.predict(dev[0])).all()
    assert not torch.equal(last.layers[0][0], first.layers[0][0])
    assert not torch.equal(last.layers[0][0], trained("last", 11).layers[0][0])


def test_the_strength_of_l2_is_chosen_on_dev():
    train = data(60, noise=2)
    dev = data(200, seed=1, noise=2)
    config = replace(CONFIG, hidden=(8,), epochs=20, l2=(0.0, 0.01, 10.0))
    predicted = train_classifiers(config, *train, *dev, 3).predict(dev[0])
    accuracy = (predicted == dev[1]).mean(axis=1)
    for seed in (1, 2, 3):
        best = max(plain_training(config, seed, *train, *dev, l2)[0] for l2 in config.l2)
        assert accuracy[seed - 1] == pytest.approx(best, abs=0.011)


def test_a_seed_gives_the_same_classifier_with_any_number_of_seeds():
    config = replace(CONFIG, dropout=0.2, input_dropout=0.2)
    one_seed = train_classifiers(replace(config, seeds=1), *TRAIN, *DEV, 3)
    three_seeds = train_classifiers(replace(config, seeds=3), *TRAIN, *DEV, 3)
    torch.testing.assert_close(one_seed.layers[0][0][0], three_seeds.layers[0][0][0])
    assert (three_seeds.layers[0][0][0] != three_seeds.layers[0][0][1]).any()


def test_training_is_repeatable():
    config = replace(CONFIG, dropout=0.2, input_dropout=0.2)
    test_features, _ = data(50, seed=2)
    first = train_classifiers(config, *TRAIN, *DEV, 3).predict(test_features)
    second = train_classifiers(config, *TRAIN, *DEV, 3).predict(test_features)
    np.testing.assert_array_equal(first, second)


def test_classifiers_with_dropout_learn():
    config = replace(CONFIG, dropout=0.2, input_dropout=0.2, epochs=60)
    test_features, test_labels = data(500, seed=2)
    trained = train_classifiers(config, *data(300), *data(100, seed=1), 3)
    accuracies = (trained.predict(test_features) == test_labels).mean(axis=1)
    assert (accuracies > 0.75).all()


def test_dropout_keeps_the_mean():
    generators = [np.random.Generator(np.random.SFC64(seed)) for seed in (1, 2)]
    dropped = classifier.drop_(torch.ones(2, 500, 100), generators, 0.2)
    assert dropped.unique().tolist() == [0, pytest.approx(1.25, abs=1e-4)]
    assert dropped.mean().item() == pytest.approx(1, abs=0.01)
    assert (dropped[0] != dropped[1]).any()


def test_an_epoch_has_every_example_once_for_each_seed(monkeypatch):
    monkeypatch.setattr(classifier, "CHUNK_BYTES", 1)
    all_features = torch.arange(50.0)[:, None]
    all_labels = torch.arange(50)
    generators = [np.random.Generator(np.random.SFC64(seed)) for seed in (1, 2)]
    config = replace(CONFIG, seeds=2)
    batch_features = []
    batch_labels = []
    for features, labels, _ in classifier.batches(config, all_features, all_labels, generators):
        batch_features.append(features)
        batch_labels.append(labels)
    assert [features.shape[1] for features in batch_features] == [12, 12, 12, 12, 2]
    labels = torch.cat(batch_labels, dim=1)
    torch.testing.assert_close(labels.sort(dim=1).values, all_labels.expand(2, -1))
    torch.testing.assert_close(torch.cat(batch_features, dim=1)[..., 0], labels.float())


def test_predictions_do_not_depend_on_the_size_of_blocks(monkeypatch):
    layers = [(torch.randn(2, 16, 3), torch.randn(2, 1, 3))]
    whole = Classifiers(layers, normalise=True).predict(TRAIN[0])
    monkeypatch.setattr(classifier, "PREDICT_ROWS", 7)
    np.testing.assert_array_equal(Classifiers(layers, normalise=True).predict(TRAIN[0]), whole)


def test_invalid_features_and_labels_are_refused():
    features, labels = data(20)
    one_class = np.zeros(20, dtype=np.int64)
    with pytest.raises(InputError, match="one class"):
        train_classifiers(CONFIG, features, one_class, features, labels, 3)
    with pytest.raises(InputError, match=r"16 .*15"):
        train_classifiers(CONFIG, features, labels, features[:, :15], labels, 3)
    with pytest.raises(InputError, match=r"dev .*\(0, 16\)"):
        train_classifiers(CONFIG, features, labels, features[:0], labels[:0], 3)
