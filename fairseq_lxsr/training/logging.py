"""Logging of all criterions: sums over workers and batches, divided by their counts."""

from collections.abc import Mapping
from typing import Any

from fairseq.logging import metrics


def log_means(outputs: list[dict[str, Any]], counts: Mapping[str, str]) -> dict[str, Any]:
    """Log means over all workers and batches.

    Args:
        outputs: logged values of each batch, summed over workers or not; all have the same names.
        counts: maps the name of each value to the name of its divisor; values that were not computed are skipped.

    Returns:
        the sums by name.
    """
    totals = {name: sum(output[name] for output in outputs) for name in outputs[0]}
    for name, count in counts.items():
        if name in totals:
            metrics.log_scalar(name, totals[name] / totals[count], totals[count], round=4)
    return totals
