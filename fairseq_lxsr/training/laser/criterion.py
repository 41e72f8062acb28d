"""fairseq criterion `xling_translation_loss`: translation loss with an optional constraint."""

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
# Weight of the translation loss if there is a distance constraint; otherwise, it is 1.
TRANSLATION_WEIGHT = 0.5


@dataclass
class XlingTranslationLossConfig(FairseqDataclass):
    label_smoothing: float = option(
        "label smoothing: fraction of the target distribution that is spread over all pieces",
        0.1,
        below(1),
    )
    constraint: ChoiceEnum(("none", *CONSTRAINTS)) = option(  # type: ignore[valid-type]
        "distance to minimize between translations: norm (divided by the mean norm of all "
        "embeddings), norm_of_mean (divided by the norm of the mean embedding), norm_detached and "
        "norm_of_mean_detached (the same, without a gradient through the divisor), angular (angle "
        "between the embeddings), none (trains on translation only)",
        "none",
    )
    constraint_weight: float = option("weight of the distance constraint (beta)", 0.25, LOSS_WEIGHT)
    negative_weight: float = option(
        "weight of the negative term in the constraint (lambda)", 0.5, LOSS_WEIGHT
    )
    constraint_margin: float = option(
        "margin by which negatives must be farther away than the translation (m)", 0.5, MARGIN
    )
    negatives: int = option(
        "number of random negatives per sentence and direction (N)", 20, at_least(1)
    )


# Options that have no effect without a distance constraint.
CONSTRAINT_OPTIONS = ("constraint_weight", "negative_weight", "constraint_margin", "negatives")


def check_constraint(cfg: XlingTranslationLossConfig) -> None:
    """Reject options of the distance constraint if it is not used."""
    if cfg.constraint != "none":
        return
    defaults = XlingTranslationLossConfig()
    for name in CONSTRAINT_OPTIONS:
        value = getattr(cfg, name)
        if value != getattr(defaults, name):
            raise InputError(
                f"--{name.replace('_', '-')} {value} requires a distance constraint; set "
                f"--constraint {', '.join(CONSTRAINTS)}"
            )


@register_criterion("xling_translation_loss", dataclass=XlingTranslationLossConfig)
class XlingTranslationLoss(SummedCriterion):
    """Translation loss with an optional distance constraint (Li and Mak 2020), in nats.

    Without a constraint, the loss is L_translation. With one, it is 1/2 L_translation + beta
    (L_pair + lambda L_neg); see `losses.distance`.

    As in the authors' code, sums over the pieces and over the pairs of a batch are both divided by
    the number of pieces.
    """

    def __init__(self, cfg: XlingTranslationLossConfig, task):
        super().__init__(task)
        check_constraint(cfg)
        self.cfg = cfg
        # Metrics that --best-checkpoint-metric accepts.
        self.metrics: tuple[str, ...] = ("loss", "nll_loss", "ppl")
        if cfg.constraint != "none":
            self.metrics += ("pair", "negative", "accuracy")

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Compute the loss of a batch without waiting for the device.

        Returns:
            The summed loss, the number of pieces, and the values to log.
        """
        has_constraint = self.cfg.constraint != "none"
        num_pieces = sample["ntokens"]
        # Target embeddings are only needed for the distance constraint.
        logits, embeddings = model(
            **sample["net_input"],
            positions=sample["target_positions"],
            target_tokens=sample["target_tokens"] if has_constraint else None,
        )
        gold = sample["target"].flatten()[sample["target_positions"]]
        smoothed, nll = losses.label_smoothed_cross_entropy(logits, gold, self.cfg.label_smoothing)
        loss = smoothed.sum()
        logged = {
            "nll_loss": nll.sum(),
            "ntokens": num_pieces,
            "nsentences": sample["nsentences"],
            "sample_size": num_pieces,
        }
        if has_constraint:
            u = embeddings["source"]
            v = embeddings["target"]
            pair, negative = self.constraint(u, v)
            distance = pair + self.cfg.negative_weight * negative
            loss = TRANSLATION_WEIGHT * loss + self.cfg.constraint_weight * distance
            forward, backward = losses.in_batch_accuracy(losses.cosine_similarities(u, v).values)
            logged |= {
                "pair": pair.detach(),
                "negative": negative.detach(),
                "accuracy": (forward + backward) / 2,
            }
        return loss, num_pieces, logged | {"loss": loss.detach()}

    def constraint(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute L_pair and L_neg from source and target embeddings, [B, E] each.

        Training samples negatives from the batch; validation uses the whole batch.
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
        """Log means over all workers and batches: losses in nats per piece, distances per pair."""
        counts = {
            "loss": "sample_size",
            "nll_loss": "sample_size",
            "pair": "nsentences",
            "negative": "nsentences",
            "accuracy": "nsentences",
        }
        log_means(logging_outputs, counts)
        metrics.log_derived("ppl", lambda meters: math.exp(min(100, meters["nll_loss"].avg)))
