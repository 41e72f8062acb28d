"""Small classifiers on frozen embeddings, those of all seeds trained together, and transfer between
languages.

Notation: S models trained together (seeds x strengths of L2), N examples, F features, C classes, B
examples of a batch.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.labelled import ClassifierConfig, LabelledFeatures
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, text_and_model
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

CHUNK_BYTES = 2**24  # size of the batches that are gathered at once, for every seed
PREDICT_ROWS = 4096
STEPS_OF_DROPOUT = 2**16  # dropout compares 16 random bits with the rate


class Classifiers:
    """Holds trained classifiers, one for every seed."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]], normalise: bool):
        self.layers = layers  # weights [S, in, out], biases [S, 1, out]
        self.normalise = normalise

    @torch.inference_mode()
    def predict(self, features: FloatArray) -> IntArray:
        """Predict the classes of features [N, F] with the classifier of every seed, [S, N]."""
        blocks = [
            forward(
                self.layers, as_features(features[start : start + PREDICT_ROWS], self.normalise)
            ).argmax(2)
            for start in range(0, len(features), PREDICT_ROWS)
        ]
        return torch.cat(blocks, dim=1).numpy()


def as_features(features: FloatArray, normalise: bool) -> Tensor:
    """Convert features to float32 [N, F], of length one where `normalise` is set."""
    rows = torch.from_numpy(np.require(features, np.float32, ["C", "W"]))
    return F.normalize(rows) if normalise else rows


def forward(
    layers: list[tuple[Tensor, Tensor]], x: Tensor, masks: list[Tensor] | None = None
) -> Tensor:
    """Compute logits [S, N, C] of features [N, F] or [S, N, F]; `masks` are the dropout masks of
    the hidden layers.
    """
    x = x.expand(layers[0][0].shape[0], *x.shape[-2:])
    for depth, (weight, bias) in enumerate(layers):
        x = torch.baddbmm(bias, x, weight)
        if depth < len(layers) - 1:
            x = x.tanh()
            if masks is not None:
                x = x * masks[depth]
    return x


def train_classifiers(
    config: ClassifierConfig,
    features: FloatArray,
    labels: IntArray,
    dev_features: FloatArray,
    dev_labels: IntArray,
    classes: int,
) -> Classifiers:
    """Train a classifier for every seed; each seed keeps the strength of L2 that is best on dev.

    Features are [N, F] and [M, F], labels [N] and [M] from 0 to classes - 1.
    """
    check_training_set(features, labels, dev_features, dev_labels)
    x, y = as_features(features, config.normalise), torch.from_numpy(labels)
    dev_x, dev_y = as_features(dev_features, config.normalise), torch.from_numpy(dev_labels)
    generators = [np.random.Generator(np.random.SFC64(seed)) for seed in range(1, config.seeds + 1)]
    layers = start_layers(config, x.shape[1], classes)
    optimizer = torch.optim.Adam(
        [p for layer in layers for p in layer], lr=config.learning_rate, fused=True
    )
    l2 = torch.tensor(config.l2).repeat(
        config.seeds
    )  # model s has seed s // len(l2) and strength s % len(l2)
    best = torch.full((len(l2),), -1.0)
    kept = [tuple(p.detach().clone() for p in layer) for layer in layers]
    for _ in Progress(range(config.epochs), desc="classifier", unit=" epochs", disable=None):
        for batch, target, masks in batches(config, x, y, generators):
            logits = forward(layers, batch, masks)
            losses = (
                F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
                / target.shape[1]
            )
            if any(config.l2):
                losses = losses + sum(
                    (l2 * weight.square().sum((1, 2))).sum() for weight, _ in layers
                )
            optimizer.zero_grad(set_to_none=True)
            losses.backward()
            optimizer.step()
        with torch.inference_mode():
            accuracy = (forward(layers, dev_x).argmax(2) == dev_y).float().mean(1)
            better = (accuracy > best if config.ties == "first" else accuracy >= best)[
                :, None, None
            ]
            best = torch.maximum(best, accuracy)
            for old, new in zip(kept, layers, strict=True):
                for value, current in zip(old, new, strict=True):
                    value.copy_(torch.where(better, current, value))
    chosen = best.view(config.seeds, -1).argmax(1) + torch.arange(config.seeds) * len(config.l2)
    return Classifiers([(weight[chosen], bias[chosen]) for weight, bias in kept], config.normalise)


def start_layers(config: ClassifierConfig, width: int, classes: int) -> list[tuple[Tensor, Tensor]]:
    """Draw uniform weights in +-1/sqrt(in) (as torch.nn.Linear); those of a seed do not depend on
    the other seeds.
    """
    widths = (width, *config.hidden, classes)
    layers = []
    for depth, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        weight = torch.stack(
            [
                torch.empty(fan_in + 1, fan_out).uniform_(
                    -(fan_in**-0.5),
                    fan_in**-0.5,
                    generator=torch.Generator().manual_seed(seed * 100 + depth),
                )
                for seed in range(1, config.seeds + 1)
                for _ in config.l2
            ]
        )  # [S, in + 1, out], the last row is the bias
        layers.append(
            (weight[:, :-1].clone().requires_grad_(), weight[:, -1:].clone().requires_grad_())
        )
    return layers


def batches(
    config: ClassifierConfig, x: Tensor, y: Tensor, generators: list[np.random.Generator]
) -> Iterator[tuple[Tensor, Tensor, list[Tensor] | None]]:
    """Yield one epoch: features [S, B, F] after dropout, labels [S, B], masks of the hidden layers
    [S, B, width].

    Every seed has its own order and dropout; models of one seed share them. The last batch may be
    shorter.
    """
    orders = np.stack([generator.permutation(len(x)) for generator in generators])  # [seeds, N]
    size = config.batch_size
    rows = max(1, CHUNK_BYTES // (4 * x.shape[1] * size)) * size
    for start in range(0, len(x), rows):
        chosen = torch.from_numpy(orders[:, start : start + rows])
        features = x[chosen]  # [seeds, rows, F]
        if config.input_dropout:
            drop_(features, generators, config.input_dropout)
        parts = [features, y[chosen]]
        if config.dropout:
            ones = (torch.ones(len(orders), chosen.shape[1], width) for width in config.hidden)
            parts += [drop_(mask, generators, config.dropout) for mask in ones]
        if len(config.l2) > 1:
            parts = [part.repeat_interleave(len(config.l2), dim=0) for part in parts]
        for batch, target, *masks in zip(*(part.split(size, dim=1) for part in parts), strict=True):
            yield batch, target, masks or None


def drop_(values: Tensor, generators: list[np.random.Generator], rate: float) -> Tensor:
    """Apply dropout in place: values [seeds, ...] become 0 with probability `rate`, else are
    divided by 1 - rate.
    """
    limit = round(rate * STEPS_OF_DROPOUT)
    shape = values.shape[1:]
    bits = np.stack(
        [
            generator.integers(0, STEPS_OF_DROPOUT, shape, dtype=np.uint16)
            for generator in generators
        ]
    )
    return values.div_(1 - limit / STEPS_OF_DROPOUT).masked_fill_(torch.from_numpy(bits < limit), 0)


def check_training_set(
    features: NDArray, labels: NDArray, dev_features: NDArray, dev_labels: NDArray
) -> None:
    """Check that there is something to learn and that features and labels fit together."""
    for name, rows, values in (("training", features, labels), ("dev", dev_features, dev_labels)):
        if rows.ndim != 2 or len(rows) != len(values) or not len(rows):
            raise InputError(
                f"{name} set of {rows.shape} features and {len(values)} labels; expected one label a row"
            )
    if features.shape[1] != dev_features.shape[1]:
        raise InputError(
            f"training features are {features.shape[1]} wide and dev features {dev_features.shape[1]}; "
            "expected embeddings of one model"
        )
    if len(np.unique(labels)) < 2:
        raise InputError(
            "the training set has one class only; expected two or more: check the labels"
        )


def transfer_scores(
    protocol: str,
    languages: Mapping[str, Mapping[str, LabelledFeatures]],
    train_languages: Sequence[str],
    config: ClassifierConfig,
    fingerprint: str,
) -> list[Score]:
    """Score every pair of train and test language: accuracy, its standard deviation over seeds,
    macro F1.

    `languages` has the parts of each language: test to test it, train and dev to learn in it.
    """
    scores = []
    for trained in train_languages:
        train, dev = (languages[trained].get(part) for part in ("train", "dev"))
        if train is None or dev is None:
            raise InputError(
                f"{trained}: no training text; expected train and dev to learn in this language"
            )
        classes = sorted(set(train.labels))
        tests = {tested: parts["test"] for tested, parts in languages.items() if "test" in parts}
        for tested, test in tests.items():
            if test.features.shape[1] != train.features.shape[1]:
                raise InputError(
                    f"embeddings of {trained} are {train.features.shape[1]} wide and those of {tested} "
                    f"{test.features.shape[1]}; expected the same model for all languages"
                )
        gold = {tested: class_numbers(test, classes) for tested, test in tests.items()}
        labels, dev_labels = class_numbers(train, classes), class_numbers(dev, classes)
        model = train_classifiers(
            config, train.features, labels, dev.features, dev_labels, len(classes)
        )
        for tested, test in tests.items():
            predicted = model.predict(test.features)  # [S, N]
            sizes = f"{len(train.labels)}-{len(dev.labels)}-{len(test.labels)}"
            settings = {"classes": len(classes), "sizes": sizes, **config.settings}
            settings |= text_and_model(fingerprint, [train.text, dev.text, test.text])
            scores.append(
                _score(protocol, f"{trained}->{tested}", predicted, gold[tested], settings)
            )
    return scores


def class_numbers(part: LabelledFeatures, classes: Sequence[str]) -> IntArray:
    """Convert labels to class numbers [N]."""
    number = {label: index for index, label in enumerate(classes)}
    for row, label in enumerate(part.labels, start=1):
        if label not in number:
            raise InputError(
                f"{part.name}, example {row}: label {label!r} is not in the training set, which has "
                f"{', '.join(classes)}; expected the same labels in all parts and languages"
            )
    return np.array([number[label] for label in part.labels], dtype=np.int64)


def macro_f1(predicted: IntArray, gold: IntArray) -> float:
    """Compute the mean F1, in percent, of the classes that occur in `gold` or `predicted`, [N]
    each.
    """
    pairs = ((predicted == label, gold == label) for label in np.union1d(predicted, gold))
    return float(
        100
        * np.mean([2 * (left & right).sum() / (left.sum() + right.sum()) for left, right in pairs])
    )


def _score(
    protocol: str, task: str, predicted: IntArray, gold: IntArray, settings: dict[str, object]
) -> Score:
    hits = predicted == gold  # [S, N]
    accuracy = Outcomes(as_units(hits.mean(axis=0)))
    by_seed = 100 * hits.mean(axis=1)
    values = {
        "accuracy": float(by_seed.mean()),
        "sd": float(by_seed.std(ddof=1)) if len(by_seed) > 1 else 0.0,
        "macro F1": float(np.mean([macro_f1(row, gold) for row in predicted])),
    }
    return Score(protocol, task, values, settings, {"accuracy": accuracy})
