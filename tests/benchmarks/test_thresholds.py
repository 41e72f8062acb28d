"""Thresholds have the best F1; lists of codes are repeatable."""

import numpy as np
import pytest

from benchmarks.quality.codes import LISTS, make_list, mixed
from benchmarks.quality.thresholds import best_threshold, f1_at, half, score_pairs, shares

TRANSLATIONS = np.array([0.9, 0.8, 0.4, 0.1])
WRONG_PAIRS = np.array([0.5, 0.3, 0.2, 0.0])


def test_f1_is_that_of_the_pairs_with_at_least_the_threshold():
    # Three translations and one wrong pair.
    precision = 3 / 4
    recall = 3 / 4
    f1 = 2 * precision * recall / (precision + recall)

    assert f1_at(0.4, (TRANSLATIONS, WRONG_PAIRS)) == pytest.approx(100 * f1)


def test_the_best_threshold_is_the_score_of_a_translation_with_the_highest_f1():
    sample = (TRANSLATIONS, WRONG_PAIRS)
    highest = max(f1_at(score, sample) for score in TRANSLATIONS)

    threshold = best_threshold(TRANSLATIONS, WRONG_PAIRS)

    assert threshold == 0.4
    assert f1_at(threshold, sample) == highest


def test_one_half_has_the_even_pairs_and_the_other_the_odd_ones():
    translations = np.array([0, 1, 2, 3, 4])
    wrong_pairs = np.array([10, 11, 12, 13, 14])

    even = half((translations, wrong_pairs), 0)
    odd = half((translations, wrong_pairs), 1)

    assert [scores.tolist() for scores in even] == [[0, 2, 4], [10, 12, 14]]
    assert [scores.tolist() for scores in odd] == [[1, 3], [11, 13]]


@pytest.fixture
def samples():
    """The scores of six pairs; all are orthogonal, except that target 1 is also near source 0."""
    source = np.eye(6, dtype=np.float32)
    target = source.copy()
    target[1, :2] = 0.6, 0.8
    return score_pairs(source, target)


def test_scores_of_right_pairs_are_the_cosines_of_the_rows(samples):
    right, _ = samples["cosine, random pairs"]

    assert right == pytest.approx([1, 0.8, 1, 1, 1, 1])


def test_random_pairs_are_of_another_row(samples):
    _, random = samples["cosine, random pairs"]

    assert random == pytest.approx([0, 0, 0, 0, 0, 0])


def test_near_pairs_are_of_the_nearest_other_row(samples):
    _, near = samples["cosine, near pairs"]

    assert near == pytest.approx([0.6, 0, 0, 0, 0, 0])


def test_the_margin_is_the_cosine_divided_by_the_mean_of_both_neighbourhoods(samples):
    right, _ = samples["margin, near pairs"]

    # Means of the four nearest: source 0 has targets at 1 and 0.6, target 0 has a source at 1.
    of_source = (1 + 0.6 + 0 + 0) / 4
    of_target = (1 + 0 + 0 + 0) / 4
    assert right[0] == pytest.approx(1 / ((of_source + of_target) / 2))


@pytest.mark.parametrize(
    ("threshold", "refused", "lost"),
    [
        # Only the 0.1 is below.
        (0.2, 50.0, 0.0),
        # Both scores of questions without an answer are below, and the 0.2 of those with one.
        (0.3, 100.0, 50.0),
    ],
)
def test_questions_below_the_threshold_are_refused_and_their_answers_lost(threshold, refused, lost):
    with_answer = np.array([0.2, 0.5])
    without_answer = np.array([0.1, 0.2])

    percentages = shares(threshold, (with_answer, without_answer))

    assert percentages == {"refused": refused, "lost": lost}


@pytest.mark.parametrize("name", LISTS)
def test_each_line_of_a_list_contains_a_code_of_its_own(name):
    lines = make_list(name, 50)

    for text, code in lines:
        assert code in text
    assert len({code for _, code in lines}) == 50


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_the_same_every_time(name):
    assert make_list(name, 50) == make_list(name, 50)


def test_a_mixed_list_takes_its_lines_from_the_lists_in_turn():
    first = [("a1", "1"), ("a2", "2")]
    second = [("b1", "1"), ("b2", "2")]

    assert mixed([first, second]) == [("a1", "1"), ("b2", "2")]
