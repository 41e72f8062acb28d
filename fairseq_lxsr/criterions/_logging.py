"""What every criterion logs: sums over workers and batches, divided by what they are counted in."""

from collections.abc import Mapping
from typing import Any

from fairseq.logging import metrics


def log_means(outputs: list[dict[str, Any]], counts: Mapping[str, str]) -> dict[str, Any]:
    """Log means over all workers and batches.

    Args:
        outputs: what the criterion returned for each batch, summed or not; all with the same names.
        counts: name of each value -> name of the number it is divided by; values that were not computed are left out.

    Returns:
        the sums.
    """
    totals = {name: sum(output[name] for output in outputs) for name in outputs[0]}
    for name, count in counts.items():
        if name in totals:
            metrics.log_scalar(name, totals[name] / totals[count], totals[count], round=4)
    return totals
