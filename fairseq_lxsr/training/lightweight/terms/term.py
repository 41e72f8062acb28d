"""Interface that all terms of the training loss implement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NotRequired, TypedDict

from torch import Tensor, nn

from fairseq_lxsr.modules import TransformerConfig
from fairseq_lxsr.training.dataset import Batch, Part
from fairseq_lxsr.training.lightweight.parts.masking import MaskingVocabulary
from fairseq_lxsr.training.pairs import PairCorpus


class Encoded(TypedDict):
    """Model output for a batch."""

    # Embeddings [B, E] of each field in `net_input`, such as `source` and `target`.
    embeddings: dict[str, Tensor]
    # Last hidden states [B, T, D] of the same fields; empty unless a term needs them.
    states: dict[str, Tensor]
    # Outputs of the heads, by term name.
    outputs: dict[str, Tensor]
    # Cosine similarities [B, B] between sources and targets, in float32; set by the criterion.
    cosines: NotRequired[Tensor]


@dataclass(frozen=True)
class Setting:
    """Task settings that are known before any text is read.

    Attributes:
        vocabulary: the dictionary, with the mask.
        pairs: language pairs to train on.
        shards: data folders, one of which an epoch reads.
    """

    vocabulary: MaskingVocabulary
    pairs: Sequence[tuple[str, str]]
    shards: Sequence[Path] = ()


@dataclass(frozen=True)
class Split:
    """The corpora of one split, for which a term builds its batch parts.

    Attributes:
        name: `train`, `valid` or `test`.
        epoch: number of the epoch, from 1.
        corpora: the corpus of each language pair.
    """

    name: str
    epoch: int
    corpora: Mapping[tuple[str, str], PairCorpus]


class Term:
    """Base class of the loss terms; the total is the sum of `weight` times `loss`.

    A term with weight 0 adds its parts to the batch, but has neither a head nor a loss. Subclasses
    set the attributes.

    Attributes:
        name: name under which the term is logged.
        Options: a dataclass whose fields are flags of fairseq-train.
        needs_states: whether the term reads the states of the tokens.
        state: entries that the term adds to the state in checkpoints.
    """

    name: ClassVar[str]
    Options: ClassVar[type]
    needs_states: bool = False

    def __init__(self, weight: float):
        self.weight = weight
        self.state: dict[str, str] = {}

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "Term | None":
        """Build the term as configured; None if the options disable it."""
        raise NotImplementedError

    def parts(self, split: Split) -> Sequence[Part]:
        """Return the batch parts that this term needs in a split."""
        return ()

    def heads(self, config: TransformerConfig) -> dict[str, nn.Module]:
        """Return the modules that only this term uses, by their names in the model.

        Checkpoints use the same names.
        """
        return {}

    def output(self, model: nn.Module, encoded: Encoded, batch: Batch) -> Tensor | None:
        """Apply the head to an encoded batch, in the precision of the model.

        The result is None for a term without a head.
        """
        return None

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor | None:
        """Compute the loss in float32, summed over the B pairs.

        The result is None if the batch lacks a field that the term needs, which is possible in
        validation only. The computation must not synchronize with the device.
        """
        raise NotImplementedError
