"""fairseq criterion `xling_sent_loss`: weighted sum of the loss terms that the options enable."""

from dataclasses import dataclass

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_lxsr import losses
from fairseq_lxsr.training.criterion import SummedCriterion, log_means

# Logged values that are counts; all other values are sums over the pairs.
COUNTS = ("ntokens", "nsentences", "sample_size")


@dataclass
class XlingSentLossConfig(FairseqDataclass):
    """No options: the loss terms affect the batches, so their options belong to the task."""


@register_criterion("xling_sent_loss", dataclass=XlingSentLossConfig)
class XlingSentLoss(SummedCriterion):
    """L = sum of weight x term, in nats per pair (Mao et al. 2021, Eq. 7)."""

    def __init__(self, task):
        super().__init__(task)
        self.terms = [term for term in task.terms if term.weight]
        # Metrics that --best-checkpoint-metric accepts.
        self.metrics = (
            "loss",
            *(term.name for term in self.terms),
            "acc_fwd",
            "acc_bwd",
            "accuracy",
        )

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Compute the loss of a batch without waiting for the device.

        Returns:
            The loss, summed over the pairs; the number of pairs; and the values to log.
        """
        encoded = model(sample)
        u = encoded["embeddings"]["source"]
        v = encoded["embeddings"]["target"]
        # The cosines are needed for both the loss and the accuracy.
        encoded["cosines"] = losses.cosine_similarities(u, v)
        # Start with zero, because all terms may return None in validation.
        weighted = [u.new_zeros((), dtype=torch.float32)]
        logged = {}
        for term in self.terms:
            value = term.checked_loss(encoded, sample, model.training)
            if value is not None:
                weighted.append(term.weight * value)
                logged[term.name] = value.detach()
        loss = torch.stack(weighted).sum()
        forward, backward = losses.in_batch_accuracy(encoded["cosines"].values)
        pairs = sample["nsentences"]
        counts = {"ntokens": sample["ntokens"], "nsentences": pairs, "sample_size": pairs}
        return (
            loss,
            pairs,
            {"loss": loss.detach(), **logged, "acc_fwd": forward, "acc_bwd": backward, **counts},
        )

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        """Log means per pair over all workers and batches, with losses in nats."""
        names = [name for name in logging_outputs[0] if name not in COUNTS]
        totals = log_means(logging_outputs, dict.fromkeys(names, "sample_size"))
        pairs = totals["sample_size"]
        metrics.log_scalar(
            "accuracy", (totals["acc_fwd"] + totals["acc_bwd"]) / (2 * pairs), pairs, round=4
        )
