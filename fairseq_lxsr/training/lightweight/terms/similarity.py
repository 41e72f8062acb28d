"""Term `sim`: sentences are as similar to each other in one language as in the other (Mao et al.
2021, Eq. 6).
"""

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor

from fairseq_lxsr import losses
from fairseq_lxsr.options import LOSS_WEIGHT, option
from fairseq_lxsr.training.lightweight.terms.term import Batch, Encoded, Setting, Term

SIM_REDUCTIONS = ("pairs", "sum")


@dataclass
class SimilarityOptions(FairseqDataclass):
    sim_weight: float = option("weight of the sim loss; 0 leaves it out", 2.0, LOSS_WEIGHT)
    sim_reduction: ChoiceEnum(SIM_REDUCTIONS) = option(  # type: ignore[valid-type]
        "sim over its B x B cells divided by the B pairs, or their plain sum (the released code)",
        "pairs",
    )


class SimilarityTerm(Term):
    """-sum log cos of the difference of the two softmaxed similarity matrices."""

    name, Options = "sim", SimilarityOptions

    def __init__(self, weight: float, reduction: str):
        super().__init__(weight)
        self.reduction = reduction

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "SimilarityTerm | None":
        return cls(cfg.sim_weight, str(cfg.sim_reduction)) if cfg.sim_weight else None

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor:
        """Scale the sum over the cells; the caller divides by the B pairs, so a plain sum is
        multiplied by B.
        """
        scale = batch["nsentences"] if self.reduction == "sum" else 1
        return scale * losses.similarity_loss(
            encoded["embeddings"]["source"], encoded["embeddings"]["target"]
        )
