"""fairseq criterion `xling_translation_loss`: translation and, for cLASER and cT-LASER, the distance constraint."""

import math
from dataclasses import dataclass, field

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_lxsr import losses
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.losses.distance import DISTANCES
from fairseq_lxsr.options import LOSS_WEIGHT, MARGIN, at_least, below
from fairseq_lxsr.training.logging import log_means


@dataclass
class XlingTranslationLossConfig(FairseqDataclass):
    label_smoothing: float = field(
        default=0.1, metadata={"help": "share of the target that is not the gold piece", "range": below(1)}
    )
    constraint: ChoiceEnum(("none", *DISTANCES)) = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "distance between the embeddings of translations, which is to be small: norm of the difference "
            "in units of the mean norm (norm) or of the norm of the mean embedding (norm_of_mean), or angular; none "
            "trains by translation alone"
        },
    )
    translation_weight: float = field(
        default=0.5,
        metadata={"help": "weight of the translation loss beside the constraint; alone it has 1", "range": LOSS_WEIGHT},
    )
    constraint_weight: float = field(
        default=0.25, metadata={"help": "weight beta of the constraint", "range": LOSS_WEIGHT}
    )
    negative_weight: float = field(
        default=0.5,
        metadata={"help": "weight lambda, within the constraint, of being nearer than negatives", "range": LOSS_WEIGHT},
    )
    constraint_margin: float = field(
        default=0.5, metadata={"help": "margin m by which negatives are to be farther", "range": MARGIN}
    )
    negatives: int = field(
        default=20, metadata={"help": "random negatives N of each sentence, each way", "range": at_least(1)}
    )
    constraint_every: int = field(
        default=1,
        metadata={
            "help": "constrain every n-th pair of a batch only, n times as much: encoding targets costs less; "
            "accuracy in training is then among fewer",
            "range": at_least(1),
        },
    )
    detach_mean_norm: bool = field(
        default=False, metadata={"help": "no gradient through the unit that distances are measured in"}
    )


CONSTRAINT_OPTIONS = (
    "translation_weight",
    "constraint_weight",
    "negative_weight",
    "constraint_margin",
    "negatives",
    "constraint_every",
)


def check_options(cfg: XlingTranslationLossConfig) -> None:
    """Check the options of the constraint."""
    if cfg.detach_mean_norm and cfg.constraint not in ("norm", "norm_of_mean"):
        raise InputError(f"--detach-mean-norm with --constraint {cfg.constraint}; expected norm or norm_of_mean")
    defaults = XlingTranslationLossConfig()
    changed = [name for name in CONSTRAINT_OPTIONS if getattr(cfg, name) != getattr(defaults, name)]
    if cfg.constraint == "none" and changed:
        option = f"--{changed[0].replace('_', '-')}"
        raise InputError(f"{option} {getattr(cfg, changed[0])} without --constraint; expected {', '.join(DISTANCES)}")


@register_criterion("xling_translation_loss", dataclass=XlingTranslationLossConfig)
class XlingTranslationLoss(FairseqCriterion):
    """L = L_translation, or 1/2 L_translation + beta (L_pair + lambda L_neg), in nats (Li and Mak 2020).

    The sums over the pieces and over the pairs of a batch are divided by the number of pieces, as the authors do.
    """

    def __init__(self, cfg: XlingTranslationLossConfig, task):
        super().__init__(task)
        check_options(cfg)
        self.cfg = cfg
        of_constraint = () if cfg.constraint == "none" else ("pair", "negative", "accuracy")
        self.metrics = ("loss", "nll_loss", "ppl", *of_constraint)  # validation can choose the best checkpoint by these

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Compute the summed loss of the batch, the number of pieces, and the logged values, without synchronizing."""
        constrained = self.cfg.constraint != "none"
        pieces, pairs = sample["ntokens"], sample["nsentences"]
        # at least two pairs, because a single one has no negatives
        some = slice(None, None, max(1, min(self.cfg.constraint_every, pairs // 2)) if self.training else 1)
        logits, embeddings = model(
            **sample["net_input"],
            positions=sample["target_positions"],
            target_tokens=sample["target_tokens"][some] if constrained else None,
        )
        gold = sample["target"].flatten()[sample["target_positions"]]
        smoothed, nll = (
            part.sum() for part in losses.label_smoothed_cross_entropy(logits, gold, self.cfg.label_smoothing)
        )
        logged = {"nll_loss": nll, "ntokens": pieces, "nsentences": pairs, "sample_size": pieces}
        loss = smoothed
        if constrained:
            u, v = embeddings["source"][some], embeddings["target"]
            share = pairs / len(u)
            pair, negative = (share * part for part in self.constraint(u, v))
            loss = self.cfg.translation_weight * smoothed + self.cfg.constraint_weight * (
                pair + self.cfg.negative_weight * negative
            )
            forward, backward = losses.in_batch_accuracy(losses.cosine_similarities(u, v))
            accuracy = share * (forward + backward) / 2
            logged |= {"pair": pair.detach(), "negative": negative.detach(), "accuracy": accuracy}
        return loss, pieces, logged | {"loss": loss.detach()}

    def constraint(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute L_pair and L_neg, with random negatives in training, and with all of them in validation."""
        negatives = None
        if self.training and len(u) > 1:
            negatives = losses.draw_negatives(self.cfg.negatives, len(u), u.device)
        return losses.distance_constraint(
            u,
            v,
            metric=self.cfg.constraint,
            margin=self.cfg.constraint_margin,
            negatives=negatives,
            detach_scale=self.cfg.detach_mean_norm,
        )

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        """Log means over all workers and batches: losses in nats per piece, the constraint's parts per pair."""
        of_pieces, of_pairs = ("loss", "nll_loss"), ("pair", "negative", "accuracy")
        log_means(logging_outputs, dict.fromkeys(of_pieces, "sample_size") | dict.fromkeys(of_pairs, "nsentences"))
        metrics.log_derived("ppl", lambda meters: math.exp(min(100, meters["nll_loss"].avg)))
