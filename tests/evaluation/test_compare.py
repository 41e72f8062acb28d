"""The paired bootstrap equals a plain loop; scores with different settings are not compared."""

from dataclasses import replace

import numpy as np
import pytest

from fairseq_lxsr import __version__
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.compare import compare_runs, holm, paired_bootstrap
from fairseq_lxsr.evaluation.score import Outcomes, Score, from_hits

RNG = np.random.default_rng(0)
FIRST = Outcomes((RNG.random(300) < 0.6).astype(int).tolist())
SECOND = Outcomes(np.maximum(FIRST.hits, RNG.random(300) < 0.2).astype(int).tolist())


def score(outcomes: Outcomes, model: str, **settings) -> Score:
    return from_hits(
        "xsr", "en->fr", {"P@1": outcomes}, {"queries": 300} | settings | {"model": model}
    )


def test_the_interval_is_that_of_a_plain_loop(monkeypatch):
    low, high, p_value = paired_bootstrap([FIRST], [SECOND], draws=4000)
    rng = np.random.default_rng(5)
    gains = 100.0 * (np.array(SECOND.hits) - np.array(FIRST.hits))
    differences = []
    for _ in range(4000):
        drawn = rng.integers(0, len(gains), len(gains))
        differences.append(gains[drawn].mean())
    expected = np.percentile(differences, [2.5, 97.5])
    np.testing.assert_allclose([low, high], expected, atol=0.35)
    assert low > 0
    assert p_value < 0.01
    # Smaller blocks, of which fewer numbers are in memory, change nothing.
    monkeypatch.setattr("fairseq_lxsr.evaluation.compare.BLOCK_NUMBERS", 300)
    assert paired_bootstrap([FIRST], [SECOND], draws=4000) == (low, high, p_value)


def test_equal_systems_do_not_differ():
    assert paired_bootstrap([FIRST], [FIRST]) == (0, 0, 1)
    shuffled = Outcomes(RNG.permutation(FIRST.hits).tolist())
    low, high, p_value = paired_bootstrap([FIRST], [shuffled])
    assert low < 0 < high
    assert p_value > 0.5
    with pytest.raises(InputError, match="300 and 299"):
        paired_bootstrap([FIRST], [Outcomes(FIRST.hits[1:])])


def test_units_without_a_total_do_not_change_a_ratio_of_sums():
    """An F1 has such units: sentences that are in no pair."""
    totals = [2, 0] * 150
    no_hits = Outcomes([0] * 300, totals)
    all_hits = Outcomes(totals, totals)
    low, high, _ = paired_bootstrap([no_hits], [all_hits])
    assert low == high == 100


def test_the_interval_of_correlations_is_that_of_a_plain_loop():
    rng = np.random.default_rng(3)
    gold = rng.integers(0, 5, 40).astype(float)
    close = gold + rng.standard_normal(40)
    noisy = gold + 3 * rng.standard_normal(40)
    first = Outcomes(close.tolist(), gold.tolist(), correlation=True)
    second = Outcomes(noisy.tolist(), gold.tolist(), correlation=True)
    assert first.value == pytest.approx(100 * np.corrcoef(close, gold)[0, 1])
    low, high, _ = paired_bootstrap([first], [second], draws=200, seed=5)
    rng = np.random.default_rng(5)
    differences = []
    for _ in range(200):
        drawn = np.repeat(np.arange(40), rng.multinomial(40, np.full(40, 1 / 40)))
        first_value = 100 * np.corrcoef(close[drawn], gold[drawn])[0, 1]
        second_value = 100 * np.corrcoef(noisy[drawn], gold[drawn])[0, 1]
        differences.append(second_value - first_value)
    assert (low, high) == pytest.approx(tuple(np.percentile(differences, [2.5, 97.5])))


def test_correlations_of_constant_and_of_nearly_constant_values():
    constant = Outcomes([1, 1], [2, 3], correlation=True)
    assert constant.value == 0
    nearly_constant = Outcomes([1 + 1e-12, 1 + 2e-12, 1 + 4e-12], [1, 2, 4], correlation=True)
    assert nearly_constant.value == pytest.approx(100, abs=0.1)


def test_scores_with_equal_settings_are_compared():
    [result], notes = compare_runs([[score(FIRST, "a")]], [[score(SECOND, "b")]])
    assert (result.first, result.second, notes) == (FIRST.value, SECOND.value, [])
    assert result.difference == pytest.approx(SECOND.value - FIRST.value)
    assert result.low < result.difference < result.high


NN = score(FIRST, "a", metric="nn")
CSLS = score(FIRST, "a", metric="csls")
SECOND_NN = score(SECOND, "b", metric="nn")


@pytest.mark.parametrize(
    ("first", "second", "note"),
    [
        pytest.param(
            [score(FIRST, "a", seed=1)],
            [score(SECOND, "b", seed=2)],
            ("xsr en->fr", "seed 1 and 2"),
            id="seed",
        ),
        pytest.param(
            [replace(score(FIRST, "a"), version="0.0.1")],
            [score(SECOND, "b")],
            ("xsr en->fr", f"version 0.0.1 and {__version__}"),
            id="version",
        ),
    ],
)
def test_scores_with_different_settings_are_named_and_not_compared(first, second, note):
    results, [message] = compare_runs([first], [second])
    assert results == []
    for fragment in note:
        assert fragment in message


def test_scores_of_different_tasks_are_named_and_not_compared():
    german = replace(score(SECOND, "b"), task="en->de")
    results, [first_note, second_note] = compare_runs([[score(FIRST, "a")]], [[german]])
    assert results == []
    assert "xsr en->de" in first_note
    assert "first file" in first_note
    assert "xsr en->fr" in second_note
    assert "second file" in second_note


@pytest.mark.parametrize(
    ("first", "second", "note"),
    [
        pytest.param(
            [NN, CSLS], [SECOND_NN], ("xsr en->fr csls", "second file"), id="metric of the first"
        ),
        pytest.param(
            [NN], [SECOND_NN, CSLS], ("xsr en->fr", "metric nn and csls"), id="metric of the second"
        ),
        pytest.param(
            [score(SECOND, "a"), score(FIRST, "c")],
            [score(SECOND, "b")],
            ("xsr en->fr", "first file", "a and c"),
            id="two models",
        ),
    ],
)
def test_scores_in_only_one_file_are_named(first, second, note):
    [result], [message] = compare_runs([first], [second])
    assert (result.first, result.second) == (FIRST.value, SECOND.value)
    for fragment in note:
        assert fragment in message


def test_the_last_score_of_a_model_is_compared():
    [result], notes = compare_runs([[score(FIRST, "a")]], [[score(FIRST, "b"), score(SECOND, "b")]])
    assert (result.first, result.second) == (FIRST.value, SECOND.value)
    assert notes == []


def runs_of(rng, difficulty: np.ndarray, spread: float, number: int) -> list[Outcomes]:
    """Draw the outcomes of runs of one system, whose quality varies from run to run."""
    runs = []
    for _ in range(number):
        chance = 1 / (1 + np.exp(difficulty + spread * rng.standard_normal()))
        runs.append(Outcomes((rng.random(len(chance)) < chance).astype(int).tolist()))
    return runs


def test_the_interval_over_runs_is_that_of_a_plain_loop():
    rng = np.random.default_rng(4)
    first = runs_of(rng, rng.normal(-1, 1, 200), 0.5, 3)
    second = runs_of(rng, rng.normal(-1, 1, 200), 0.5, 3)
    low, high, _ = paired_bootstrap(first, second, draws=4000)
    rng = np.random.default_rng(6)
    hits = [np.array([run.hits for run in runs]) for runs in (first, second)]
    differences = []
    for _ in range(4000):
        rows = rng.integers(0, 200, 200)
        values = []
        for system in hits:
            run_means = 100 * system[:, rows].mean(axis=1)
            drawn_mean = run_means[rng.integers(0, 3, 3)].mean()
            values.append(run_means.mean() + np.sqrt(3 / 2) * (drawn_mean - run_means.mean()))
        differences.append(values[1] - values[0])
    expected = np.percentile(differences, [2.5, 97.5])
    np.testing.assert_allclose([low, high], expected, atol=0.6)


@pytest.mark.parametrize("num_runs", [2, 3])
def test_the_interval_covers_the_variation_between_runs(num_runs):
    """The systems are equal, so about 95 of 100 intervals must contain 0; with single runs, fewer do."""
    rng = np.random.default_rng(7)
    covered = {1: 0, num_runs: 0}
    for _ in range(100):
        difficulty = rng.normal(-1.5, 1.5, 200)
        first = runs_of(rng, difficulty, 0.5, num_runs)
        second = runs_of(rng, difficulty, 0.5, num_runs)
        for count in covered:
            low, high, _ = paired_bootstrap(first[:count], second[:count], draws=100)
            covered[count] += low <= 0 <= high
    assert covered[1] < 75
    assert covered[num_runs] > 84


def test_runs_of_both_systems_are_compared():
    first = [[score(FIRST, "a1")], [score(SECOND, "a2")]]
    [result], notes = compare_runs(first, [[score(SECOND, "b")]])
    assert (result.first, result.second) == ((FIRST.value + SECOND.value) / 2, SECOND.value)
    assert notes == []
    assert result.high - result.low > 0


def test_scores_that_one_run_lacks_are_named():
    first = [[score(FIRST, "a", metric="nn"), score(FIRST, "a", metric="csls")], [NN]]
    results, notes = compare_runs(first, [[score(SECOND, "b", metric="nn")]])
    assert len(results) == 1
    (note,) = notes
    assert "csls" in note
    assert "1 of the 2 first files" in note


def test_holm_correction_by_hand():
    """The least of four p is multiplied by 4, the next by 3, ...; the results never decrease."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_p_values_of_a_table_are_corrected():
    first = [score(FIRST, "a", metric=name) for name in ("nn", "csls", "margin")]
    second = [score(SECOND, "b", metric=name) for name in ("nn", "csls", "margin")]
    results, _ = compare_runs([first], [second])
    assert len(results) == 3
    for result in results:
        assert result.corrected_p == 3 * result.p
