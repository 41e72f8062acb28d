"""fairseq criterion `xling_sent_loss`: the sum of the terms that the task's options ask for."""

from dataclasses import dataclass

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_lxsr import losses
from fairseq_lxsr.training.criterion import SummedCriterion, log_means

COUNTS = ("ntokens", "nsentences", "sample_size")  # all other logged values are sums over pairs


@dataclass
class XlingSentLossConfig(FairseqDataclass):
    """Empty: a term declares its options in `terms`; they belong to the task, which makes the
    batches.
    """


@register_criterion("xling_sent_loss", dataclass=XlingSentLossConfig)
class XlingSentLoss(SummedCriterion):
    """L = sum of weight x term, in nats per pair (Mao et al. 2021, Eq. 7)."""

    def __init__(self, task):
        super().__init__(task)
        self.terms = [term for term in task.terms if term.weight]
        # what validation can choose the best checkpoint by
        self.metrics = (
            "loss",
            *(term.name for term in self.terms),
            "acc_fwd",
            "acc_bwd",
            "accuracy",
        )

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Compute the loss summed over the pairs, their number, and the logged values, without
        synchronizing.
        """
        encoded = model(sample)
        u, v = encoded["embeddings"]["source"], encoded["embeddings"]["target"]
        encoded["cosines"] = losses.cosine_similarities(u, v)  # once for the loss and the accuracy
        # the sum is empty where distillation is the only term and this split has no teacher
        weighted, logged = [u.new_zeros((), dtype=torch.float32)], {}
        for term in self.terms:
            value = term.loss(encoded, sample, model.training)
            if value is not None:
                weighted.append(term.weight * value)
                logged[term.name] = value.detach()
        loss = torch.stack(weighted).sum()
        forward, backward = losses.in_batch_accuracy(encoded["cosines"])
        pairs = sample["nsentences"]
        counts = {"ntokens": sample["ntokens"], "nsentences": pairs, "sample_size": pairs}
        return (
            loss,
            pairs,
            {"loss": loss.detach(), **logged, "acc_fwd": forward, "acc_bwd": backward, **counts},
        )

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        """Log means per pair over all workers and batches, losses in nats."""
        names = [name for name in logging_outputs[0] if name not in COUNTS]
        totals = log_means(logging_outputs, dict.fromkeys(names, "sample_size"))
        pairs = totals["sample_size"]
        metrics.log_scalar(
            "accuracy", (totals["acc_fwd"] + totals["acc_bwd"]) / (2 * pairs), pairs, round=4
        )
