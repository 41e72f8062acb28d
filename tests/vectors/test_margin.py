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
# Random vectors, moved so that most cosines are positive.
QUERIES = RNG.standard_normal((40, 6)) + 0.5
CANDIDATES = RNG.standard_normal((55, 6)) + 0.5


def all_cosines():
    """The cosines of all queries (rows) and candidates (columns)."""
    query_units = QUERIES / np.linalg.norm(QUERIES, axis=1, keepdims=True)
    candidate_units = CANDIDATES / np.linalg.norm(CANDIDATES, axis=1, keepdims=True)
    return query_units @ candidate_units.T


def means_of_largest(matrix, k):
    """Mean of the k largest of every row."""
    return np.sort(matrix, axis=1)[:, -k:].mean(axis=1)


@pytest.mark.parametrize(
    ("margin", "expected"),
    # The mean of both means is 0.5: the cosine itself, 0.8 - 0.5, and 0.8 / 0.5.
    [("absolute", 0.8), ("distance", 0.3), ("ratio", 1.6)],
)
def test_margins_of_a_pair_are_those_computed_by_hand(margin, expected):
    cosine = np.float32([0.8])
    source_mean = np.float32([0.6])
    target_mean = np.float32([0.4])

    score = margin_scores(cosine, source_mean, target_mean, margin)

    assert score == pytest.approx(expected)


def test_an_unknown_margin_is_refused():
    cosine = np.float32([0.8])

    with pytest.raises(InputError, match="margin 'size'"):
        margin_scores(cosine, cosine, cosine, "size")


def test_a_ratio_to_a_negative_mean_is_infinite_with_the_sign_of_the_cosine():
    """Division by a negative mean would give the smallest cosine the largest ratio."""
    cosines = np.float32([0.1, -0.1, 0])
    # The mean of both is -0.05.
    source_means = np.float32([-0.2, -0.2, -0.2])
    target_means = np.float32([0.1, 0.1, 0.1])

    scores = margin_scores(cosines, source_means, target_means, "ratio")

    np.testing.assert_array_equal(scores, [np.inf, -np.inf, 0])


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize(
    "depth",
    # 0 reorders the k nearest by their margin, 12 the twelve nearest.
    [0, 12],
)
def test_neighbours_by_margin_are_the_nearest_by_cosine_ordered_by_margin(margin, depth):
    k = 4
    num_nearest = depth or k
    cosines = all_cosines()
    query_means = means_of_largest(cosines, k)[:, None]
    candidate_means = means_of_largest(cosines.T, k)
    mean = (query_means + candidate_means) / 2
    all_margins = {"ratio": cosines / mean, "distance": cosines - mean, "absolute": cosines}[margin]

    scores, neighbours = margin_neighbours(QUERIES, CANDIDATES, k, margin, depth)

    nearest = np.argsort(-cosines, axis=1)[:, :num_nearest]
    margins_of_nearest = np.take_along_axis(all_margins, nearest, 1)
    order = np.argsort(-margins_of_nearest, axis=1)
    expected = np.take_along_axis(nearest, order, 1)
    np.testing.assert_array_equal(neighbours, expected)
    expected_scores = np.take_along_axis(all_margins, expected, 1)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_neighbours_by_csls_are_the_best_by_its_definition(precision):
    """CSLS is twice the cosine minus the mean cosines of both vectors to their nearest."""
    num_nearest = 10  # the default of csls_neighbours
    k = 20
    cosines = all_cosines()
    query_means = means_of_largest(cosines, num_nearest)[:, None]
    candidate_means = means_of_largest(cosines.T, num_nearest)
    csls = 2 * cosines - query_means - candidate_means

    scores, neighbours = csls_neighbours(QUERIES, CANDIDATES, k, precision=precision)

    expected = np.argsort(-csls, axis=1)[:, :k]
    np.testing.assert_array_equal(neighbours, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(csls, expected, 1), atol=1e-5)


def test_csls_prefers_the_translation_to_a_hub():
    """A hub is a candidate that is near many queries."""
    # The translation of the first query.
    translation = [0.78, 0, -((1 - 0.78**2) ** 0.5)]
    hub = [0.8, 0.6, 0.0]
    candidates = np.array([translation, hub])
    # The first query has a cosine of 0.78 to its translation and of 0.80 to the hub. The hub is the
    # translation of the second query, with a cosine of 0.80.
    queries = np.array([[1, 0, 0], [0.3, 1, 0.1]])

    _, by_cosine = nearest_neighbours(queries, candidates, 1)
    _, by_csls = csls_neighbours(queries, candidates, 1, neighbours=2)

    assert by_cosine.tolist() == [[1], [1]]
    assert by_csls.tolist() == [[0], [1]]
