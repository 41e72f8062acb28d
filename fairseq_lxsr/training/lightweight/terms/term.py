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

    # Embeddings [B, E] of each field of `net_input`: `source`, `target` and others.
    embeddings: dict[str, Tensor]
    # Last states [B, T, D] of the same fields; empty unless a term needs them.
    states: dict[str, Tensor]
    # Outputs of the heads, by the names of their terms.
    outputs: dict[str, Tensor]
    # Cosine similarities [B, B] of the two sides, in float32. The criterion adds them.
    cosines: NotRequired[Tensor]


@dataclass(frozen=True)
class Setting:
    """What the task knows before it reads any text.

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
    """The text of a dataset.

    Attributes:
        name: `train`, `valid` or `test`.
        epoch: number of the epoch, from 1.
        corpora: the corpus of each language pair.
    """

    name: str
    epoch: int
    corpora: Mapping[tuple[str, str], PairCorpus]


class Term:
    """Base class of the terms of the loss, which is the sum of `weight` times `loss`.

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
        """Build the term that the options ask for; None if they leave it out."""
        raise NotImplementedError

    def parts(self, split: Split) -> Sequence[Part]:
        """Return the parts that this term adds to the batches of a split."""
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
