"""Thresholds have the best F1; lists of codes are repeatable."""

import numpy as np
import pytest

from benchmarks.quality.codes import LISTS, make_list, mixed
from benchmarks.quality.thresholds import best_threshold, f1_at, half, score_pairs, shares


def test_the_threshold_has_the_best_f1():
    positives = np.array([0.9, 0.8, 0.4, 0.1])
    negatives = np.array([0.5, 0.3, 0.2, 0.0])
    # Three of four translations, and one wrong pair: 2 * 3 / (4 + 4).
    assert best_threshold(positives, negatives) == 0.4
    assert f1_at(0.4, (positives, negatives)) == pytest.approx(75)


def test_halves_have_no_pair_in_common():
    sample = (np.arange(5), np.arange(10, 15))
    assert half(sample, 0)[0].tolist() == [0, 2, 4]
    assert half(sample, 1)[1].tolist() == [11, 13]


def test_wrong_pairs_are_random_or_near():
    source = np.eye(6, dtype=np.float32)
    target = source.copy()
    # The second target is as near to the first source as its translation is.
    target[1, :2] = 0.6, 0.8
    samples = score_pairs(source, target)
    right, random = samples["cosine, random pairs"]
    _, near = samples["cosine, near pairs"]
    assert right == pytest.approx([1, 0.8, 1, 1, 1, 1])
    assert random.max() == 0
    assert near == pytest.approx([0.6, 0, 0, 0, 0, 0])
    # The means of four cosines are (1 + 0.6) / 4 and 1 / 4.
    assert samples["margin, near pairs"][0][0] == pytest.approx(1 / ((0.4 + 0.25) / 2))


def test_questions_without_an_answer_are_refused_below_the_threshold():
    sample = (np.array([0.2, 0.5]), np.array([0.1, 0.2]))
    assert shares(0.2, sample) == {"refused": 50.0, "lost": 0.0}
    assert shares(0.3, sample) == {"refused": 100.0, "lost": 50.0}


def test_a_list_has_distinct_codes_and_is_repeatable():
    for name in LISTS:
        lines = make_list(name, 50)
        assert len({code for _, code in lines}) == 50, name
        for text, code in lines:
            assert code in text
        assert make_list(name, 50) == lines


def test_a_mixed_list_takes_lines_in_turn():
    assert mixed([[("a1", "1"), ("a2", "2")], [("b1", "1"), ("b2", "2")]]) == [
        ("a1", "1"),
        ("b2", "2"),
    ]
