"""The classifiers trained together against one trained alone, written plainly."""

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
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    return (2 * np.eye(classes, 16)[labels] + noise * rng.standard_normal((count, 16))).astype(
        np.float32
    ), labels


TRAIN, DEV = data(100), data(40, seed=1)


def plain_training(config: ClassifierConfig, seed: int, x, y, dev_x, dev_y, l2=0.0):
    """One classifier, step by step with torch's own layers and Adam."""
    starts = classifier.start_layers(config, x.shape[1], 3)
    model = torch.nn.Sequential()
    for depth, (weight, bias) in enumerate(starts):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[2])
        place = (seed - 1) * len(config.l2) + config.l2.index(l2)
        layer.weight.data, layer.bias.data = (
            weight[place].detach().T.clone(),
            bias[place, 0].detach().clone(),
        )
        model.append(layer)
        if depth < len(starts) - 1:
            model.append(torch.nn.Tanh())
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    order = np.random.Generator(np.random.SFC64(seed))
    best, kept = -1.0, None
    for _ in range(config.epochs):
        for rows in torch.from_numpy(order.permutation(len(x))).split(config.batch_size):
            loss = F.cross_entropy(model(torch.from_numpy(x)[rows]), torch.from_numpy(y)[rows])
            loss = loss + l2 * sum(
                layer.weight.square().sum() for layer in model if hasattr(layer, "weight")
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = (model(torch.from_numpy(dev_x)).argmax(1).numpy() == dev_y).mean()
        if accuracy > best or (accuracy == best and config.ties == "last"):
            best, kept = accuracy, [p.detach().clone() for p in model.parameters()]
    return best, kept


@pytest.mark.parametrize(("hidden", "ties"), [((10, 8), "first"), ((), "first"), ((10, 8), "last")])
def test_together_equals_alone(hidden, ties):
    config = replace(CONFIG, hidden=hidden, ties=ties)
    together = train_classifiers(config, *TRAIN, *DEV, 3)
    for seed in (1, 2, 3):
        _, alone = plain_training(config, seed, *TRAIN, *DEV)
        for (weight, bias), (w, b) in zip(
            together.layers, zip(alone[::2], alone[1::2], strict=True), strict=True
        ):
            torch.testing.assert_close(weight[seed - 1], w.T, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(bias[seed - 1, 0], b, atol=1e-5, rtol=1e-4)


def test_the_epoch_kept_of_several_that_are_best():
    train, dev = data(60, noise=0.1), data(20, seed=1, noise=0.1)
    # separable: the last epochs are all right
    config = replace(CONFIG, hidden=(), learning_rate=0.05)
    first, last, shorter = (
        train_classifiers(replace(config, ties=ties, epochs=epochs), *train, *dev, 3)
        for ties, epochs in (("first", 12), ("last", 12), ("last", 11))
    )
    assert (first.predict(dev[0]) == last.predict(dev[0])).all()
    for other in (first, shorter):
        assert not torch.equal(last.layers[0][0], other.layers[0][0])


def test_strength_of_l2_is_chosen_on_dev():
    train, dev = data(60, noise=2), data(200, seed=1, noise=2)
    config = replace(CONFIG, hidden=(8,), epochs=20, l2=(0.0, 0.01, 10.0))
    accuracy = (train_classifiers(config, *train, *dev, 3).predict(dev[0]) == dev[1]).mean(axis=1)
    for seed in (1, 2, 3):
        best = max(plain_training(config, seed, *train, *dev, l2)[0] for l2 in config.l2)
        assert accuracy[seed - 1] == pytest.approx(best, abs=0.011)


def test_a_seed_gives_the_same_whatever_the_others():
    config = replace(CONFIG, dropout=0.2, input_dropout=0.2)
    one, three, again = (
        train_classifiers(replace(config, seeds=n), *TRAIN, *DEV, 3) for n in (1, 3, 3)
    )
    torch.testing.assert_close(one.layers[0][0][0], three.layers[0][0][0])
    test_x, _ = data(50, seed=2)
    np.testing.assert_array_equal(three.predict(test_x), again.predict(test_x))
    assert (three.layers[0][0][0] != three.layers[0][0][1]).any()


def test_it_learns():
    train, dev, (x, y) = data(300), data(100, seed=1), data(500, seed=2)
    config = replace(CONFIG, dropout=0.2, input_dropout=0.2, epochs=60)
    assert ((train_classifiers(config, *train, *dev, 3).predict(x) == y).mean(1) > 0.75).all()


def test_dropout_keeps_the_mean():
    generators = [np.random.Generator(np.random.SFC64(seed)) for seed in (1, 2)]
    dropped = classifier.drop_(torch.ones(2, 500, 100), generators, 0.2)
    assert dropped.unique().tolist() == [0, pytest.approx(1.25, abs=1e-4)]
    assert dropped.mean().item() == pytest.approx(1, abs=0.01)
    assert (dropped[0] != dropped[1]).any()


def test_an_epoch_takes_every_example_once(monkeypatch):
    monkeypatch.setattr(classifier, "CHUNK_BYTES", 1)
    x, y = torch.arange(50.0)[:, None], torch.arange(50)
    generators = [np.random.Generator(np.random.SFC64(seed)) for seed in (1, 2)]
    seen = [
        (features, labels)
        for features, labels, _ in classifier.batches(replace(CONFIG, seeds=2), x, y, generators)
    ]
    labels = torch.cat([labels for _, labels in seen], dim=1)
    assert [features.shape[1] for features, _ in seen] == [12, 12, 12, 12, 2]
    torch.testing.assert_close(labels.sort(dim=1).values, torch.arange(50).expand(2, -1))
    torch.testing.assert_close(
        torch.cat([features for features, _ in seen], dim=1)[..., 0], labels.float()
    )


def test_large_blocks_predict_as_small_ones(monkeypatch):
    layers = [(torch.randn(2, 16, 3), torch.randn(2, 1, 3))]
    whole = Classifiers(layers, normalise=True).predict(TRAIN[0])
    monkeypatch.setattr(classifier, "PREDICT_ROWS", 7)
    np.testing.assert_array_equal(Classifiers(layers, normalise=True).predict(TRAIN[0]), whole)


def test_bad_input():
    x, y = data(20)
    for labels, dev, message in (
        (np.zeros(20, dtype=np.int64), (x, y), "one class"),
        (y, (x[:, :15], y), "16 .*15"),
        (y, (x[:0], y[:0]), r"dev .*\(0, 16\)"),
    ):
        with pytest.raises(InputError, match=message):
            train_classifiers(CONFIG, x, labels, *dev, 3)
