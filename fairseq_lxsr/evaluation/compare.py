"""Compares two systems on the same units: difference, confidence interval and p, paired bootstrap
(Koehn 2004).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.score import Outcomes, Score
from fairseq_lxsr.options import BOOTSTRAP_DRAWS

SEED = 12345  # as in sacrebleu
BLOCK_DRAWS, BLOCK_NUMBERS = (
    100,
    10**7,
)  # draws that are computed together, and the largest count of numbers


@dataclass(frozen=True)
class Comparison:
    """One value of two systems on one task."""

    protocol: str
    task: str
    value: str
    metric: str
    first: float
    second: float
    low: float  # lower end of the 95 % interval of second - first
    high: float
    p: float

    @property
    def difference(self) -> float:
        return self.second - self.first


def paired_bootstrap(
    first: Outcomes, second: Outcomes, draws: int = BOOTSTRAP_DRAWS, seed: int = SEED
) -> tuple[float, float, float]:
    """Compute the 95 % interval of second - first, and p, by drawing units with replacement.

    p is two-sided: the share of draws whose difference, shifted to mean zero, is at least as far
    from zero as the observed difference (with one added to numerator and denominator).
    """
    one, two = first.parts, second.parts
    if one.shape != two.shape:
        raise InputError(f"{one.shape[1]:,} and {two.shape[1]:,} units; expected the same in both")
    units = one.shape[1]
    generator = np.random.default_rng(seed)
    differences = []
    block = max(1, min(BLOCK_DRAWS, BLOCK_NUMBERS // units))
    for start in range(0, draws, block):
        drawn = generator.multinomial(
            units, np.full(units, 1 / units), size=min(block, draws - start)
        )  # [b, U]
        differences.append(second.percent(two @ drawn.T) - first.percent(one @ drawn.T))
    found = np.concatenate(differences)
    observed = second.value - first.value
    low, high = np.percentile(found, [2.5, 97.5])
    beyond = (np.abs(found - found.mean()) >= abs(observed)).sum()
    return float(low), float(high), float((beyond + 1) / (draws + 1))


def compare(
    first: Sequence[Score], second: Sequence[Score], draws: int = BOOTSTRAP_DRAWS
) -> tuple[list[Comparison], list[str]]:
    """Compare every value that both have under equal settings; also return notes on what was not
    comparable.

    Of duplicate scores in a file the last is taken; a note says so where the models differ.
    """
    known = latest(first)
    results, unmatched = [], set()
    notes = [
        note
        for scores, which in ((first, "first"), (second, "second"))
        for note in _other_models(scores, which)
    ]
    for score in latest(second).values():
        other = known.pop(score.comparable, None)
        if other is None:
            notes.append(_unmatched(score, first))
            unmatched.add(_what(score))
            continue
        for name, outcomes in score.outcomes.items():
            if name in other.outcomes:
                bounds = paired_bootstrap(other.outcomes[name], outcomes, draws)
                values = other.outcomes[name].value, outcomes.value
                metric = str(score.settings.get("metric", ""))
                results.append(
                    Comparison(score.protocol, score.task, name, metric, *values, *bounds)
                )
    notes += [
        f"{_what(score)}: no counterpart in the second file"
        for score in known.values()
        if _what(score) not in unmatched
    ]
    return results, list(dict.fromkeys(notes))


def _what(score: Score) -> str:
    return " ".join(
        filter(None, (score.protocol, score.task, str(score.settings.get("metric", ""))))
    )


def latest(scores: Sequence[Score]) -> dict[Any, Score]:
    """Return the last score for every comparable key."""
    return {score.comparable: score for score in scores}


def _other_models(scores: Sequence[Score], which: str) -> Iterator[str]:
    last = latest(scores)
    for score in scores:
        model, taken = score.system, last[score.comparable].system
        if model != taken:
            yield f"{_what(score)}: the {which} file has it of {model} and, later, of {taken}, which is taken"


def _unmatched(score: Score, others: Sequence[Score]) -> str:
    """Explain why a score has no counterpart: which settings differ from the nearest score of the
    other file.
    """
    what = f"{score.protocol} {score.task}"
    alike = [
        other for other in others if (other.protocol, other.task) == (score.protocol, score.task)
    ]
    if not alike:
        return f"{what}: no counterpart in the first file"
    settings, own = [other.measured_alike for other in alike], score.measured_alike
    differing = [[k for k in own | other if own.get(k) != other.get(k)] for other in settings]
    names, nearest = min(zip(differing, settings, strict=True), key=lambda pair: len(pair[0]))
    differences = ", ".join(f"{name} {nearest.get(name)} and {own.get(name)}" for name in names)
    return f"{what}: measured differently ({differences}), so not compared"
