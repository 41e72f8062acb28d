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
QUERIES = RNG.standard_normal((40, 6)) + 0.5
CANDIDATES = RNG.standard_normal((55, 6)) + 0.5


def all_cosines():
    query_units = QUERIES / np.linalg.norm(QUERIES, axis=1, keepdims=True)
    candidate_units = CANDIDATES / np.linalg.norm(CANDIDATES, axis=1, keepdims=True)
    return query_units @ candidate_units.T


def means_of_largest(matrix, k):
    """Mean of the k largest of every row."""
    return np.sort(matrix, axis=1)[:, -k:].mean(axis=1)


def test_margins_of_a_pair_are_those_computed_by_hand():
    cosine = np.float32([0.8])
    # The mean of both is 0.5.
    source_mean = np.float32([0.6])
    target_mean = np.float32([0.4])
    assert margin_scores(cosine, source_mean, target_mean, "absolute") == pytest.approx(0.8)
    assert margin_scores(cosine, source_mean, target_mean, "distance") == pytest.approx(0.3)
    assert margin_scores(cosine, source_mean, target_mean, "ratio") == pytest.approx(1.6)
    with pytest.raises(InputError, match="margin 'size'"):
        margin_scores(cosine, source_mean, target_mean, "size")


def test_a_ratio_to_a_negative_mean_keeps_the_order_of_the_cosines():
    cosines = np.float32([0.1, -0.1, 0])
    source_means = np.float32([-0.2, -0.2, -0.2])
    target_means = np.float32([0.1, 0.1, 0.1])
    scores = margin_scores(cosines, source_means, target_means, "ratio")
    np.testing.assert_array_equal(scores, [np.inf, -np.inf, 0])


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize("depth", [0, 12])
def test_neighbours_by_margin_are_those_of_the_whole_matrix(margin, depth):
    cosines = all_cosines()
    mean = (means_of_largest(cosines, 4)[:, None] + means_of_largest(cosines.T, 4)) / 2
    margins = {"ratio": cosines / mean, "distance": cosines - mean, "absolute": cosines}[margin]
    nearest = np.argsort(-cosines, axis=1)[:, : depth or 4]
    order = np.argsort(-np.take_along_axis(margins, nearest, 1), axis=1)
    expected = np.take_along_axis(nearest, order, 1)
    scores, neighbours = margin_neighbours(QUERIES, CANDIDATES, 4, margin, depth)
    np.testing.assert_array_equal(neighbours, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(margins, expected, 1), atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_neighbours_by_csls_are_those_of_the_whole_matrix(precision):
    cosines = all_cosines()
    csls = 2 * cosines - means_of_largest(cosines, 10)[:, None] - means_of_largest(cosines.T, 10)
    expected = np.argsort(-csls, axis=1)[:, :20]
    scores, neighbours = csls_neighbours(QUERIES, CANDIDATES, 20, precision=precision)
    np.testing.assert_array_equal(neighbours, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(csls, expected, 1), atol=1e-5)


def test_csls_prefers_the_translation_to_a_hub():
    queries = np.array([[1, 0, 0], [0.3, 1, 0.1]])
    # The second candidate is near both queries (0.8 and 0.77), the first only one (0.78).
    candidates = np.array([[0.78, 0, -((1 - 0.78**2) ** 0.5)], [0.8, 0.6, 0.0]])
    _, by_cosine = nearest_neighbours(queries, candidates, 1)
    _, by_csls = csls_neighbours(queries, candidates, 1, neighbours=2)
    assert by_cosine.tolist() == [[1], [1]]
    assert by_csls.tolist() == [[0], [1]]
