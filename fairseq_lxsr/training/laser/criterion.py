"""fairseq criterion `xling_translation_loss`: translation and, for cLASER and cT-LASER, the
distance constraint.
"""

import math
from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_lxsr import losses
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.losses.distance import DISTANCES
from fairseq_lxsr.options import LOSS_WEIGHT, MARGIN, at_least, below, option
from fairseq_lxsr.training.criterion import SummedCriterion, log_means

DETACHED = "_detached"
CONSTRAINTS = (*DISTANCES, f"norm{DETACHED}", f"norm_of_mean{DETACHED}")
TRANSLATION_WEIGHT = 0.5  # beside a constraint; alone, translation has 1


@dataclass
class XlingTranslationLossConfig(FairseqDataclass):
    label_smoothing: float = option("share of the target that is not the gold piece", 0.1, below(1))
    constraint: ChoiceEnum(("none", *CONSTRAINTS)) = option(  # type: ignore[valid-type]
        "distance between the embeddings of translations, which is to be small: norm of the difference "
        "in units of the mean norm (norm) or of the norm of the mean embedding (norm_of_mean), with _detached "
        "without gradient through that unit, or angular; none trains by translation alone",
        "none",
    )
    constraint_weight: float = option("weight beta of the constraint", 0.25, LOSS_WEIGHT)
    negative_weight: float = option(
        "weight lambda, in the constraint, of being nearer than negatives", 0.5, LOSS_WEIGHT
    )
    constraint_margin: float = option("margin m by which negatives are to be farther", 0.5, MARGIN)
    negatives: int = option("random negatives N of each sentence, each way", 20, at_least(1))


# what the other options have no effect without
CONSTRAINT_OPTIONS = ("constraint_weight", "negative_weight", "constraint_margin", "negatives")


def check_constraint(cfg: XlingTranslationLossConfig) -> None:
    """Refuse options of a constraint that is not there."""
    defaults = XlingTranslationLossConfig()
    changed = [name for name in CONSTRAINT_OPTIONS if getattr(cfg, name) != getattr(defaults, name)]
    if cfg.constraint == "none" and changed:
        name = f"--{changed[0].replace('_', '-')}"
        raise InputError(
            f"{name} {getattr(cfg, changed[0])} without --constraint; expected {', '.join(CONSTRAINTS)}"
        )


@register_criterion("xling_translation_loss", dataclass=XlingTranslationLossConfig)
class XlingTranslationLoss(SummedCriterion):
    """L = L_translation, or 1/2 L_translation + beta (L_pair + lambda L_neg), in nats (Li and Mak
    2020).

    The sums over the pieces and over the pairs of a batch are divided by the number of pieces, as
    the authors do.
    """

    def __init__(self, cfg: XlingTranslationLossConfig, task):
        super().__init__(task)
        check_constraint(cfg)
        self.cfg = cfg
        of_constraint = () if cfg.constraint == "none" else ("pair", "negative", "accuracy")
        # validation can choose the best checkpoint by these
        self.metrics = ("loss", "nll_loss", "ppl", *of_constraint)

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Compute the summed loss of the batch, the number of pieces, and the logged values,
        without synchronizing.
        """
        constrained = self.cfg.constraint != "none"
        pieces, pairs = sample["ntokens"], sample["nsentences"]
        logits, embeddings = model(
            **sample["net_input"],
            positions=sample["target_positions"],
            target_tokens=sample["target_tokens"] if constrained else None,
        )
        gold = sample["target"].flatten()[sample["target_positions"]]
        both = losses.label_smoothed_cross_entropy(logits, gold, self.cfg.label_smoothing)
        smoothed, nll = (part.sum() for part in both)
        logged = {"nll_loss": nll, "ntokens": pieces, "nsentences": pairs, "sample_size": pieces}
        loss = smoothed
        if constrained:
            u, v = embeddings["source"], embeddings["target"]
            pair, negative = self.constraint(u, v)
            distance = pair + self.cfg.negative_weight * negative
            loss = TRANSLATION_WEIGHT * smoothed + self.cfg.constraint_weight * distance
            forward, backward = losses.in_batch_accuracy(losses.cosine_similarities(u, v))
            logged |= {
                "pair": pair.detach(),
                "negative": negative.detach(),
                "accuracy": (forward + backward) / 2,
            }
        return loss, pieces, logged | {"loss": loss.detach()}

    def constraint(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute L_pair and L_neg, with random negatives in training, and with all of them in
        validation.
        """
        negatives = None
        if self.training and len(u) > 1:
            negatives = losses.draw_negatives(self.cfg.negatives, len(u), u.device)
        return losses.distance_constraint(
            u,
            v,
            metric=str(self.cfg.constraint).removesuffix(DETACHED),
            margin=self.cfg.constraint_margin,
            negatives=negatives,
            detach_scale=str(self.cfg.constraint).endswith(DETACHED),
        )

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        """Log means over all workers and batches: losses in nats per piece, the constraint's parts
        per pair.
        """
        of_pieces, of_pairs = ("loss", "nll_loss"), ("pair", "negative", "accuracy")
        log_means(
            logging_outputs,
            dict.fromkeys(of_pieces, "sample_size") | dict.fromkeys(of_pairs, "nsentences"),
        )
        metrics.log_derived("ppl", lambda meters: math.exp(min(100, meters["nll_loss"].avg)))
