"""Labelled embeddings and how a classifier learns from them, for protocols whose help needs no
torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_lxsr.vectors.rows import FloatArray


@dataclass(frozen=True)
class ClassifierConfig:
    """Options of training a classifier."""

    hidden: tuple[int, ...] = (
        10,
        8,
    )  # widths of the hidden layers (tanh); () gives a linear classifier
    dropout: float = 0.2  # of the hidden layers
    input_dropout: float = 0.2  # of the embeddings
    epochs: int = 500  # the one of largest accuracy on dev is kept
    batch_size: int = 12
    learning_rate: float = 1e-3
    # candidates, chosen on dev; each multiplies the sum of squared weights, without biases
    l2: tuple[float, ...] = (0.0,)
    normalise: bool = False  # scale embeddings to length one
    seeds: int = 5  # 1 to `seeds`; a seed decides initial weights, order of examples and dropout
    ties: str = "first"  # which of the best epochs is kept; LASER's code: last (source/sent_classif.py, line 248)

    @property
    def settings(self) -> dict[str, object]:
        """Options for a signature."""
        return {
            "classifier": "-".join(map(str, ("mlp", *self.hidden))) if self.hidden else "linear",
            "dropout": f"{self.input_dropout:g}-{self.dropout:g}",
            "epochs": self.epochs,
            "batch": self.batch_size,
            "lr": f"{self.learning_rate:g}",
            "l2": "-".join(f"{value:g}" for value in self.l2),
            "norm": "l2" if self.normalise else "none",
            "seeds": self.seeds,
            **({} if self.ties == "first" else {"ties": self.ties}),
        }


@dataclass(frozen=True)
class LabelledFeatures:
    """Features [N, F] and N labels of one part; `name` is the file, for messages, and `text` a
    hash, for signatures.
    """

    features: FloatArray
    labels: Sequence[str]
    name: str = ""
    text: str = ""
