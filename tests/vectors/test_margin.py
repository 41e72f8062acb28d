"""Margins and CSLS against their definitions over the whole matrix of cosines."""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.vectors import (
    csls_neighbours,
    margin_neighbours,
    margin_scores,
    nearest_neighbours,
)

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((40, 6)) + 0.5, RNG.standard_normal((55, 6)) + 0.5


def cosines():
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (A, B))
    return a @ b.T


def means(matrix, k):
    """Mean of the k largest of every row."""
    return np.sort(matrix, axis=1)[:, -k:].mean(axis=1)


def test_margins_worked_out_by_hand():
    """cos 0.8, neighbourhoods 0.6 and 0.4, so their mean is 0.5."""
    arguments = (np.float32([0.8]), np.float32([0.6]), np.float32([0.4]))
    assert margin_scores(*arguments, "absolute") == pytest.approx(0.8)
    assert margin_scores(*arguments, "distance") == pytest.approx(0.3)
    assert margin_scores(*arguments, "ratio") == pytest.approx(1.6)
    with pytest.raises(InputError, match="margin 'size'"):
        margin_scores(*arguments, "size")
    scores = margin_scores(
        np.float32([0.1, -0.1, 0]), np.float32([-0.2] * 3), np.float32([0.1] * 3), "ratio"
    )
    # a ratio to nothing does not turn the order round
    np.testing.assert_array_equal(scores, [np.inf, -np.inf, 0])


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize("depth", [0, 12])
def test_margin_of_the_nearest_equals_brute_force(margin, depth):
    matrix = cosines()
    mean = (means(matrix, 4)[:, None] + means(matrix.T, 4)) / 2
    whole = {"ratio": matrix / mean, "distance": matrix - mean, "absolute": matrix}[margin]
    nearest = np.argsort(-matrix, axis=1)[:, : depth or 4]
    order = np.argsort(-np.take_along_axis(whole, nearest, 1), axis=1)
    expected = np.take_along_axis(nearest, order, 1)
    scores, found = margin_neighbours(A, B, 4, margin, depth)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(whole, expected, 1), atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_csls_ranks_all_candidates(precision):
    matrix = cosines()
    csls = 2 * matrix - means(matrix, 10)[:, None] - means(matrix.T, 10)
    expected = np.argsort(-csls, axis=1)[:, :20]
    scores, found = csls_neighbours(A, B, 20, precision=precision)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(csls, expected, 1), atol=1e-5)


def test_csls_finds_the_translation_behind_a_hub():
    """Candidate 1 is near to every query (cosine 0.8 and 0.77); candidate 0 only to query 0
    (0.78).
    """
    queries = np.array([[1, 0, 0], [0.3, 1, 0.1]])
    candidates = np.array([[0.78, 0, -((1 - 0.78**2) ** 0.5)], [0.8, 0.6, 0.0]])
    assert nearest_neighbours(queries, candidates, 1)[1][:, 0].tolist() == [1, 1]
    assert csls_neighbours(queries, candidates, 1, neighbours=2)[1][:, 0].tolist() == [0, 1]
