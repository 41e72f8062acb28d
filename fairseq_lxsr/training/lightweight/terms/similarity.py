"""Term `sim`: two sentences must be as similar as their translations (Mao et al. 2021, Eq. 6)."""

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
    sim_weight: float = option("weight of the sim loss; 0 disables it", 2.0, LOSS_WEIGHT)
    sim_reduction: ChoiceEnum(SIM_REDUCTIONS) = option(  # type: ignore[valid-type]
        "sim loss normalization: pairs (divide the sum over all matrix entries by the number of "
        "pairs in the batch), sum (do not divide, as in the released code)",
        "pairs",
    )


class SimilarityTerm(Term):
    """Distance -sum log cos(pi/2 * difference) between softmax-normalized similarity matrices."""

    name, Options = "sim", SimilarityOptions

    def __init__(self, weight: float, reduction: str):
        super().__init__(weight)
        self.reduction = reduction

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "SimilarityTerm | None":
        if not cfg.sim_weight:
            return None
        return cls(cfg.sim_weight, str(cfg.sim_reduction))

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor:
        """Compute the loss, summed over all pairs of sentences in the batch."""
        embeddings = encoded["embeddings"]
        loss = losses.similarity_loss(embeddings["source"], embeddings["target"])
        if self.reduction == "sum":
            # fairseq divides the loss by the number of pairs.
            loss = batch["nsentences"] * loss
        return loss
