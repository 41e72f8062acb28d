import numpy as np
import pytest

from fairseq_lxsr.retrieval import nearest_neighbours, normalise_rows


@pytest.mark.parametrize(("queries", "candidates", "width", "k"), [(1, 1, 3, 1), (17, 50, 8, 10), (40, 33, 5, 33)])
def test_equal_to_brute_force(queries, candidates, width, k):
    rng = np.random.default_rng(queries)
    a, b = rng.standard_normal((queries, width)), rng.standard_normal((candidates, width)) * 7
    cosines = (a / np.linalg.norm(a, axis=1, keepdims=True)) @ (b / np.linalg.norm(b, axis=1, keepdims=True)).T
    expected = np.argsort(-cosines, axis=1)[:, :k]
    scores, found = nearest_neighbours(a, b, k)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(cosines, expected, axis=1), atol=1e-5)


def test_zero_rows_stay_zero_and_input_is_untouched():
    rows = np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32)
    np.testing.assert_allclose(normalise_rows(rows), [[0.6, 0.8], [0.0, 0.0]])
    assert rows[0, 0] == 3


@pytest.mark.parametrize(
    ("queries", "candidates", "k", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), 1, "3 wide and candidates 4"),
        (np.ones((2, 3)), np.ones((2, 3)), 3, "k is 3; expected 1 to 2"),
        (np.full((2, 3), np.nan), np.ones((2, 3)), 1, "row 0 .* NaN"),
        (np.ones(3), np.ones((2, 3)), 1, r"shape \(3,\)"),
    ],
)
def test_what_has_no_neighbours_is_refused(queries, candidates, k, message):
    with pytest.raises(ValueError, match=message):
        nearest_neighbours(queries, candidates, k)
