"""Compares two systems on the same units by paired bootstrap (Koehn 2004).

Each system has one or several runs (Clark et al. 2011).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.score import Outcomes, Score
from fairseq_lxsr.options import BOOTSTRAP_DRAWS

# The default seed of sacrebleu.
SEED = 12345
# Maximum size of a block of bootstrap draws: number of draws, and number of values in memory.
BLOCK_DRAWS = 100
BLOCK_NUMBERS = 10**7
# Level below which a p-value is usually called significant.
SIGNIFICANCE_LEVEL = 0.05

# Maps `Score.comparable` to the latest score with this key in each run of a system.
RunScores = dict[Any, list[Score]]


@dataclass(frozen=True)
class Comparison:
    """Comparison of two systems by one metric on one task, in percent.

    Attributes:
        protocol: name of the protocol.
        task: name of the task.
        value: name of the value, for example P@1.
        metric: similarity metric of the score; empty if the protocol has only one.
        first: value of the first system, the mean of its runs.
        second: value of the second system, the mean of its runs.
        low: lower end of the 95 % confidence interval of second - first.
        high: upper end of the interval.
        p: two-sided p-value of this comparison alone.
        corrected_p: p-value adjusted for all comparisons that were made together, see `holm`.
    """

    protocol: str
    task: str
    value: str
    metric: str
    first: float
    second: float
    low: float
    high: float
    p: float
    corrected_p: float

    @property
    def difference(self) -> float:
        """Value of the second system minus the value of the first."""
        return self.second - self.first


def paired_bootstrap(
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    draws: int = BOOTSTRAP_DRAWS,
    seed: int = SEED,
) -> tuple[float, float, float]:
    """Compute the p-value and 95 % confidence interval of the difference second - first.

        low, high, p = paired_bootstrap([run_1, run_2, run_3], [other_1, other_2, other_3])

    The value of a system is the mean of its runs. Each draw uses the same units (such as queries)
    for all runs of both systems. If a system has several runs, the runs are also drawn with
    replacement, so that the interval includes the variation between training runs; with a single
    run, it includes only the choice of units.

    p is two-sided: the fraction of draws whose difference, shifted to mean zero, is at least as far
    from zero as the observed difference (with one added to numerator and denominator).

    Args:
        first: outcomes of each run of the first system.
        second: outcomes of each run of the second system on the same units.
        draws: number of bootstrap samples, each drawn with replacement.
        seed: random seed.

    Returns:
        Lower and upper end of the interval, in percent, and p.

    Raises:
        InputError: if the runs have different numbers of units.
    """
    first_parts = [run.parts for run in first]
    second_parts = [run.parts for run in second]
    units = first_parts[0].shape[1]
    for parts in (*first_parts, *second_parts):
        if parts.shape != first_parts[0].shape:
            raise InputError(
                f"the systems have {units:,} and {parts.shape[1]:,} units; "
                "expected the same number for both systems"
            )
    # Drawing units with replacement means drawing their counts from a multinomial distribution.
    uniform = np.full(units, 1 / units)
    generator = np.random.default_rng(seed)
    # Runs are drawn with a separate generator, so that the drawn units do not depend on the number
    # of runs.
    run_generator = np.random.default_rng([seed, 1])
    block = max(1, min(BLOCK_DRAWS, BLOCK_NUMBERS // units))
    blocks = []
    for start in range(0, draws, block):
        # How often each unit was drawn: [draws in the block, units].
        counts = generator.multinomial(units, uniform, size=min(block, draws - start))
        second_values = _draw_values(second, second_parts, counts, run_generator)
        first_values = _draw_values(first, first_parts, counts, run_generator)
        blocks.append(second_values - first_values)
    differences = np.concatenate(blocks)
    observed = _mean_value(second) - _mean_value(first)
    low, high = np.percentile(differences, [2.5, 97.5])
    # Under the null hypothesis the mean difference is zero, so the mean of the draws is subtracted.
    beyond = (np.abs(differences - differences.mean()) >= abs(observed)).sum()
    return float(low), float(high), float((beyond + 1) / (draws + 1))


def pooled(scores: Sequence[Score], value: str) -> Outcomes:
    """Join the outcomes of several tasks, such as both directions of a language pair.

    Args:
        scores: scores of the tasks.
        value: name of the value whose outcomes are joined, for example P@1.

    Returns:
        The outcomes of all tasks, in the order of the scores.
    """
    hits: list[float] = []
    for score in scores:
        hits += score.outcomes[value].hits
    return Outcomes(hits)


def _draw_values(
    runs: Sequence[Outcomes],
    parts: Sequence[np.ndarray],
    counts: np.ndarray,
    generator: np.random.Generator,
) -> np.ndarray:
    """Return the value of a system in each draw: the mean of runs drawn with replacement.

    Args:
        runs: outcomes of each run.
        parts: `Outcomes.parts` of each run.
        counts: how often each unit was drawn [draws, units].
        generator: draws the runs.

    Returns:
        Values in percent [draws].
    """
    values = []
    for run, parts_of_run in zip(runs, parts, strict=True):
        values.append(run.percent(parts_of_run @ counts.T))
    mean = np.mean(values, axis=0)
    number = len(runs)
    if number == 1:
        return mean
    run_counts = generator.multinomial(number, np.full(number, 1 / number), size=len(counts))
    deviation = (run_counts.T * values).mean(axis=0) - mean
    # The mean of R runs drawn with replacement has (R - 1) / R times the variance of the mean of R
    # new runs, so its deviation is enlarged accordingly.
    return mean + math.sqrt(number / (number - 1)) * deviation


def _mean_value(runs: Sequence[Outcomes]) -> float:
    return math.fsum(run.value for run in runs) / len(runs)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple comparisons with Holm's step-down method (1979).

        holm([0.01, 0.04, 0.03])  # [0.03, 0.06, 0.06]

    If no systems differ, at least one adjusted p-value is below 0.05 with a probability of at most
    5 %, even for dependent comparisons.

    Args:
        p_values: p-values of the individual comparisons.

    Returns:
        Adjusted p-values in the same order.
    """
    corrected = [1.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        corrected[index] = min(1.0, largest)
    return corrected


def compare_runs(
    first: Sequence[Sequence[Score]],
    second: Sequence[Sequence[Score]],
    draws: int = BOOTSTRAP_DRAWS,
) -> tuple[list[Comparison], list[str]]:
    """Compare two systems, each trained once or several times with different seeds.

        results, notes = compare_runs(
            [read_scores("a.1.jsonl"), read_scores("a.2.jsonl")],
            [read_scores("b.1.jsonl"), read_scores("b.2.jsonl")],
        )

    Args:
        first: scores of each run of the first system.
        second: scores of each run of the second system. The numbers of runs may differ.
        draws: number of bootstrap samples, each drawn with replacement.

    Returns:
        Comparisons of all values that every run has for the same settings, and notes on scores that
        could not be compared. If a run has several comparable scores, the last one is used; a note
        is added if their models differ.
    """
    first_name = _name_of_files("first", first)
    second_name = _name_of_files("second", second)
    first_scores, first_notes = _scores_of_runs(first, first_name)
    second_scores, second_notes = _scores_of_runs(second, second_name)
    notes = [*first_notes, *second_notes]
    candidates = [runs[0] for runs in first_scores.values()]
    results: list[Comparison] = []
    # Add only one note per task.
    noted = set()
    for key, scores in second_scores.items():
        counterparts = first_scores.pop(key, None)
        if counterparts is None:
            notes.append(_describe_mismatch(scores[0], candidates, first_name))
            noted.add(_label(scores[0]))
            continue
        results += _compare_values(counterparts, scores, draws)
    for scores in first_scores.values():
        if _label(scores[0]) not in noted:
            notes.append(f"{_label(scores[0])}: no counterpart in the {second_name}")
    corrected = []
    p_values = holm([result.p for result in results])
    for result, corrected_p in zip(results, p_values, strict=True):
        corrected.append(replace(result, corrected_p=corrected_p))
    return corrected, list(dict.fromkeys(notes))


def _name_of_files(system: str, runs: Sequence[Sequence[Score]]) -> str:
    """Return the name that notes use for the files of a system: `first file` or `first files`."""
    if len(runs) == 1:
        return f"{system} file"
    return f"{system} files"


def _scores_of_runs(runs: Sequence[Sequence[Score]], files: str) -> tuple[RunScores, list[str]]:
    """Return the latest scores that all runs of a system share, and notes on the other scores."""
    notes: list[str] = []
    latest_scores = []
    for run in runs:
        notes += _conflicting_models(run, files)
        latest_scores.append(latest(run))
    scores: RunScores = {}
    for key in dict.fromkeys(key for run in latest_scores for key in run):
        present = [run[key] for run in latest_scores if key in run]
        if len(present) == len(runs):
            scores[key] = present
        else:
            notes.append(
                f"{_label(present[0])}: not compared, only in {len(present)} of the {len(runs)} "
                f"{files}"
            )
    return scores, notes


def _compare_values(
    first: Sequence[Score], second: Sequence[Score], draws: int
) -> Iterator[Comparison]:
    """Yield a comparison of each value that all runs have, with p not yet adjusted."""
    score = second[0]
    metric = str(score.settings.get("metric", ""))
    for name in score.outcomes:
        if not all(name in run.outcomes for run in (*first, *second)):
            continue
        first_outcomes = [run.outcomes[name] for run in first]
        second_outcomes = [run.outcomes[name] for run in second]
        low, high, p = paired_bootstrap(first_outcomes, second_outcomes, draws)
        yield Comparison(
            protocol=score.protocol,
            task=score.task,
            value=name,
            metric=metric,
            first=_mean_value(first_outcomes),
            second=_mean_value(second_outcomes),
            low=low,
            high=high,
            p=p,
            corrected_p=p,
        )


def _label(score: Score) -> str:
    """Return the protocol, task and metric of a score, for use in notes."""
    names = (score.protocol, score.task, str(score.settings.get("metric", "")))
    return " ".join(filter(None, names))


def latest(scores: Sequence[Score]) -> dict[Any, Score]:
    """Return the last score of each group of comparable scores, keyed by `Score.comparable`.

    Args:
        scores: scores, the newest last.

    Returns:
        A dict with one score per group.
    """
    return {score.comparable: score for score in scores}


def _conflicting_models(scores: Sequence[Score], files: str) -> Iterator[str]:
    """Yield a note for every score that was replaced by a later score of another model."""
    last = latest(scores)
    for score in scores:
        model = score.system
        used = last[score.comparable].system
        if model != used:
            yield f"{_label(score)}: scores of {model} and {used} in the {files}; using {used}"


def _describe_mismatch(score: Score, candidates: Sequence[Score], files: str) -> str:
    """Explain why a score has no counterpart among the scores in other files.

    Only the candidate with the fewest differing settings is reported.
    """
    task = f"{score.protocol} {score.task}"
    settings = score.measurement
    mismatches: list[list[str]] = []
    for candidate in candidates:
        if (candidate.protocol, candidate.task) == (score.protocol, score.task):
            mismatches.append(_differences(candidate.measurement, settings))
    if not mismatches:
        return f"{task}: no counterpart in the {files}"
    # The candidate with the fewest differences is most likely the one that the user meant.
    fewest = min(mismatches, key=len)
    return f"{task}: not compared, settings differ ({', '.join(fewest)})"


def _differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Describe the settings in which two scores differ, for example `seed 1 and 2`."""
    return [
        f"{name} {first.get(name)} and {second.get(name)}"
        for name in second | first
        if first.get(name) != second.get(name)
    ]
