"""Search with rounded copies finds what a search in float32 finds."""

import numpy as np
import pytest

from fairseq_lxsr.vectors import nearest_neighbours
from fairseq_lxsr.vectors.rounded import RoundedRows


def unit_vectors(rng, count, width):
    rows = rng.normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("width", [1, 3, 64])
def test_neighbours_are_those_of_float32(width):
    rng = np.random.default_rng(width)
    matrix = unit_vectors(rng, 700, width)
    # Equal rows, nearly equal rows and a row of zeros.
    matrix[5] = matrix[9]
    matrix[100:200] = matrix[0] + 1e-4 * matrix[100:200]
    matrix[100:200] /= np.linalg.norm(matrix[100:200], axis=1, keepdims=True)
    matrix[7] = 0
    queries = unit_vectors(rng, 70, width)
    rounded = RoundedRows(matrix, np.arange(700))
    for k in (1, 20, 700):
        cosines, ids = rounded.nearest(queries, k)
        expected_cosines, _ = nearest_neighbours(queries, matrix, k)
        np.testing.assert_allclose(cosines, expected_cosines, atol=1e-6)
        cosines_of_ids = (queries[:, None] * matrix[ids]).sum(axis=2)
        np.testing.assert_allclose(cosines_of_ids, expected_cosines, atol=1e-6)
        for row in ids.tolist():
            assert len(set(row)) == k


def test_only_allowed_rows_of_a_part_of_the_matrix_are_neighbours():
    rng = np.random.default_rng(1)
    matrix = unit_vectors(rng, 500, 16)
    rows = np.arange(0, 500, 3)
    allowed = rng.random(len(rows)) < 0.1
    queries = unit_vectors(rng, 4, 16)
    rounded = RoundedRows(matrix, rows)
    num_allowed = int(allowed.sum())
    cosines, ids = rounded.nearest(queries, num_allowed + 3, allowed)
    allowed_cosines = np.where(allowed, queries @ matrix[rows].T, -np.inf)
    expected_ids = np.argsort(-allowed_cosines, axis=1)[:, :num_allowed]
    np.testing.assert_array_equal(ids[:, :num_allowed], expected_ids)
    assert (ids[:, num_allowed:] == -1).all()
    assert np.isneginf(cosines[:, num_allowed:]).all()
    _, ids = rounded.nearest(queries, 2, np.zeros(len(rows), dtype=bool))
    assert (ids == -1).all()
