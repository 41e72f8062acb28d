"""fairseq criterion `xling_sent_loss`: generative + align + sim, each with a weight of its own."""

from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from omegaconf import II
from torch import Tensor

from fairseq_lxsr import losses
from fairseq_lxsr.criterions._logging import log_means
from fairseq_lxsr.criterions.gather import gather_rows
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.losses.alignment import ALIGN_SIMILARITIES
from fairseq_lxsr.losses.similarity import SIM_FORMS

SIM_REDUCTIONS = ("pairs", "sum")

LOGGED = ("loss", "gen", "align", "sim", "distill", "acc_fwd", "acc_bwd")  # per pair


@dataclass
class XlingSentLossConfig(FairseqDataclass):
    gen_weight: float = field(
        default=1.0, metadata={"help": "weight of the generative loss chosen by --objective; 0 leaves it out"}
    )
    align_weight: float = field(default=2.0, metadata={"help": "weight of the contrastive align loss; 0 leaves it out"})
    sim_weight: float = field(default=2.0, metadata={"help": "weight of the sim loss; 0 leaves it out"})
    target_weights: ChoiceEnum(losses.TARGET_WEIGHTS) = field(  # type: ignore[valid-type]
        default="types",
        metadata={
            "help": "weight of a word in the generative targets: types counts it once (what the authors ran), "
            "counts as often as it occurs (Eq. 3 as printed)"
        },
    )
    align_similarity: ChoiceEnum(ALIGN_SIMILARITIES) = field(  # type: ignore[valid-type]
        default="inner", metadata={"help": "similarity in the align loss: inner product (the paper) or cosine"}
    )
    align_temperature: float = field(
        default=1.0,
        metadata={"help": "temperature that the similarities of align are divided by; 0.05 to 0.1 suits cosine"},
    )
    align_margin: float = field(
        default=0.0, metadata={"help": "margin subtracted from the similarity of true pairs in align, in its own unit"}
    )
    sim_form: ChoiceEnum(SIM_FORMS) = field(  # type: ignore[valid-type]
        default="cosine",
        metadata={"help": "sim loss: -log cos of the difference of softmaxes (the paper), or mse of the similarities"},
    )
    sim_reduction: ChoiceEnum(SIM_REDUCTIONS) = field(  # type: ignore[valid-type]
        default="pairs",
        metadata={"help": "sim over its B x B cells divided by the B pairs, or their plain sum (the released code)"},
    )
    gather_negatives: bool = field(
        default=False, metadata={"help": "align against the candidates of all workers; needs --batch-size"}
    )
    distill_weight: float = field(
        default=1.0, metadata={"help": "weight of the distillation loss, which --teacher-embeddings brings"}
    )
    distill_loss: ChoiceEnum(losses.DISTILL_LOSSES) = field(  # type: ignore[valid-type]
        default="mse",
        metadata={
            "help": "distance from the teacher's embeddings: mse or cosine, through a learnt projection to their "
            "width, or similarity, of all cosines within a batch"
        },
    )
    objective: str = II("task.objective")
    mask_same_text: bool = II("task.mask_same_text")
    batch_size: Optional[int] = II("dataset.batch_size")
    batch_size_valid: Optional[int] = II("dataset.batch_size_valid")


@register_criterion("xling_sent_loss", dataclass=XlingSentLossConfig)
class XlingSentLoss(FairseqCriterion):
    """L = gen_weight L_gen + align_weight L_align + sim_weight L_sim, in nats per pair (Mao et al. 2021, Eq. 8)."""

    def __init__(self, cfg: XlingSentLossConfig, task):
        super().__init__(task)
        self.cfg = cfg
        self.padding_idx = task.source_dictionary.pad()
        self.reconstructs = cfg.gen_weight != 0 and cfg.objective != "none"
        self.distills = task.teacher_dim is not None and cfg.distill_weight != 0
        if not (self.reconstructs or cfg.align_weight or cfg.sim_weight or self.distills):
            raise InputError(
                f"--objective {cfg.objective}, --gen-weight {cfg.gen_weight:g}, --align-weight 0, --sim-weight 0: "
                "nothing to train; expected an objective or another weight"
            )
        if task.hard_negatives is not None and not cfg.align_weight:
            raise InputError("--hard-negatives with --align-weight 0, the loss that reads them; leave one out")
        if cfg.align_temperature <= 0:
            raise InputError(f"--align-temperature {cfg.align_temperature}; expected more than 0")
        if cfg.mask_same_text and cfg.gather_negatives:
            raise InputError("--mask-same-text with --gather-negatives: workers do not exchange texts; choose one")
        if cfg.gather_negatives and cfg.batch_size is None:
            raise InputError("--gather-negatives needs --batch-size: workers exchange batches of equal size")
        if cfg.gather_negatives and (cfg.batch_size_valid or 0) > (cfg.batch_size or 0):
            raise InputError(
                f"--gather-negatives with --batch-size-valid {cfg.batch_size_valid}; expected at most --batch-size, "
                f"{cfg.batch_size}"
            )

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Returns the loss summed over the pairs, the number of pairs, and what is logged; nothing synchronises."""
        predict = (sample["source_predict"], sample["target_predict"]) if self.cfg.objective == "mlm" else None
        output = model(**sample["net_input"], predict=predict)
        u, v = output["source"], output["target"]
        pairs = sample["nsentences"]
        terms = {}
        if self.reconstructs:
            terms["gen"] = self.cfg.gen_weight, self.generative_loss(output["logits"], sample)
        if self.cfg.align_weight:
            terms["align"] = self.cfg.align_weight, self.align_loss(output, sample)
        if self.cfg.sim_weight:
            scale = pairs if self.cfg.sim_reduction == "sum" else 1
            terms["sim"] = self.cfg.sim_weight, scale * losses.similarity_loss(u, v, self.cfg.sim_form)
        # a worker that has run out of batches may train on one of validation, without a teacher, and must log the same
        if self.distills and ("teacher" in sample or model.training):
            terms["distill"] = self.cfg.distill_weight, self.distillation_loss(output, sample.get("teacher"))
        # nothing at all where distillation is alone and this split has no teacher
        loss = torch.stack(
            [u.new_zeros((), dtype=torch.float32), *(weight * term for weight, term in terms.values())]
        ).sum()
        forward, backward = losses.in_batch_accuracy(u, v)
        logged = {
            "loss": loss.detach(),
            **{name: term.detach() for name, (_, term) in terms.items()},
            "acc_fwd": forward,
            "acc_bwd": backward,
            "ntokens": sample["ntokens"],
            "nsentences": pairs,
            "sample_size": pairs,
        }
        return loss, pairs, logged

    def generative_loss(self, logits: Tensor, sample: dict) -> Tensor:
        hidden = sample["source_hidden"], sample["target_hidden"]
        if self.cfg.objective == "mlm":
            places = sample["source_hidden_index"], sample["target_hidden_index"]
            return losses.token_loss(logits, hidden, places, self.padding_idx)
        tokens = sample["source_tokens"], sample["target_tokens"]
        targets = losses.sentence_targets(self.cfg.objective, tokens, hidden, self.padding_idx, self.cfg.target_weights)
        return losses.sentence_loss(logits, *targets)

    def distillation_loss(self, output: dict[str, Any], teacher: Tensor | None) -> Tensor:
        """Mean of both sides, so that it counts once per pair; teacher [2B, E], sources first; 0 without one."""
        student = output["student"]
        if student is None:
            student = torch.cat((output["source"], output["target"]))
        if teacher is None:
            return 0 * student.float().sum()
        return losses.distillation_loss(student, teacher, self.cfg.distill_loss) / 2

    def align_loss(self, output: dict[str, Any], sample: dict) -> Tensor:
        """`output` of the model on a batch."""
        u, v, log_scale = output["source"], output["target"], output["log_scale"]
        scale = 1 / self.cfg.align_temperature
        options = {
            "similarity": self.cfg.align_similarity,
            "scale": scale if log_scale is None else scale * log_scale.float().exp(),
            "margin": self.cfg.align_margin,
            "negative": output["negative"],
            "negative_of": sample.get("negative_of"),
            "same_text": same_text(sample["text_number"]) if self.cfg.mask_same_text else None,
        }
        if self.cfg.gather_negatives and self.cfg.batch_size and torch.distributed.is_initialized():
            all_u, all_v, first, is_candidate = gather_rows(u, v, capacity=self.cfg.batch_size)
            return losses.alignment_loss(u, v, all_u, all_v, first=first, is_candidate=is_candidate, **options)
        return losses.alignment_loss(u, v, **options)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        """Means per pair over all workers and batches, losses in nats."""
        totals = log_means(logging_outputs, dict.fromkeys(LOGGED, "sample_size"))
        pairs = totals["sample_size"]
        metrics.log_scalar("accuracy", (totals["acc_fwd"] + totals["acc_bwd"]) / (2 * pairs), pairs, round=4)


def same_text(numbers: Tensor) -> Tensor:
    """numbers [2, B], equal where source or target texts are -> [2, B, B] what is no negative: of v, of u."""
    equal = numbers[:, :, None] == numbers[:, None, :]  # [2, B, B]
    others = ~torch.eye(numbers.shape[1], dtype=torch.bool, device=numbers.device)
    return (equal & others).flip(0)
