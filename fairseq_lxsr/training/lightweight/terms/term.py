"""The contract of every term of the training loss."""

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
    """Output of the model for a batch."""

    embeddings: dict[str, Tensor]  # `source`, `target` and what else the batch has, each [B, E]
    # last states of `source` and `target`, each [B, T, D]; empty unless a term needs them
    states: dict[str, Tensor]
    outputs: dict[str, Tensor]  # of the heads, by the names of their terms
    cosines: NotRequired[Tensor]  # [B, B] of the two sides, in float32; the criterion adds them


@dataclass(frozen=True)
class Setting:
    """What the task knows before any text is read."""

    vocabulary: MaskingVocabulary
    pairs: Sequence[tuple[str, str]]  # languages to train on
    shards: Sequence[Path] = ()  # data folders, which take turns


@dataclass(frozen=True)
class Split:
    """Text of a dataset: `train`, `valid` or `test`, the epoch, and the corpus of each language
    pair.
    """

    name: str
    epoch: int
    corpora: Mapping[tuple[str, str], PairCorpus]


class Term:
    """One term of the loss, `weight` times `loss`, a sum over the pairs of a batch.

    A term of weight 0 has its parts in the batch, but neither a head nor a loss. Sub-classes set
    the attributes.

    Attributes:
        name: name under which the term is logged.
        Options: a dataclass whose fields are flags of fairseq-train.
        needs_states: whether the term reads the states of the tokens.
        state: what checkpoints keep of the term.
    """

    name: ClassVar[str]
    Options: ClassVar[type]
    needs_states: bool = False

    def __init__(self, weight: float):
        self.weight = weight
        self.state: dict[str, str] = {}

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "Term | None":
        """Build the term that the options ask for; None where they leave it out."""
        raise NotImplementedError

    def parts(self, split: Split) -> Sequence[Part]:
        """Parts that this term adds to the batches of a split."""
        return ()

    def heads(self, config: TransformerConfig) -> dict[str, nn.Module]:
        """Modules that only this term uses, by their names in the model (and so in checkpoints)."""
        return {}

    def output(self, model: nn.Module, encoded: Encoded, batch: Batch) -> Tensor | None:
        """Apply the head to an encoded batch, in the precision of the model; None for a term
        without a head.
        """
        return None

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor | None:
        """Compute the loss in float32, summed over the B pairs; None where the batch lacks what it
        needs.

        Only a batch of validation may lack it. The computation may not wait for the device.
        """
        raise NotImplementedError
