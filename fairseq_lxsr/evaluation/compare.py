"""Paired bootstrap comparison of two systems on the same units (Koehn 2004)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.score import Outcomes, Score
from fairseq_lxsr.options import BOOTSTRAP_DRAWS

# The seed that sacrebleu uses.
SEED = 12345
# Maximum size of a block of bootstrap draws: number of draws, and number of values in memory.
BLOCK_DRAWS = 100
BLOCK_NUMBERS = 10**7


@dataclass(frozen=True)
class Comparison:
    """Comparison of two systems by one metric on one task, in percent.

    Args:
        protocol: name of the protocol.
        task: name of the task.
        value: name of the value, for example P@1.
        metric: similarity metric of the score; empty if the protocol has only one.
        first: value of the first system.
        second: value of the second system.
        low: lower end of the 95 % confidence interval of second - first.
        high: upper end of the interval.
        p: two-sided p-value.
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

    @property
    def difference(self) -> float:
        """Value of the second system minus the value of the first."""
        return self.second - self.first


def paired_bootstrap(
    first: Outcomes, second: Outcomes, draws: int = BOOTSTRAP_DRAWS, seed: int = SEED
) -> tuple[float, float, float]:
    """Compute the p-value and 95 % confidence interval of the difference second - first.

    p is two-sided: the fraction of draws whose difference, shifted to mean zero, is at least as far
    from zero as the observed difference (with one added to numerator and denominator).

    Args:
        first: outcomes of the first system.
        second: outcomes of the second system on the same units.
        draws: number of bootstrap samples, each drawn with replacement.
        seed: random seed.

    Returns:
        Lower and upper end of the interval, in percent, and p.

    Raises:
        InputError: if the systems have different numbers of units.
    """
    first_parts = first.parts
    second_parts = second.parts
    if first_parts.shape != second_parts.shape:
        raise InputError(
            f"the systems have {first_parts.shape[1]:,} and {second_parts.shape[1]:,} units; "
            "expected the same number for both systems"
        )
    units = first_parts.shape[1]
    # Drawing units with replacement means drawing their counts from a multinomial distribution.
    uniform = np.full(units, 1 / units)
    generator = np.random.default_rng(seed)
    block = max(1, min(BLOCK_DRAWS, BLOCK_NUMBERS // units))
    blocks = []
    for start in range(0, draws, block):
        # How often each unit was drawn: [draws in the block, units].
        counts = generator.multinomial(units, uniform, size=min(block, draws - start))
        blocks.append(
            second.percent(second_parts @ counts.T) - first.percent(first_parts @ counts.T)
        )
    differences = np.concatenate(blocks)
    observed = second.value - first.value
    low, high = np.percentile(differences, [2.5, 97.5])
    # Under the null hypothesis the mean difference is zero, so the draws are shifted to it.
    beyond = (np.abs(differences - differences.mean()) >= abs(observed)).sum()
    return float(low), float(high), float((beyond + 1) / (draws + 1))


def pooled(scores: Sequence[Score], value: str) -> Outcomes:
    """Join the outcomes of one value over several tasks, for example both directions of a pair."""
    hits: list[float] = []
    for score in scores:
        hits += score.outcomes[value].hits
    return Outcomes(hits)


def compare(
    first: Sequence[Score], second: Sequence[Score], draws: int = BOOTSTRAP_DRAWS
) -> tuple[list[Comparison], list[str]]:
    """Compare all values that both systems have for the same settings.

        results, notes = compare(read_scores("a.jsonl"), read_scores("b.jsonl"))

    Args:
        first: scores of the first system.
        second: scores of the second system.
        draws: number of bootstrap samples, each drawn with replacement.

    Returns:
        The comparisons, and notes on scores that could not be compared. If a
        file has several comparable scores, the last one is used; a note is added if their models
        differ.
    """
    first_scores = latest(first)
    results: list[Comparison] = []
    notes = [*_conflicting_models(first, "first"), *_conflicting_models(second, "second")]
    # Add only one note per task.
    noted = set()
    for score in latest(second).values():
        counterpart = first_scores.pop(score.comparable, None)
        if counterpart is None:
            notes.append(_describe_mismatch(score, first))
            noted.add(_label(score))
            continue
        results += _compare_values(counterpart, score, draws)
    for score in first_scores.values():
        if _label(score) not in noted:
            notes.append(f"{_label(score)}: no counterpart in the second file")
    return results, list(dict.fromkeys(notes))


def _compare_values(first: Score, second: Score, draws: int) -> Iterator[Comparison]:
    metric = str(second.settings.get("metric", ""))
    for name, outcomes in second.outcomes.items():
        if name not in first.outcomes:
            continue
        low, high, p = paired_bootstrap(first.outcomes[name], outcomes, draws)
        yield Comparison(
            second.protocol,
            second.task,
            name,
            metric,
            first.outcomes[name].value,
            outcomes.value,
            low,
            high,
            p,
        )


def _label(score: Score) -> str:
    """Return the protocol, task and metric of a score, for use in notes."""
    names = (score.protocol, score.task, str(score.settings.get("metric", "")))
    return " ".join(filter(None, names))


def latest(scores: Sequence[Score]) -> dict[Any, Score]:
    """Return the most recent score for each comparable key."""
    return {score.comparable: score for score in scores}


def _conflicting_models(scores: Sequence[Score], file: str) -> Iterator[str]:
    """Yield a note for every score that a later score from another model replaces."""
    last = latest(scores)
    for score in scores:
        model = score.system
        used = last[score.comparable].system
        if model != used:
            yield f"{_label(score)}: scores of {model} and {used} in the {file} file; using {used}"


def _describe_mismatch(score: Score, candidates: Sequence[Score]) -> str:
    """Explain why a score has no counterpart among the scores of the first file.

    Only the candidate with the fewest different settings is reported.
    """
    task = f"{score.protocol} {score.task}"
    settings = score.measurement
    mismatches: list[list[str]] = []
    for candidate in candidates:
        if (candidate.protocol, candidate.task) == (score.protocol, score.task):
            mismatches.append(_differences(candidate.measurement, settings))
    if not mismatches:
        return f"{task}: no counterpart in the first file"
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
