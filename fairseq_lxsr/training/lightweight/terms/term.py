"""Interface that all terms of the training loss implement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NotRequired, TypedDict

from fairseq.tasks import TASK_REGISTRY
from torch import Tensor, nn

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.losses import Cosines
from fairseq_lxsr.modules import TransformerConfig
from fairseq_lxsr.training.dataset import Batch, Part
from fairseq_lxsr.training.lightweight.parts.masking import MaskingVocabulary
from fairseq_lxsr.training.pairs import PairCorpus

# Name of the task whose loss is the sum of the terms.
TASK = "xling_sent"
# What a subclass of `Term` defines.
REQUIRED = {
    "name": "the name of the term in logs",
    "Options": "a dataclass of its options",
    "build": "a class method that builds the term from the options",
    "loss": "a method that returns the loss, summed over the pairs",
}
# Names of other values in the log.
RESERVED = {"loss", "accuracy", "acc_fwd", "acc_bwd", "ntokens", "nsentences", "sample_size"}


class Encoded(TypedDict):
    """Model output for a batch."""

    # Embeddings [B, E] of each field in `net_input`, such as `source` and `target`.
    embeddings: dict[str, Tensor]
    # Last hidden states [B, T, D] of the same fields; empty unless a term needs them.
    states: dict[str, Tensor]
    # Outputs of the heads, by term name.
    outputs: dict[str, Tensor]
    # Cosine similarities between sources and targets, in float32; set by the criterion.
    cosines: NotRequired[Cosines]


@dataclass(frozen=True)
class Setting:
    """Task settings that are known before any text is read.

    Attributes:
        vocabulary: dictionary data, including <mask>.
        pairs: language pairs to train on.
        shards: data folders; each epoch uses one of them.
    """

    vocabulary: MaskingVocabulary
    pairs: Sequence[tuple[str, str]]
    shards: Sequence[Path] = ()


@dataclass(frozen=True)
class Split:
    """The corpora of one split, for which a term builds its batch parts.

    Attributes:
        name: `train`, `valid` or `test`.
        epoch: one-based number of the epoch.
        corpora: the corpus of each language pair.
    """

    name: str
    epoch: int
    corpora: Mapping[tuple[str, str], PairCorpus]


class Term:
    """Base class of the loss terms. The total loss is the sum of `weight` times `loss`.

    A term with weight 0 adds its parts to the batch, but has no head and no loss. Subclasses set
    the attributes.

    Attributes:
        name: name of the term in logs.
        Options: dataclass whose fields become fairseq-train options.
        needs_states: whether the term uses the token states.
        state: entries that the term adds to the state stored in checkpoints.
    """

    name: ClassVar[str]
    Options: ClassVar[type]
    needs_states: bool = False

    def __init_subclass__(cls) -> None:
        """Check the definition of a term, and add its options to the task.

        Raises:
            InputError: if the term lacks a member, or its name or an option exists already.
        """
        super().__init_subclass__()
        place = f"{cls.__module__}.{cls.__name__}"
        for member, meaning in REQUIRED.items():
            if all(member not in vars(base) for base in cls.__mro__ if base not in Term.__mro__):
                raise InputError(f"{place}: no {member}; expected {meaning}")
        term_names = {term.name for term in Term.__subclasses__() if term is not cls}
        if cls.name in term_names | RESERVED:
            raise InputError(
                f"{place}: a loss {cls.name!r} exists already; choose another name for the term"
            )
        # The task is registered after the terms of this package. It already exists if the term
        # belongs to another package.
        if TASK in TASK_REGISTRY:
            TASK_REGISTRY[TASK].add_options(cls.Options)

    def __init__(self, weight: float):
        self.weight = weight
        self.state: dict[str, str] = {}

    def checked_loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor | None:
        """Return `loss` after a check of its type and shape.

        Raises:
            InputError: if it is not a scalar tensor.
        """
        value = self.loss(encoded, batch, training)
        if value is None:
            return None
        if not isinstance(value, Tensor) or value.dim():
            kind = type(value).__name__
            if isinstance(value, Tensor):
                kind = f"a tensor of shape {list(value.shape)}"
            raise InputError(
                f"the loss of term {self.name} is {kind}; expected a tensor without dimensions, "
                "the sum over the pairs"
            )
        return value

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "Term | None":
        """Build the term, or return None if the options disable it."""
        raise NotImplementedError

    def parts(self, split: Split) -> Sequence[Part]:
        """Return the batch parts that this term needs in a split."""
        return ()

    def heads(self, config: TransformerConfig) -> dict[str, nn.Module]:
        """Return the modules that only this term uses, keyed by their names in checkpoints."""
        return {}

    def output(self, model: nn.Module, encoded: Encoded, batch: Batch) -> Tensor | None:
        """Apply the head to an encoded batch, in the model's precision.

        The result is None for a term without a head.
        """
        return None

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor | None:
        """Compute the loss in float32, summed over the B pairs.

        The result is None if the batch lacks a field that the term needs, which only happens in
        validation. The computation must not synchronize with the device.
        """
        raise NotImplementedError
