"""The paired bootstrap equals a plain loop; scores with different settings are not compared."""

from dataclasses import replace

import numpy as np
import pytest

from fairseq_lxsr import __version__
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.compare import compare_runs, holm, paired_bootstrap
from fairseq_lxsr.evaluation.score import Outcomes, Score, from_hits

QUERIES = 300
RNG = np.random.default_rng(0)
# Two systems on the same queries: the first finds about 60 % of the translations, the second the
# same ones and a fifth of the others.
FIRST = Outcomes((RNG.random(QUERIES) < 0.6).astype(int).tolist())
SECOND = Outcomes(np.maximum(FIRST.hits, RNG.random(QUERIES) < 0.2).astype(int).tolist())
# A 95 % interval leaves out 2.5 % of the draws at each end.
PERCENTILES = [2.5, 97.5]


def score(outcomes: Outcomes, model: str, **settings) -> Score:
    """Return the P@1 of a model from English to French."""
    return from_hits(
        "xsr", "en->fr", {"P@1": outcomes}, {"queries": QUERIES} | settings | {"model": model}
    )


# -- the interval and p of single runs


def test_the_interval_is_that_of_a_plain_loop():
    rng = np.random.default_rng(5)
    gains = 100.0 * (np.array(SECOND.hits) - np.array(FIRST.hits))
    mean_gains = []
    for _ in range(4000):
        drawn = rng.integers(0, QUERIES, QUERIES)
        mean_gains.append(gains[drawn].mean())

    low, high, _ = paired_bootstrap([FIRST], [SECOND], draws=4000)

    # The seeds differ, so the ends of the intervals differ by a fraction of a percentage point.
    np.testing.assert_allclose([low, high], np.percentile(mean_gains, PERCENTILES), atol=0.35)


def test_a_system_that_finds_more_is_significantly_better():
    low, _, p_value = paired_bootstrap([FIRST], [SECOND])

    assert low > 0
    assert p_value < 0.01


def test_the_interval_does_not_depend_on_the_size_of_blocks(monkeypatch):
    in_large_blocks = paired_bootstrap([FIRST], [SECOND])

    # With memory for as many numbers as queries, a block has a single draw.
    monkeypatch.setattr("fairseq_lxsr.evaluation.compare.BLOCK_NUMBERS", QUERIES)

    assert paired_bootstrap([FIRST], [SECOND]) == in_large_blocks


def test_a_system_does_not_differ_from_itself():
    assert paired_bootstrap([FIRST], [FIRST]) == (0, 0, 1)


def test_systems_with_equal_values_on_different_queries_do_not_differ_significantly():
    shuffled = Outcomes(np.random.default_rng(1).permutation(FIRST.hits).tolist())

    low, high, p_value = paired_bootstrap([FIRST], [shuffled])

    assert low < 0 < high
    assert p_value > 0.5


def test_systems_with_different_numbers_of_units_are_refused():
    one_unit_less = Outcomes(FIRST.hits[1:])

    with pytest.raises(InputError, match="300 and 299"):
        paired_bootstrap([FIRST], [one_unit_less])


def test_units_without_a_total_do_not_change_a_ratio_of_sums():
    """An F1 has such units: sentences that are in no pair."""
    totals = [2, 0] * 150
    no_hits = Outcomes([0] * 300, totals)
    all_hits = Outcomes(totals, totals)

    low, high, _ = paired_bootstrap([no_hits], [all_hits])

    # The values are 0 and 100 in every draw.
    assert low == high == 100


# -- correlations

RATER = np.random.default_rng(3)
PAIRS = 40
RATINGS = RATER.integers(0, 5, PAIRS).astype(float)
CLOSE = RATINGS + RATER.standard_normal(PAIRS)
NOISY = RATINGS + 3 * RATER.standard_normal(PAIRS)


def pearson(first: np.ndarray, second: np.ndarray) -> float:
    """Return Pearson's correlation in percent."""
    return 100 * np.corrcoef(first, second)[0, 1]


def test_the_value_of_correlated_outcomes_is_pearsons_correlation():
    outcomes = Outcomes(CLOSE.tolist(), RATINGS.tolist(), correlation=True)

    assert outcomes.value == pytest.approx(pearson(CLOSE, RATINGS))


def test_the_interval_of_correlations_is_that_of_a_plain_loop():
    seed = 5
    rng = np.random.default_rng(seed)
    differences = []
    for _ in range(200):
        times_drawn = rng.multinomial(PAIRS, np.full(PAIRS, 1 / PAIRS))
        drawn = np.repeat(np.arange(PAIRS), times_drawn)
        differences.append(
            pearson(NOISY[drawn], RATINGS[drawn]) - pearson(CLOSE[drawn], RATINGS[drawn])
        )

    first = Outcomes(CLOSE.tolist(), RATINGS.tolist(), correlation=True)
    second = Outcomes(NOISY.tolist(), RATINGS.tolist(), correlation=True)
    low, high, _ = paired_bootstrap([first], [second], draws=200, seed=seed)

    # The same seed draws the same pairs, so the intervals are equal.
    assert (low, high) == pytest.approx(tuple(np.percentile(differences, PERCENTILES)))


def test_a_constant_sample_has_a_correlation_of_zero():
    assert Outcomes([1, 1], [2, 3], correlation=True).value == 0


def test_tiny_differences_are_correlated_exactly():
    differing_by_little = [1 + 1e-12, 1 + 2e-12, 1 + 4e-12]

    outcomes = Outcomes(differing_by_little, [1, 2, 4], correlation=True)

    assert outcomes.value == pytest.approx(100, abs=0.1)


# -- which scores are compared


def test_scores_with_equal_settings_are_compared():
    [result], notes = compare_runs([[score(FIRST, "a")]], [[score(SECOND, "b")]])

    assert notes == []
    assert (result.first, result.second) == (FIRST.value, SECOND.value)
    assert result.difference == pytest.approx(SECOND.value - FIRST.value)
    assert result.low < result.difference < result.high


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        pytest.param(
            score(FIRST, "a", seed=1), score(SECOND, "b", seed=2), "seed 1 and 2", id="seed"
        ),
        pytest.param(
            replace(score(FIRST, "a"), version="0.0.1"),
            score(SECOND, "b"),
            f"version 0.0.1 and {__version__}",
            id="version",
        ),
    ],
)
def test_scores_with_different_settings_are_named_and_not_compared(first, second, difference):
    results, [note] = compare_runs([[first]], [[second]])

    assert results == []
    assert "xsr en->fr" in note
    assert difference in note


def test_scores_of_different_tasks_are_named_and_not_compared():
    french = score(FIRST, "a")
    german = replace(score(SECOND, "b"), task="en->de")

    results, [note_of_second, note_of_first] = compare_runs([[french]], [[german]])

    assert results == []
    assert note_of_second == "xsr en->de: no counterpart in the first file"
    assert note_of_first == "xsr en->fr: no counterpart in the second file"


NN = score(FIRST, "a", metric="nn")
CSLS = score(FIRST, "a", metric="csls")
SECOND_NN = score(SECOND, "b", metric="nn")
SECOND_CSLS = score(SECOND, "b", metric="csls")


@pytest.mark.parametrize(
    ("first", "second", "expected_note"),
    [
        pytest.param(
            [NN, CSLS],
            [SECOND_NN],
            "xsr en->fr csls: no counterpart in the second file",
            id="csls of the first",
        ),
        pytest.param(
            [NN],
            [SECOND_NN, SECOND_CSLS],
            "xsr en->fr: not compared, settings differ (metric nn and csls)",
            id="csls of the second",
        ),
    ],
)
def test_a_metric_that_only_one_file_has_is_named_and_the_other_compared(
    first, second, expected_note
):
    [result], notes = compare_runs([first], [second])

    assert (result.first, result.second) == (FIRST.value, SECOND.value)
    assert notes == [expected_note]


def test_the_last_of_two_models_in_a_file_is_compared_and_both_are_named():
    earlier = score(SECOND, "a")
    last = score(FIRST, "c")

    [result], [note] = compare_runs([[earlier, last]], [[score(SECOND, "b")]])

    assert result.first == FIRST.value
    assert note == "xsr en->fr: scores of a and c in the first file; using c"


def test_the_last_score_of_a_model_is_compared_without_a_note():
    earlier = score(FIRST, "b")
    last = score(SECOND, "b")

    [result], notes = compare_runs([[score(FIRST, "a")]], [[earlier, last]])

    assert result.second == SECOND.value
    assert notes == []


# -- several runs of a system


def draw_runs(rng, difficulty: np.ndarray, spread: float, number: int) -> list[Outcomes]:
    """Draw the outcomes of runs of one system, whose quality varies from run to run.

    Args:
        rng: generator of random numbers.
        difficulty: log odds that a query fails [queries].
        spread: standard deviation of a run's quality, in log odds.
        number: number of runs.
    """
    runs = []
    for _ in range(number):
        chance = 1 / (1 + np.exp(difficulty + spread * rng.standard_normal()))
        runs.append(Outcomes((rng.random(len(chance)) < chance).astype(int).tolist()))
    return runs


def test_the_interval_over_runs_is_that_of_a_plain_loop():
    """Runs are drawn like queries; the mean of R drawn runs has (R - 1) / R of the variance of the
    mean of R new runs, so its deviation is multiplied by the root of R / (R - 1).
    """
    num_queries = 200
    num_runs = 3
    rng = np.random.default_rng(4)
    first = draw_runs(rng, rng.normal(-1, 1, num_queries), 0.5, num_runs)
    second = draw_runs(rng, rng.normal(-1, 1, num_queries), 0.5, num_runs)

    rng = np.random.default_rng(6)
    differences = []
    for _ in range(4000):
        queries = rng.integers(0, num_queries, num_queries)
        values = []
        for system in (first, second):
            run_values = 100 * np.array([run.hits for run in system])[:, queries].mean(axis=1)
            drawn_runs = rng.integers(0, num_runs, num_runs)
            deviation = run_values[drawn_runs].mean() - run_values.mean()
            values.append(run_values.mean() + np.sqrt(num_runs / (num_runs - 1)) * deviation)
        differences.append(values[1] - values[0])

    low, high, _ = paired_bootstrap(first, second, draws=4000)

    # The seeds differ, so the ends of the intervals differ by a fraction of a percentage point.
    np.testing.assert_allclose([low, high], np.percentile(differences, PERCENTILES), atol=0.6)


@pytest.mark.parametrize("num_runs", [2, 3])
def test_the_interval_covers_the_variation_between_runs(num_runs):
    """Two systems of equal quality are compared a hundred times.

    About 95 of the 100 intervals over several runs must contain 0. An interval of single runs only
    knows the variation between queries, so fewer contain 0.
    """
    rng = np.random.default_rng(7)
    containing_zero = {1: 0, num_runs: 0}
    for _ in range(100):
        difficulty = rng.normal(-1.5, 1.5, 200)
        first = draw_runs(rng, difficulty, 0.5, num_runs)
        second = draw_runs(rng, difficulty, 0.5, num_runs)
        for count in containing_zero:
            low, high, _ = paired_bootstrap(first[:count], second[:count], draws=100)
            containing_zero[count] += low <= 0 <= high

    assert containing_zero[1] < 75
    # Ten below 95: of intervals over few runs, some are too short.
    assert containing_zero[num_runs] >= 85


def test_the_value_of_a_system_is_the_mean_of_its_runs():
    two_runs = [[score(FIRST, "a1")], [score(SECOND, "a2")]]
    one_run = [[score(SECOND, "b")]]

    [result], notes = compare_runs(two_runs, one_run)

    assert notes == []
    assert result.first == (FIRST.value + SECOND.value) / 2
    assert result.second == SECOND.value
    assert result.low < result.high


def test_scores_that_one_run_lacks_are_named_and_not_compared():
    with_csls = [NN, CSLS]
    without_csls = [NN]

    [result], [note] = compare_runs([with_csls, without_csls], [[SECOND_NN]])

    assert result.metric == "nn"
    assert note == "xsr en->fr csls: not compared, only in 1 of the 2 first files"


# -- correction for several comparisons


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        # 4 * 0.005, 3 * 0.01, 2 * 0.03; 1 * 0.04 would be less than the 0.06 before it.
        pytest.param([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02], id="never decrease"),
        pytest.param([0.6, 0.7], [1, 1], id="at most 1"),
        pytest.param([0.02], [0.02], id="one p"),
        pytest.param([], [], id="no p"),
    ],
)
def test_holm_multiplies_the_least_of_n_p_values_by_n_the_next_by_n_minus_one(p_values, corrected):
    assert holm(p_values) == pytest.approx(corrected)


def test_p_values_of_all_comparisons_are_corrected_together():
    metrics = ("nn", "csls", "margin")
    first = [score(FIRST, "a", metric=metric) for metric in metrics]
    second = [score(SECOND, "b", metric=metric) for metric in metrics]

    results, _ = compare_runs([first], [second])

    # The three comparisons have the same p, so each is multiplied by their number.
    assert len(results) == 3
    for result in results:
        assert result.corrected_p == 3 * result.p
