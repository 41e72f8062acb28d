"""Arranges the scores of several models in one table, with differences and intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_lxsr.embeddings.truncated import model_of
from fairseq_lxsr.evaluation.compare import paired_bootstrap
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.evaluation.tables import format_value, score_label

UNTRAINED = "-untrained"


@dataclass(frozen=True)
class ScoreTable:
    """Scores of several models on the same tests.

    Attributes:
        head: column names.
        rows: cells of each row; an empty string if a model has no such score.
        compared: names of the baseline and of the model that is compared with it; empty if
            nothing is compared.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    compared: Sequence[str]


def score_table(scores: Sequence[Score], names: Mapping[str, str], trained: str) -> ScoreTable:
    """Arrange scores with one row per test and value, and one column per model.

    If the trained model has scores, a column shows the difference to a baseline, with its 95 %
    interval by paired bootstrap. The baseline is the first model in `names` with scores, otherwise
    any other model.

    Args:
        scores: scores from `lxsr eval`; of equal tests the last is used.
        names: names of models by fingerprint.
        trained: fingerprint of the trained model; empty if unknown.
    """
    tests: dict[Any, dict[str, Score]] = {}
    systems: dict[str, str] = {}
    for score in scores:
        tests.setdefault(score.comparable, {})[score.system] = score
        systems[score.system] = str(score.settings.get("model"))
    head = ["test", "value"]
    for system, model in systems.items():
        head.append(f"{_name_of(model, names, trained)} ({system})")
    compared = _compared_systems(systems, names, trained)
    if compared:
        head.append("difference, 95 % interval")
    labelled = [next(iter(by_system.values())) for by_system in tests.values()]
    rows = []
    for score, by_system in zip(labelled, tests.values(), strict=True):
        values = dict.fromkeys(name for part in by_system.values() for name in part.values)
        for value in values:
            row = [score_label(score, labelled), value]
            for system in systems:
                row.append(_cell(by_system.get(system), value))
            if compared:
                row.append(_difference([by_system.get(system) for system in compared], value))
            rows.append(row)
    return ScoreTable(head, rows, [_name_of(systems[key], names, trained) for key in compared])


def _name_of(model: str, names: Mapping[str, str], trained: str) -> str:
    """Return what a model is called in the table, without its fingerprint."""
    if model.endswith(UNTRAINED):
        return "random weights"
    default = "trained model" if model == trained else "model"
    return names.get(model_of(model), default)


def _compared_systems(
    systems: Mapping[str, str], names: Mapping[str, str], trained: str
) -> list[str]:
    """Return the baseline and the trained model, or [] if one of them has no scores.

    Args:
        systems: models by system.
        names: names of models.
        trained: fingerprint of the trained model.
    """
    trained_systems = [system for system, model in systems.items() if model == trained]
    baselines = [system for system, model in systems.items() if model != trained]
    if not trained_systems or not baselines:
        return []
    # A named model comes first, random weights come last.
    baselines.sort(key=lambda system: (systems[system] not in names, UNTRAINED in system))
    return [baselines[0], trained_systems[0]]


def _cell(score: Score | None, value: str) -> str:
    if score is None or value not in score.values:
        return ""
    return format_value(value, score.values[value])


def _difference(pair: Sequence[Score | None], value: str) -> str:
    """Return the difference of two scores with its interval, or "" if they have no outcomes."""
    outcomes = []
    for score in pair:
        if score is None or value not in score.outcomes:
            return ""
        outcomes.append(score.outcomes[value])
    first, second = outcomes
    if len(first.hits) != len(second.hits):
        return ""
    low, high, _ = paired_bootstrap([first], [second])
    return f"{second.value - first.value:+.1f} ({low:+.1f} to {high:+.1f})"
