"""What every term of the training loss is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from torch import Tensor, nn

from fairseq_lxsr.datasets.batch import Batch, Part
from fairseq_lxsr.datasets.masking import MaskingVocabulary
from fairseq_lxsr.datasets.pairs import PairCorpus
from fairseq_lxsr.modules import TransformerConfig


class Encoded(TypedDict):
    """What the model makes of a batch.

    embeddings: `source`, `target` and, where the batch has it, `negative` [B, E].
    states: last states of `source` and `target` [B, T, D]; empty unless a term needs them.
    outputs: by name of the term, what its head makes of them.
    """

    embeddings: dict[str, Tensor]
    states: dict[str, Tensor]
    outputs: dict[str, Tensor]


@dataclass(frozen=True)
class Setting:
    """What the task knows before any text is read.

    Args:
        vocabulary: ids of the joined dictionary and what they mean.
        pairs: language pairs to train on.
        num_shards: data folders that take turns.
    """

    vocabulary: MaskingVocabulary
    pairs: Sequence[tuple[str, str]]
    num_shards: int = 1


@dataclass(frozen=True)
class Split:
    """Text that a dataset is made of: `train`, `valid` or `test`, the epoch, and the text of each language pair."""

    name: str
    epoch: int
    corpora: Mapping[tuple[str, str], PairCorpus]


class Term:
    """One term of the loss, `weight` times `loss`, a sum over the pairs of a batch.

    Sub-classes set `name`, under which it is logged, and `Options`, a dataclass whose fields are flags of
    fairseq-train.
    A term of weight 0 has its parts in the batch, but neither a head nor a loss.
    """

    name: ClassVar[str]
    Options: ClassVar[type]
    needs_states: bool = False

    def __init__(self, weight: float):
        self.weight = weight

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "Term | None":
        """The term as the options ask for it; None where they leave it out.

        Raises:
            InputError: for options that do not go together.
        """
        raise NotImplementedError

    def parts(self, split: Split) -> Sequence[Part]:
        """What this term adds to the batches of a split."""
        return ()

    def heads(self, config: TransformerConfig) -> dict[str, nn.Module]:
        """Modules that only this term reads, by their names in the model (and so in checkpoints)."""
        return {}

    def output(self, model: nn.Module, encoded: Encoded, batch: Batch) -> Tensor | None:
        """What the head makes of an encoded batch, in the precision of the model; None for a term without a head."""
        return None

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor | None:
        """The loss in float32, a sum over the B pairs; None where the batch lacks what it needs (validation only).

        Nothing here may wait for the device.
        """
        raise NotImplementedError
