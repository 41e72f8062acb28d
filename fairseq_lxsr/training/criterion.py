"""The base of all criterions, whose logged values are sums over workers and batches, divided by
their counts.
"""

from collections.abc import Mapping
from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics


class SummedCriterion(FairseqCriterion):
    """A criterion whose logged values fairseq may sum over workers."""

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def log_means(outputs: list[dict[str, Any]], counts: Mapping[str, str]) -> dict[str, Any]:
    """Log means of the values named in `counts`, each with the name of its divisor, and return all
    sums by name.

    `outputs` are the values of each batch, which all have the same names; values that were not
    computed are skipped.
    """
    totals = {name: sum(output[name] for output in outputs) for name in outputs[0]}
    for name, count in counts.items():
        if name in totals:
            metrics.log_scalar(name, totals[name] / totals[count], totals[count], round=4)
    return totals
