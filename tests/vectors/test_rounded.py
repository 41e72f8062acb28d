"""Search with rounded copies finds what a search in float32 finds."""

import numpy as np
import pytest

from fairseq_lxsr.vectors import nearest_neighbours
from fairseq_lxsr.vectors.rounded import RoundedRows


def unit_vectors(rng, count, width):
    rows = rng.normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("width", [1, 3, 64])
@pytest.mark.parametrize("k", [1, 20, 700])
def test_neighbours_are_those_of_float32(width, k):
    rng = np.random.default_rng(width)
    matrix = unit_vectors(rng, 700, width)
    # Equal rows, nearly equal rows and a row of zeros.
    matrix[5] = matrix[9]
    matrix[100:200] = matrix[0] + 1e-4 * matrix[100:200]
    matrix[100:200] /= np.linalg.norm(matrix[100:200], axis=1, keepdims=True)
    matrix[7] = 0
    queries = unit_vectors(rng, 70, width)
    cosines, numbers = RoundedRows(matrix, np.arange(700)).nearest(queries, k)
    expected, _ = nearest_neighbours(queries, matrix, k)
    np.testing.assert_allclose(cosines, expected, atol=1e-6)
    of_numbers = (queries[:, None] * matrix[numbers]).sum(axis=2)
    np.testing.assert_allclose(of_numbers, expected, atol=1e-6)
    assert all(len(set(row)) == k for row in numbers.tolist())


def test_some_rows_and_those_that_are_allowed():
    rng = np.random.default_rng(1)
    matrix = unit_vectors(rng, 500, 16)
    rows = np.arange(0, 500, 3)
    allowed = rng.random(len(rows)) < 0.1
    queries = unit_vectors(rng, 4, 16)
    rounded = RoundedRows(matrix, rows)
    k = int(allowed.sum()) + 3
    cosines, numbers = rounded.nearest(queries, k, allowed)
    expected = np.where(allowed, queries @ matrix[rows].T, -np.inf)
    order = np.argsort(-expected, axis=1)[:, : k - 3]
    np.testing.assert_array_equal(numbers[:, : k - 3], order)
    assert (numbers[:, k - 3 :] == -1).all()
    assert np.isneginf(cosines[:, k - 3 :]).all()
    _, numbers = rounded.nearest(queries, 2, np.zeros(len(rows), dtype=bool))
    assert (numbers == -1).all()
