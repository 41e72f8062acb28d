"""Formats scores as tables: a row for each task, a column for each value, means in the last row."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.evaluation.score import Score

TRANSFER = ("mldoc", "titles", "xnli")
NOT_PERCENT = {"threshold"}  # shown as it is and not averaged


def format_table(rows: Mapping[str, Mapping[str, float]], digits: int = 1) -> str:
    """Format rows of named numbers; columns are aligned, in order of first appearance."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    first = max(map(len, [*rows, ""]))
    widths = [max(8, len(name) + 2) for name in columns]
    lines = [
        " " * first
        + "".join(name.rjust(width) for name, width in zip(columns, widths, strict=True))
    ]
    for name, row in rows.items():
        cells = (f"{row[column]:.{digits}f}" if column in row else "" for column in columns)
        lines.append(
            name.ljust(first)
            + "".join(c.rjust(width) for c, width in zip(cells, widths, strict=True))
        )
    return "\n".join(line.rstrip() for line in lines)


def scores_table(scores: Sequence[Score]) -> str:
    """Format tasks as rows, values as columns (named with the metric where there are several), and
    the mean.
    """
    metrics = list(dict.fromkeys(str(score.settings.get("metric", "")) for score in scores))
    rows: dict[str, dict[str, float]] = {}
    for score in scores:
        prefix = f"{str(score.settings['metric']).split('-')[0]} " if len(metrics) > 1 else ""
        values = {
            f"{prefix}{name}": value
            for name, value in score.values.items()
            if name not in NOT_PERCENT
        }
        rows.setdefault(score.task, {}).update(values)
    if len(rows) > 1:
        first, *others = rows.values()
        columns = [
            name for name in first if all(name in row for row in others)
        ]  # a mean is over all tasks
        rows["mean"] = {
            name: float(np.mean([row[name] for row in rows.values()])) for name in columns
        }
    return format_table(rows)


def transfer_means(scores: Sequence[Score], value: str = "accuracy") -> dict[str, float]:
    """Average over train and test languages as T-LASER reports: `same`, `cross` (where there are
    any), and `all`.
    """
    groups: dict[str, list[float]] = {"same": [], "cross": [], "all": []}
    for score in scores:
        trained, tested = score.task.split("->")
        groups["same" if trained == tested else "cross"].append(score.values[value])
        groups["all"].append(score.values[value])
    return {name: float(np.mean(values)) for name, values in groups.items() if values}


def transfer_table(scores: Sequence[Score], value: str = "accuracy") -> str:
    """Format train languages as rows and test languages as columns, then the means same, cross and
    all.
    """
    rows: dict[str, dict[str, float]] = {}
    for score in scores:
        trained, tested = score.task.split("->")
        rows.setdefault(f"train {trained}", {})[tested] = score.values[value]
    means = "  ".join(f"{name} {mean:.1f}" for name, mean in transfer_means(scores, value).items())
    return f"{value}\n{format_table(rows)}\nmeans: {means}"


def report_scores(scores: Sequence[Score]) -> str:
    """Format the table of the protocol, then every signature once."""
    if scores[0].protocol in TRANSFER and len(scores) > 1:
        shown = "\n\n".join(
            transfer_table(scores, value) for value in ("accuracy", "macro F1", "sd")
        )
    else:
        shown = scores_table(scores)
        apart = {
            score.task: {n: v for n, v in score.values.items() if n in NOT_PERCENT}
            for score in scores
        }
        if any(apart.values()):
            shown += "\n" + format_table(apart, digits=4)
    return f"{shown}\n{signatures(scores)}"


def signatures(scores: Sequence[Score]) -> str:
    """Return a signature for every metric; a setting that differs between tasks lists its values
    joined by +.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for score in scores:
        groups.setdefault(str(score.settings.get("metric")), []).append(score.signed_settings)
    lines = []
    for settings in groups.values():
        names = max(settings, key=len)  # `long` is there only where a text was
        values = {
            name: dict.fromkeys(str(each.get(name, "none")) for each in settings) for name in names
        }
        lines.append(
            "|".join(
                [
                    scores[0].protocol,
                    *(f"{name}:{'+'.join(found)}" for name, found in values.items()),
                ]
            )
        )
    return "\n".join(lines)


PUBLISHED_FILE = Path(__file__).with_name("published.json")
CAUTION = "Published, on other training data and other test text: an orientation, not a comparison"


@dataclass(frozen=True)
class Published:
    """Values of one system by task, in percent, and their source."""

    protocol: str
    value: str
    system: str
    values: dict[str, float]
    source: str
    settings: dict[str, str] = field(
        default_factory=dict
    )  # that the paper used, as in the signature of a score

    def stands_beside(self, score: Score) -> bool:
        """Return whether a score was measured by the same protocol, with the settings that the
        paper used.
        """
        return self.protocol == score.protocol and self.settings.items() <= score.settings.items()


def published(protocol: str) -> list[Published]:
    """Return all published values of a protocol."""
    rows = json.loads(PUBLISHED_FILE.read_text(encoding="utf-8"))
    return [Published(**row) for row in rows if row["protocol"] == protocol]


def published_beside(
    scores: Sequence[Score],
) -> tuple[dict[tuple[str, str], list[Published]], list[str]]:
    """Return the published values that were measured as one of the scores, by protocol and value.

    Beside them: a line for each source whose values are left out, because its paper measured
    otherwise.
    """
    shown: dict[tuple[str, str], list[Published]] = {}
    left_out: dict[str, None] = {}
    for row in (
        row
        for protocol in dict.fromkeys(score.protocol for score in scores)
        for row in published(protocol)
    ):
        if any(map(row.stands_beside, scores)):
            shown.setdefault((row.protocol, row.value), []).append(row)
        else:
            needed = ", ".join(f"{name}:{value}" for name, value in row.settings.items())
            left_out[f"Not shown: {row.protocol} of {row.source}, measured with {needed}"] = None
    return shown, list(left_out)


def published_table(scores: Sequence[Score]) -> str:
    """Format the published values beside these scores as tables with their sources; empty where
    there are none.
    """
    shown, left_out = published_beside(scores)
    blocks = []
    for (protocol, value), rows in shown.items():
        sources = "; ".join(dict.fromkeys(row.source for row in rows))
        table = format_table({row.system: row.values for row in rows})
        blocks.append(f"{CAUTION}: {protocol}, {value}\n{table}\n({sources})")
    return "\n\n".join([*blocks, *(["\n".join(left_out)] if left_out else [])])
