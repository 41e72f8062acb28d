"""Base class of all criterions. Logged values are averaged over all workers and batches."""

from collections.abc import Mapping
from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics


class SummedCriterion(FairseqCriterion):
    """A criterion that logs sums, which fairseq can add up across workers."""

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def log_means(outputs: list[dict[str, Any]], counts: Mapping[str, str]) -> dict[str, Any]:
    """Log means computed from summed values.

    Args:
        outputs: values of each batch; all batches have the same names.
        counts: maps the name of each value to log to the name of the count that it is divided by.
            Values that were not computed are skipped.

    Returns:
        The sums of all values, keyed by name.
    """
    totals = {name: sum(output[name] for output in outputs) for name in outputs[0]}
    for name, count in counts.items():
        if name in totals:
            metrics.log_scalar(name, totals[name] / totals[count], totals[count], round=4)
    return totals
