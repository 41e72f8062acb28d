"""The paired bootstrap against a plain loop, several runs of a system, and what may not be
compared."""

from dataclasses import replace

import numpy as np
import pytest

from fairseq_lxsr import __version__
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.compare import compare, compare_runs, holm, paired_bootstrap
from fairseq_lxsr.evaluation.score import Outcomes, Score, from_hits

RNG = np.random.default_rng(0)
FIRST = Outcomes((RNG.random(300) < 0.6).astype(int).tolist())
SECOND = Outcomes(np.maximum(FIRST.hits, RNG.random(300) < 0.2).astype(int).tolist())


def score(outcomes: Outcomes, model: str, **settings) -> Score:
    return from_hits(
        "xsr", "en->fr", {"P@1": outcomes}, {"queries": 300} | settings | {"model": model}
    )


def test_interval_of_a_plain_loop(monkeypatch):
    low, high, p = paired_bootstrap([FIRST], [SECOND], draws=4000)
    rng, a, b = np.random.default_rng(5), np.array(FIRST.hits), np.array(SECOND.hits)
    rows = [rng.integers(0, len(a), len(a)) for _ in range(4000)]  # units drawn one by one
    slow = np.percentile([100 * (b[row].mean() - a[row].mean()) for row in rows], [2.5, 97.5])
    np.testing.assert_allclose([low, high], slow, atol=0.35)
    assert low > 0
    assert p < 0.01
    # how many fit in memory
    monkeypatch.setattr("fairseq_lxsr.evaluation.compare.BLOCK_NUMBERS", 300)
    assert paired_bootstrap([FIRST], [SECOND], draws=4000) == (low, high, p)


def test_equal_systems_do_not_differ():
    assert paired_bootstrap([FIRST], [FIRST]) == (0, 0, 1)
    shuffled = Outcomes(RNG.permutation(FIRST.hits).tolist())
    low, high, p = paired_bootstrap([FIRST], [shuffled])
    assert low < 0 < high
    assert p > 0.5
    with pytest.raises(InputError, match="300 and 299"):
        paired_bootstrap([FIRST], [Outcomes(FIRST.hits[1:])])


def test_ratios_of_sums():
    """F1-like outcomes: half of the units count nothing."""
    of = [2, 0] * 150
    low, high, _ = paired_bootstrap([Outcomes([0] * 300, of)], [Outcomes([2, 0] * 150, of)])
    assert low == high == 100


def test_correlations_of_a_plain_loop():
    generator = np.random.default_rng(3)
    wanted = generator.integers(0, 5, 40).astype(float)
    samples = [wanted + generator.standard_normal(40), wanted + 3 * generator.standard_normal(40)]
    one, two = (Outcomes(sample.tolist(), wanted.tolist(), correlation=True) for sample in samples)
    assert one.value == pytest.approx(100 * np.corrcoef(samples[0], wanted)[0, 1])
    low, high, _ = paired_bootstrap([one], [two], draws=200, seed=5)
    generator, differences = np.random.default_rng(5), []
    for _ in range(200):
        drawn = np.repeat(np.arange(40), generator.multinomial(40, np.full(40, 1 / 40)))
        values = [100 * np.corrcoef(sample[drawn], wanted[drawn])[0, 1] for sample in samples]
        differences.append(values[1] - values[0])
    assert (low, high) == pytest.approx(tuple(np.percentile(differences, [2.5, 97.5])))
    assert Outcomes([1, 1], [2, 3], correlation=True).value == 0  # units that are all alike
    close = Outcomes([1 + 1e-12, 1 + 2e-12, 1 + 4e-12], [1, 2, 4], correlation=True)
    assert close.value == pytest.approx(100, abs=0.1)


def test_what_was_measured_alike_is_compared():
    [result], notes = compare([score(FIRST, "a")], [score(SECOND, "b")])
    assert (result.first, result.second, notes) == (FIRST.value, SECOND.value, [])
    assert result.difference == pytest.approx(SECOND.value - FIRST.value)
    assert result.low < result.difference < result.high


NN, CSLS = score(FIRST, "a", metric="nn"), score(FIRST, "a", metric="csls")
OTHERWISE = {  # two files, whether FIRST and SECOND are compared, and fragments of the notes
    "seed": (
        *([score(FIRST, "a", seed=1)], [score(SECOND, "b", seed=2)], False),
        ("xsr en->fr", "seed 1 and 2"),
    ),
    "task": (
        *([score(FIRST, "a")], [replace(score(SECOND, "b"), task="en->de")], False),
        *(
            ("xsr en->de", "first file"),
            ("xsr en->fr", "second file"),
        ),
    ),
    "version": (
        *([replace(score(FIRST, "a"), version="0.0.1")], [score(SECOND, "b")], False),
        ("xsr en->fr", f"version 0.0.1 and {__version__}"),
    ),
    "metric of the first": (
        *([NN, CSLS], [score(SECOND, "b", metric="nn")], True),
        ("xsr en->fr csls", "second file"),
    ),
    "metric of the second": (
        *([NN], [score(SECOND, "b", metric="nn"), CSLS], True),
        ("xsr en->fr", "metric nn and csls"),
    ),
    "two models": (
        *([score(SECOND, "a"), score(FIRST, "c")], [score(SECOND, "b")], True),
        ("xsr en->fr", "first file", "a and c"),
    ),
    "a later score": ([score(FIRST, "a")], [score(FIRST, "b"), score(SECOND, "b")], True),
}


@pytest.mark.parametrize("case", OTHERWISE)
def test_what_was_measured_otherwise_is_named(case):
    first, second, compared, *notes = OTHERWISE[case]
    results, found = compare(first, second)
    assert [(result.first, result.second) for result in results] == [
        (FIRST.value, SECOND.value)
    ] * compared
    assert len(found) == len(notes)
    for note, fragments in zip(found, notes, strict=True):
        assert all(fragment in note for fragment in fragments), note


def runs_of(rng, difficulty: np.ndarray, spread: float, number: int) -> list[Outcomes]:
    """Draw the outcomes of runs of one system, whose quality varies from run to run."""
    runs = []
    for _ in range(number):
        chance = 1 / (1 + np.exp(difficulty + spread * rng.standard_normal()))
        runs.append(Outcomes((rng.random(len(chance)) < chance).astype(int).tolist()))
    return runs


def test_drawn_runs_of_a_plain_loop():
    rng = np.random.default_rng(4)
    first, second = (runs_of(rng, rng.normal(-1, 1, 200), 0.5, 3) for _ in range(2))
    low, high, _ = paired_bootstrap(first, second, draws=4000)
    hits = [np.array([run.hits for run in runs]) for runs in (first, second)]
    rng, differences = np.random.default_rng(6), []
    for _ in range(4000):
        rows = rng.integers(0, 200, 200)
        values = []
        for system in hits:
            by_run = 100 * system[:, rows].mean(axis=1)
            drawn = by_run[rng.integers(0, 3, 3)].mean()
            values.append(by_run.mean() + np.sqrt(3 / 2) * (drawn - by_run.mean()))
        differences.append(values[1] - values[0])
    slow = np.percentile(differences, [2.5, 97.5])
    np.testing.assert_allclose([low, high], slow, atol=0.6)


@pytest.mark.parametrize("number", [2, 3])
def test_interval_covers_the_random_start(number):
    """Two systems that are equal but for the random start of each run."""
    rng, covered = np.random.default_rng(7), {1: 0, number: 0}
    for _ in range(100):
        difficulty = rng.normal(-1.5, 1.5, 200)
        first, second = (runs_of(rng, difficulty, 0.5, number) for _ in range(2))
        for runs in covered:
            low, high, _ = paired_bootstrap(first[:runs], second[:runs], draws=100)
            covered[runs] += low <= 0 <= high
    assert covered[1] < 75
    assert covered[number] > 84


def test_runs_of_both_systems_are_compared():
    first = [[score(FIRST, "a1")], [score(SECOND, "a2")]]
    [result], notes = compare_runs(first, [[score(SECOND, "b")]])
    assert (result.first, result.second) == ((FIRST.value + SECOND.value) / 2, SECOND.value)
    assert notes == []
    [alone], _ = compare_runs(first[:1], [[score(SECOND, "b")]])
    assert result.high - result.low > 0
    assert alone == compare(first[0], [score(SECOND, "b")])[0][0]


def test_scores_that_one_run_lacks_are_named():
    first = [[score(FIRST, "a", metric="nn"), score(FIRST, "a", metric="csls")], [NN]]
    results, notes = compare_runs(first, [[score(SECOND, "b", metric="nn")]])
    assert len(results) == 1
    (note,) = notes
    assert "csls" in note
    assert "1 of the 2 first files" in note


def test_holm_is_that_of_the_paper():
    """The step-down method by hand: the least p times 4, the next times 3, ... and never less."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_p_values_of_a_table_are_corrected():
    scores = [score(FIRST, "a", metric=name) for name in ("nn", "csls", "margin")]
    others = [score(SECOND, "b", metric=name) for name in ("nn", "csls", "margin")]
    results, _ = compare(scores, others)
    assert [result.corrected_p for result in results] == [3 * result.p for result in results]
