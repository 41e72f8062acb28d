"""Formats scores as tables: one row per task, one column per value, means in the last row."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.evaluation.score import Score

TRANSFER = ("mldoc", "titles", "xnli")
# Values that are not percentages: shown with more digits, and excluded from means.
NOT_PERCENT = {"threshold"}


def format_table(rows: Mapping[str, Mapping[str, float]], digits: int = 1) -> str:
    """Format rows of named numbers as a table with aligned columns.

        print(format_table({"en->fr": {"P@1": 93.3}, "fr->en": {"P@1": 92.8}}))

    Args:
        rows: numbers by row and column; columns appear in the order of their first use.
        digits: number of decimals.
    """
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    name_width = max(map(len, [*rows, ""]))
    widths = [max(8, len(column) + 2) for column in columns]
    lines = [_format_row("", columns, name_width, widths)]
    for name, row in rows.items():
        cells = [f"{row[column]:.{digits}f}" if column in row else "" for column in columns]
        lines.append(_format_row(name, cells, name_width, widths))
    return "\n".join(lines)


def _format_row(name: str, cells: Sequence[str], name_width: int, widths: Sequence[int]) -> str:
    aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return (name.ljust(name_width) + "".join(aligned)).rstrip()


def format_value(name: str, value: float) -> str:
    """Format a value of a score: a percentage with one decimal, other values with four."""
    digits = 4 if name in NOT_PERCENT else 1
    return f"{value:.{digits}f}"


def score_label(score: Score, scores: Sequence[Score]) -> str:
    """Return protocol, task, and the settings that distinguish scores of this task.

    Args:
        score: the score to name.
        scores: all scores that are shown together.
    """
    task = (score.protocol, score.task)
    all_settings = []
    for candidate in scores:
        if (candidate.protocol, candidate.task) == task:
            all_settings.append(candidate.measurement)
    parts = [" ".join(task)]
    for name, value in score.measurement.items():
        if all(settings.get(name) == value for settings in all_settings):
            continue
        parts.append(str(value) if name == "metric" else f"{name} {value}")
    return ", ".join(parts)


def scores_table(scores: Sequence[Score]) -> str:
    """Format one row per task, one column per value, and the means over all tasks.

    Columns are prefixed with the metric if the scores have several metrics.
    """
    has_metrics = len({str(score.settings.get("metric", "")) for score in scores}) > 1
    rows: dict[str, dict[str, float]] = {}
    for score in scores:
        prefix = ""
        if has_metrics:
            prefix = str(score.settings["metric"]).split("-")[0] + " "
        row = rows.setdefault(score.task, {})
        for name, value in score.values.items():
            if name not in NOT_PERCENT:
                row[f"{prefix}{name}"] = value
    if len(rows) > 1:
        rows["mean"] = _column_means(list(rows.values()))
    return format_table(rows)


def _column_means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average the columns that every row has."""
    means = {}
    for name in rows[0]:
        if all(name in row for row in rows):
            means[name] = float(np.mean([row[name] for row in rows]))
    return means


def systems_table(scores_by_system: Mapping[str, Sequence[Score]], value: str) -> str:
    """Format one metric of several systems as a table of systems and tasks, with means.

    Args:
        scores_by_system: maps the name of each system to its scores on the same tasks.
        value: name of the value to show, for example P@1. If a system has several metrics, its
            first metric is used.
    """
    rows: dict[str, dict[str, float]] = {}
    for system, scores in scores_by_system.items():
        row: dict[str, float] = {}
        for score in of_first_metric(scores):
            row[score.task] = score.values[value]
        row["mean"] = float(np.mean(list(row.values())))
        rows[system] = row
    return format_table(rows)


def of_first_metric(scores: Sequence[Score]) -> list[Score]:
    """Select the scores with the same similarity metric as the first one."""
    metric = scores[0].settings.get("metric")
    return [score for score in scores if score.settings.get("metric") == metric]


def transfer_means(scores: Sequence[Score], value: str = "accuracy") -> dict[str, float]:
    """Average a value over pairs of training and test language, as the T-LASER paper does.

    Returns:
        The means `same` (training language = test language), `cross` (different languages) and
        `all`. A mean over no pairs is omitted.
    """
    groups: dict[str, list[float]] = {"same": [], "cross": [], "all": []}
    for score in scores:
        train_language, test_language = score.task.split("->")
        groups["same" if train_language == test_language else "cross"].append(score.values[value])
        groups["all"].append(score.values[value])
    return {name: float(np.mean(values)) for name, values in groups.items() if values}


def transfer_table(scores: Sequence[Score], value: str = "accuracy") -> str:
    """Format a table of training languages (rows) and test languages (columns), and the means."""
    rows: dict[str, dict[str, float]] = {}
    for score in scores:
        train_language, test_language = score.task.split("->")
        rows.setdefault(f"train {train_language}", {})[test_language] = score.values[value]
    means = "  ".join(f"{name} {mean:.1f}" for name, mean in transfer_means(scores, value).items())
    return f"{value}\n{format_table(rows)}\nmeans: {means}"


def report_scores(scores: Sequence[Score]) -> str:
    """Format the scores of one protocol as tables, followed by their signatures.

    Args:
        scores: at least one score.
    """
    if scores[0].protocol in TRANSFER and len(scores) > 1:
        tables = [transfer_table(scores, value) for value in ("accuracy", "macro F1", "sd")]
        return "\n\n".join(tables) + "\n" + signatures(scores)
    parts = [scores_table(scores)]
    not_percent = {}
    for score in scores:
        not_percent[score.task] = {
            name: value for name, value in score.values.items() if name in NOT_PERCENT
        }
    if any(not_percent.values()):
        parts.append(format_table(not_percent, digits=4))
    return "\n".join([*parts, signatures(scores)])


def signatures(scores: Sequence[Score]) -> str:
    """Return one signature per metric, one per line.

    If a setting differs between tasks, its values are joined with +.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for score in scores:
        groups.setdefault(str(score.settings.get("metric")), []).append(score.signed_settings)
    return "\n".join(_joint_signature(scores[0].protocol, group) for group in groups.values())


def _joint_signature(protocol: str, group: Sequence[Mapping[str, Any]]) -> str:
    fields = [protocol]
    # Only tasks with long texts have the setting `long`.
    for name in max(group, key=len):
        values = dict.fromkeys(str(settings.get(name, "none")) for settings in group)
        fields.append(f"{name}:{'+'.join(values)}")
    return "|".join(fields)


PUBLISHED_FILE = Path(__file__).with_name("published.json")
CAUTION = "Published results from other training data and other test text, for orientation only"


@dataclass(frozen=True)
class Published:
    """Published values of one system.

    Args:
        protocol: name of the protocol.
        value: name of the value, for example accuracy.
        system: name of the system.
        values: values by task, in percent unless `value` includes another unit.
        source: paper or page that reports them.
        settings: settings of the paper, as in the signature of a score.
    """

    protocol: str
    value: str
    system: str
    values: dict[str, float]
    source: str
    settings: dict[str, str] = field(default_factory=dict)

    def is_comparable(self, score: Score) -> bool:
        """Return whether a score was computed with the paper's protocol and settings."""
        return self.protocol == score.protocol and self.settings.items() <= score.settings.items()


def published(protocol: str) -> list[Published]:
    """Return all published values of a protocol."""
    rows = json.loads(PUBLISHED_FILE.read_text(encoding="utf-8"))
    return [Published(**row) for row in rows if row["protocol"] == protocol]


def comparable_published(
    scores: Sequence[Score],
) -> tuple[dict[tuple[str, str], list[Published]], list[str]]:
    """Select the published values that were measured with the same settings as one of the scores.

    Returns:
        The published values by protocol and value, and one line for every source that is omitted
        because it used other settings.
    """
    selected: dict[tuple[str, str], list[Published]] = {}
    left_out: dict[str, None] = {}
    for protocol in dict.fromkeys(score.protocol for score in scores):
        for row in published(protocol):
            if any(map(row.is_comparable, scores)):
                selected.setdefault((row.protocol, row.value), []).append(row)
                continue
            settings = ", ".join(f"{name}:{value}" for name, value in row.settings.items())
            line = f"Not shown: {row.protocol} of {row.source}, measured with {settings}"
            left_out[line] = None
    return selected, list(left_out)


def published_table(scores: Sequence[Score]) -> str:
    """Format the published values that are comparable to scores, and list sources that are not.

    Return an empty string if no values of these protocols have been published.
    """
    selected, left_out = comparable_published(scores)
    blocks = []
    for (protocol, value), rows in selected.items():
        sources = "; ".join(dict.fromkeys(row.source for row in rows))
        table = format_table({row.system: row.values for row in rows})
        blocks.append(f"{CAUTION}: {protocol}, {value}\n{table}\n({sources})")
    if left_out:
        blocks.append("\n".join(left_out))
    return "\n\n".join(blocks)
