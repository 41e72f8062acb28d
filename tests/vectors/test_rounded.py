"""Search with rounded copies finds what a search in float32 finds."""

import numpy as np
import pytest

from fairseq_lxsr.vectors import nearest_neighbours
from fairseq_lxsr.vectors.rounded import RoundedRows


def unit_vectors(rng, count, width):
    """Random vectors of length 1."""
    rows = rng.normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("k", [1, 20, 700], ids=["nearest", "some", "all"])
@pytest.mark.parametrize("width", [1, 3, 64])
def test_neighbours_differ_and_have_the_cosines_of_a_search_in_float32(width, k):
    rng = np.random.default_rng(width)
    matrix = unit_vectors(rng, 700, width)
    # Equal rows, nearly equal rows and a row of zeros.
    matrix[5] = matrix[9]
    matrix[100:200] = matrix[0] + 1e-4 * matrix[100:200]
    matrix[100:200] /= np.linalg.norm(matrix[100:200], axis=1, keepdims=True)
    matrix[7] = 0
    queries = unit_vectors(rng, 70, width)

    cosines, ids = RoundedRows(matrix, np.arange(len(matrix))).nearest(queries, k)

    # Ids may differ among rows of equal cosines.
    expected_cosines, _ = nearest_neighbours(queries, matrix, k)
    np.testing.assert_allclose(cosines, expected_cosines, atol=1e-6)
    cosines_of_ids = (queries[:, None] * matrix[ids]).sum(axis=2)
    np.testing.assert_allclose(cosines_of_ids, expected_cosines, atol=1e-6)
    for ids_of_query in ids.tolist():
        assert len(set(ids_of_query)) == k


@pytest.fixture
def part_of_matrix():
    """A matrix of 500 rows, every third row of it, and queries."""
    rng = np.random.default_rng(1)
    matrix = unit_vectors(rng, 500, 16)
    rows = np.arange(0, 500, 3)
    return matrix, rows, unit_vectors(rng, 4, 16)


def test_allowed_rows_of_a_part_come_first_and_the_remaining_places_are_empty(part_of_matrix):
    """Ids and `allowed` count the rows of the part."""
    matrix, rows, queries = part_of_matrix
    allowed = np.random.default_rng(2).random(len(rows)) < 0.1
    num_allowed = int(allowed.sum())

    # Three more than there are.
    cosines, ids = RoundedRows(matrix, rows).nearest(queries, num_allowed + 3, allowed)

    allowed_cosines = np.where(allowed, queries @ matrix[rows].T, -np.inf)
    expected_ids = np.argsort(-allowed_cosines, axis=1)[:, :num_allowed]
    np.testing.assert_array_equal(ids[:, :num_allowed], expected_ids)
    assert (ids[:, num_allowed:] == -1).all()
    assert np.isneginf(cosines[:, num_allowed:]).all()


def test_there_are_no_neighbours_if_no_row_is_allowed(part_of_matrix):
    matrix, rows, queries = part_of_matrix
    none_allowed = np.zeros(len(rows), dtype=bool)

    _, ids = RoundedRows(matrix, rows).nearest(queries, 2, none_allowed)

    assert (ids == -1).all()
