"""Small classifiers on frozen embeddings, and classification across languages.

The classifiers of all seeds are trained together.

Notation: S models (seeds x candidate strengths of L2), N examples, F features, C classes, B
examples per batch.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fairseq_lxsr.errors import InputError, listed
from fairseq_lxsr.evaluation.labelled import ClassifierConfig, LabelledFeatures
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, text_and_model
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# Approximate number of bytes of features to gather at a time.
CHUNK_BYTES = 2**24
# Number of examples to classify at a time.
PREDICT_ROWS = 4096
# Dropout compares 16-bit random numbers with the rate.
STEPS_OF_DROPOUT = 2**16

# Weights [S, in, out] and biases [S, 1, out] of one layer.
Layer = tuple[Tensor, Tensor]


class Classifiers:
    """Trained classifiers, one per seed.

    Args:
        layers: weights and biases of every layer.
        normalise: whether features are scaled to unit length.
    """

    def __init__(self, layers: list[Layer], normalise: bool):
        self.layers = layers
        self.normalise = normalise

    @torch.inference_mode()
    def predict(self, features: FloatArray) -> IntArray:
        """Predict the classes of examples with the classifier of each seed.

        Args:
            features: features of N examples [N, F].

        Returns:
            Predicted classes [S, N].
        """
        blocks = []
        for start in range(0, len(features), PREDICT_ROWS):
            rows = as_features(features[start : start + PREDICT_ROWS], self.normalise)
            blocks.append(forward(self.layers, rows).argmax(2))
        return torch.cat(blocks, dim=1).numpy()


def as_features(features: FloatArray, normalise: bool) -> Tensor:
    """Convert features to float32 [N, F], scaled to unit length if `normalise` is set."""
    rows = torch.from_numpy(np.require(features, np.float32, ["C", "W"]))
    return F.normalize(rows) if normalise else rows


def forward(layers: list[Layer], x: Tensor, masks: list[Tensor] | None = None) -> Tensor:
    """Compute logits.

    Args:
        layers: weights and biases of every layer.
        x: features [N, F] or [S, N, F].
        masks: dropout masks of the hidden layers [S, N, width]; None for no dropout.

    Returns:
        Logits [S, N, C].
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
    """Train one classifier per seed. Each selects its best epoch and L2 strength on dev.

    Args:
        config: settings of the classifier.
        features: training features [N, F].
        labels: training labels from 0 to classes - 1 [N].
        dev_features: features of the dev set, used for selection [M, F].
        dev_labels: labels of the dev set [M].
        classes: number of classes.

    Raises:
        InputError: if features and labels do not match, or if there is only one class.
    """
    check_training_set(features, labels, dev_features, dev_labels)
    x = as_features(features, config.normalise)
    y = torch.from_numpy(labels)
    dev_x = as_features(dev_features, config.normalise)
    dev_y = torch.from_numpy(dev_labels)
    generators = [np.random.Generator(np.random.SFC64(seed)) for seed in range(1, config.seeds + 1)]
    layers = start_layers(config, x.shape[1], classes)
    parameters = [parameter for layer in layers for parameter in layer]
    optimizer = torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
    # Model s uses the seed with index s // len(l2) and the L2 strength with index s % len(l2).
    l2 = torch.tensor(config.l2).repeat(config.seeds)
    best = BestEpochs(layers, len(l2), config.ties)
    for _ in Progress(range(config.epochs), desc="classifier", unit=" epochs"):
        for batch, target, masks in batches(config, x, y, generators):
            losses = classifier_losses(layers, batch, target, masks, l2)
            optimizer.zero_grad(set_to_none=True)
            losses.backward()
            optimizer.step()
        with torch.inference_mode():
            accuracy = (forward(layers, dev_x).argmax(2) == dev_y).float().mean(1)
            best.update(layers, accuracy)
    return Classifiers(best.select(config.seeds, len(config.l2)), config.normalise)


def classifier_losses(
    layers: list[Layer], batch: Tensor, target: Tensor, masks: list[Tensor] | None, l2: Tensor
) -> Tensor:
    """Sum the mean cross-entropy and the L2 penalty of all models.

    Args:
        layers: weights and biases of every layer.
        batch: features [S, B, F].
        target: labels [S, B].
        masks: dropout masks of the hidden layers.
        l2: L2 strength of every model [S].
    """
    logits = forward(layers, batch, masks)
    cross_entropy = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
    losses = cross_entropy / target.shape[1]
    if l2.any():
        penalties = [(l2 * weight.square().sum((1, 2))).sum() for weight, _ in layers]
        losses = losses + sum(penalties)
    return losses


class BestEpochs:
    """Parameters of each model at its best epoch.

    Args:
        layers: initial weights and biases of every layer.
        models: number of models S.
        ties: which epoch to keep if several are equally good, `first` or `last`.
    """

    def __init__(self, layers: list[Layer], models: int, ties: str):
        self.layers = [(weight.detach().clone(), bias.detach().clone()) for weight, bias in layers]
        self.accuracy = torch.full((models,), -1.0)
        self.ties = ties

    def update(self, layers: list[Layer], accuracy: Tensor) -> None:
        """Keep the parameters of each model whose dev accuracy [S] is its best so far."""
        if self.ties == "first":
            is_better = accuracy > self.accuracy
        else:
            is_better = accuracy >= self.accuracy
        is_better = is_better[:, None, None]
        self.accuracy = torch.maximum(self.accuracy, accuracy)
        for best_layer, layer in zip(self.layers, layers, strict=True):
            for best_value, value in zip(best_layer, layer, strict=True):
                best_value.copy_(torch.where(is_better, value, best_value))

    def select(self, seeds: int, strengths: int) -> list[Layer]:
        """Return the parameters at each seed's best L2 strength."""
        strength = self.accuracy.view(seeds, -1).argmax(1)
        models = strength + torch.arange(seeds) * strengths
        return [(weight[models], bias[models]) for weight, bias in self.layers]


def start_layers(config: ClassifierConfig, width: int, classes: int) -> list[Layer]:
    """Draw initial weights uniformly from ±1/sqrt(fan_in), the default of torch.nn.Linear.

    The weights of a seed do not depend on the other seeds.
    """
    widths = (width, *config.hidden, classes)
    layers = []
    for depth, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        bound = fan_in**-0.5
        models = []
        for seed in range(1, config.seeds + 1):
            for _ in config.l2:
                generator = torch.Generator().manual_seed(seed * 100 + depth)
                values = torch.empty(fan_in + 1, fan_out)
                models.append(values.uniform_(-bound, bound, generator=generator))
        # [S, in + 1, out]: the last row is the bias.
        stacked = torch.stack(models)
        weight = stacked[:, :-1].clone().requires_grad_()
        bias = stacked[:, -1:].clone().requires_grad_()
        layers.append((weight, bias))
    return layers


def batches(
    config: ClassifierConfig, x: Tensor, y: Tensor, generators: list[np.random.Generator]
) -> Iterator[tuple[Tensor, Tensor, list[Tensor] | None]]:
    """Yield the batches of one epoch. The last batch may be shorter.

    Every seed has its own order and dropout masks, which are shared by its models.

    Args:
        config: settings of the classifier.
        x: features [N, F].
        y: labels [N].
        generators: one random generator per seed.

    Yields:
        Features [S, B, F] after dropout, labels [S, B], and dropout masks of the hidden layers
        [S, B, width].
    """
    # Row indices [seeds, N].
    orders = np.stack([generator.permutation(len(x)) for generator in generators])
    size = config.batch_size
    rows = max(1, CHUNK_BYTES // (4 * x.shape[1] * size)) * size
    for start in range(0, len(x), rows):
        chunk = torch.from_numpy(orders[:, start : start + rows])
        parts = gather(config, x, y, chunk, generators)
        split_parts = [part.split(size, dim=1) for part in parts]
        for batch, target, *masks in zip(*split_parts, strict=True):
            yield batch, target, masks or None


def gather(
    config: ClassifierConfig,
    x: Tensor,
    y: Tensor,
    chunk: Tensor,
    generators: list[np.random.Generator],
) -> list[Tensor]:
    """Gather features, labels and dropout masks for a chunk [seeds, rows] of row indices."""
    # Features [seeds, rows, F].
    features = x[chunk]
    if config.input_dropout:
        drop_(features, generators, config.input_dropout)
    parts = [features, y[chunk]]
    if config.dropout:
        for width in config.hidden:
            mask = torch.ones(*chunk.shape, width)
            parts.append(drop_(mask, generators, config.dropout))
    if len(config.l2) > 1:
        parts = [part.repeat_interleave(len(config.l2), dim=0) for part in parts]
    return parts


def drop_(values: Tensor, generators: list[np.random.Generator], rate: float) -> Tensor:
    """Apply dropout in place.

    Args:
        values: values [seeds, ...]; they become 0 with probability `rate`, and are divided by
            1 - rate otherwise.
        generators: one random generator per seed.
        rate: dropout rate.
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
    """Check that features and labels match, and that there are at least two classes."""
    for name, rows, values in (("training", features, labels), ("dev", dev_features, dev_labels)):
        if rows.ndim != 2 or len(rows) != len(values) or not len(rows):
            raise InputError(
                f"{name} set has features of shape {rows.shape} and {len(values)} labels; "
                "expected one label per row"
            )
    if features.shape[1] != dev_features.shape[1]:
        raise InputError(
            f"training features have {features.shape[1]} dimensions and dev features have "
            f"{dev_features.shape[1]}; expected embeddings from the same model"
        )
    if len(np.unique(labels)) < 2:
        raise InputError(
            "the training set has only one class; expected at least two: check the labels"
        )


def transfer_scores(
    protocol: str,
    languages: Mapping[str, Mapping[str, LabelledFeatures]],
    train_languages: Sequence[str],
    config: ClassifierConfig,
    fingerprint: str,
) -> list[Score]:
    """Score every combination of training and test language.

    Args:
        protocol: name of the protocol.
        languages: splits of each language: `test` for a test language, `train` and `dev` for a
            training language.
        train_languages: training languages.
        config: settings of the classifier.
        fingerprint: fingerprint of the encoder, for signatures.

    Returns:
        Scores with accuracy, its standard deviation over seeds, and macro F1.

    Raises:
        InputError: if a split is missing, a label is unknown, or features come from different
            models.
    """
    tests = {name: parts["test"] for name, parts in languages.items() if "test" in parts}
    scores = []
    for train_language in train_languages:
        train = languages[train_language].get("train")
        dev = languages[train_language].get("dev")
        if train is None or dev is None:
            raise InputError(
                f"{train_language} has no training text; expected the splits train and dev"
            )
        _check_widths(train_language, train, tests)
        classes = sorted(set(train.labels))
        gold = {name: class_numbers(test, classes) for name, test in tests.items()}
        model = train_classifiers(
            config,
            train.features,
            class_numbers(train, classes),
            dev.features,
            class_numbers(dev, classes),
            len(classes),
        )
        for test_language, test in tests.items():
            sizes = f"{len(train.labels)}-{len(dev.labels)}-{len(test.labels)}"
            settings = {"classes": len(classes), "sizes": sizes, **config.settings}
            settings |= text_and_model(fingerprint, [train.text, dev.text, test.text])
            predicted = model.predict(test.features)
            task = f"{train_language}->{test_language}"
            scores.append(_score(protocol, task, predicted, gold[test_language], settings))
    return scores


def _check_widths(
    language: str, train: LabelledFeatures, tests: Mapping[str, LabelledFeatures]
) -> None:
    width = train.features.shape[1]
    for test_language, test in tests.items():
        if test.features.shape[1] != width:
            raise InputError(
                f"{language} features have {width} dimensions and {test_language} features have "
                f"{test.features.shape[1]}; expected embeddings from the same model"
            )


def class_numbers(part: LabelledFeatures, classes: Sequence[str]) -> IntArray:
    """Convert the labels of a split (train, dev or test) to class indices [N].

    Raises:
        InputError: if a label is not one of the classes.
    """
    number = {label: index for index, label in enumerate(classes)}
    for row, label in enumerate(part.labels, start=1):
        if label not in number:
            raise InputError(
                f"{part.name}, example {row}: label {label!r} is not in the training set; "
                f"expected one of {listed(classes)}"
            )
    return np.array([number[label] for label in part.labels], dtype=np.int64)


def macro_f1(predicted: IntArray, gold: IntArray) -> float:
    """Compute the mean F1, in percent, over the classes that occur in either array.

    Args:
        predicted: predicted classes [N].
        gold: true classes [N].
    """
    f1 = []
    for label in np.union1d(predicted, gold):
        is_predicted = predicted == label
        is_gold = gold == label
        hits = (is_predicted & is_gold).sum()
        f1.append(2 * hits / (is_predicted.sum() + is_gold.sum()))
    return float(100 * np.mean(f1))


def _score(
    protocol: str, task: str, predicted: IntArray, gold: IntArray, settings: dict[str, object]
) -> Score:
    """Create a score from the predictions [S, N] of all seeds."""
    hits = predicted == gold
    by_seed = 100 * hits.mean(axis=1)
    values = {
        "accuracy": float(by_seed.mean()),
        "sd": float(by_seed.std(ddof=1)) if len(by_seed) > 1 else 0.0,
        "macro F1": float(np.mean([macro_f1(row, gold) for row in predicted])),
    }
    accuracy = Outcomes(as_units(hits.mean(axis=0)))
    return Score(protocol, task, values, settings, {"accuracy": accuracy})
