"""Labelled embeddings and classifier settings. Does not import torch, so that --help is fast."""

from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_lxsr.vectors.rows import FloatArray


@dataclass(frozen=True)
class ClassifierConfig:
    """Settings for training a classifier.

    Args:
        hidden: widths of the hidden layers (tanh); () selects a linear classifier.
        dropout: dropout rate of the hidden layers.
        input_dropout: dropout rate of the embeddings.
        epochs: passes over the training set; the epoch with the highest dev accuracy is selected.
        batch_size: examples per batch.
        learning_rate: learning rate of Adam.
        l2: candidate strengths of L2 regularisation, selected on dev. Each multiplies the sum of
            the squared weights, without biases.
        normalise: whether embeddings are scaled to unit length.
        seeds: number of seeds (1, 2, 3, ...). A seed determines the initial weights, the order of
            the examples and dropout.
        ties: which epoch to select if several are equally good, `first` or `last`. LASER's code
            selects the last (source/sent_classif.py, line 248).
    """

    hidden: tuple[int, ...] = (10, 8)
    dropout: float = 0.2
    input_dropout: float = 0.2
    epochs: int = 500
    batch_size: int = 12
    learning_rate: float = 1e-3
    l2: tuple[float, ...] = (0.0,)
    normalise: bool = False
    seeds: int = 5
    ties: str = "first"

    @property
    def settings(self) -> dict[str, object]:
        """Settings to include in the signature of a score."""
        settings: dict[str, object] = {
            "classifier": "-".join(map(str, ("mlp", *self.hidden))) if self.hidden else "linear",
            "dropout": f"{self.input_dropout:g}-{self.dropout:g}",
            "epochs": self.epochs,
            "batch": self.batch_size,
            "lr": f"{self.learning_rate:g}",
            "l2": "-".join(f"{value:g}" for value in self.l2),
            "norm": "l2" if self.normalise else "none",
            "seeds": self.seeds,
        }
        if self.ties != "first":
            settings["ties"] = self.ties
        return settings


@dataclass(frozen=True)
class LabelledFeatures:
    """Features and labels of one split of a data set.

    Args:
        features: embeddings, or features computed from them [N, F].
        labels: label of each example [N].
        name: file name, for messages.
        text: hash of the text, for signatures.
    """

    features: FloatArray
    labels: Sequence[str]
    name: str = ""
    text: str = ""
