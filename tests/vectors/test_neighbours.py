"""Exact search against brute force, against faiss, and in both precisions."""

from itertools import pairwise

import faiss
import numpy as np
import pytest
import torch

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.vectors import (
    bfloat16,
    build_index,
    merge_neighbours,
    mine,
    nearest_neighbours,
    normalise_rows,
    rows,
    search_index,
)
from fairseq_lxsr.vectors.neighbours import shift_ids

PRECISIONS = ("float32", "bfloat16")


def float64_units(rows):
    rows = rows.astype(float)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def brute_force(queries, candidates, k, penalty=0.0):
    """All cosines in float64, the k largest, of equal ones the first."""
    scores = float64_units(queries) @ float64_units(candidates).T - penalty
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, ids, axis=1), ids


def assert_same_neighbours(neighbours, expected):
    """Both are scores and ids; the scores are nearly the same."""
    scores, ids = neighbours
    expected_scores, expected_ids = expected
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-6)


def assert_equal_neighbours(neighbours, expected):
    """Both are scores and ids; the scores are the same to the last bit."""
    scores, ids = neighbours
    expected_scores, expected_ids = expected
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(scores, expected_scores)


@pytest.fixture
def small_blocks(monkeypatch):
    """Compare few rows at a time, so that small sets have several blocks."""
    monkeypatch.setattr(rows, "QUERY_ROWS", 7)
    monkeypatch.setattr(rows, "CANDIDATE_ROWS", 48)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("small_blocks")
def test_neighbours_are_those_of_brute_force(precision):
    for num_queries, num_candidates, width, k in (
        (1, 1, 3, 1),
        (17, 50, 8, 10),
        (40, 33, 5, 33),
        (23, 700, 16, 3),
    ):
        rng = np.random.default_rng(num_queries)
        queries = rng.standard_normal((num_queries, width))
        candidates = rng.standard_normal((num_candidates, width)) * 7
        penalty = rng.random(num_candidates).astype(np.float32)
        neighbours = nearest_neighbours(queries, candidates, k, precision=precision)
        assert_same_neighbours(neighbours, brute_force(queries, candidates, k))
        neighbours = nearest_neighbours(
            queries, candidates, k, penalty=penalty, precision=precision
        )
        assert_same_neighbours(neighbours, brute_force(queries, candidates, k, penalty))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_neighbours_among_many_candidates_are_those_of_faiss(precision):
    rng = np.random.default_rng(1)
    candidates = normalise_rows(rng.standard_normal((20_000, 32)))
    queries = normalise_rows(candidates[:300] + 0.1 * rng.standard_normal((300, 32)))
    index = faiss.IndexFlatIP(32)
    index.add(candidates)
    neighbours = nearest_neighbours(queries, candidates, 10, precision=precision)
    assert_same_neighbours(neighbours, index.search(queries, 10))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("small_blocks")
def test_of_equal_candidates_the_first_come_first(precision):
    rng = np.random.default_rng(2)
    queries = rng.standard_normal((60, 8)).astype(np.float32)
    # Row i is equal to rows 119 - i and 120 + i.
    candidates = np.concatenate([queries, queries[::-1], queries])
    _, ids = nearest_neighbours(queries, candidates, 3, precision=precision)
    numbers = np.arange(60)
    np.testing.assert_array_equal(ids, np.stack([numbers, 119 - numbers, 120 + numbers], axis=1))
    _, ids = nearest_neighbours(np.ones((9, 4)), np.ones((150, 4)), 10, precision=precision)
    np.testing.assert_array_equal(ids, np.tile(np.arange(10), (9, 1)))


@pytest.mark.parametrize("has_penalty", [False, True])
def test_candidates_closer_than_bfloat16_can_tell_are_compared_in_float32(has_penalty):
    rng = np.random.default_rng(3)
    candidates = np.ones((5000, 16)) + 1e-3 * rng.standard_normal((5000, 16))
    queries = np.ones((20, 16)) + 1e-3 * rng.standard_normal((20, 16))
    penalty = None
    if has_penalty:
        penalty = (1e-3 * rng.random(5000)).astype(np.float32)
    expected = nearest_neighbours(queries, candidates, 4, penalty=penalty)
    neighbours = nearest_neighbours(queries, candidates, 4, penalty=penalty, precision="bfloat16")
    assert_equal_neighbours(neighbours, expected)
    # A search in bfloat16 alone has other neighbours, and marks them as uncertain.
    units = rows.unit_rows(queries, 0, 20, "queries")
    candidate_rows = rows.CandidateRows(candidates, penalty, memory_mb=100)
    _, ids, is_certain = bfloat16.search_bfloat16(units, candidate_rows, 4)
    assert not is_certain.all()
    assert (ids != expected[1]).any()


def test_float16_vectors_of_a_memory_map_are_searched_with_any_memory_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "QUERY_ROWS", 16)
    rng = np.random.default_rng(5)
    candidates = rng.standard_normal((500, 24)).astype(np.float16)
    np.save(tmp_path / "candidates.npy", candidates)
    mapped = np.load(tmp_path / "candidates.npy", mmap_mode="r")
    queries = mapped[:100]
    expected = brute_force(queries, candidates, 7)
    for memory_mb in (0, 1, 1000):
        neighbours = nearest_neighbours(queries, mapped, 7, memory_mb=memory_mb)
        assert_same_neighbours(neighbours, expected)


def test_the_error_bound_of_bfloat16_holds_for_the_largest_rounding_error():
    units = torch.full((1, 256), 2.0**-4)
    # Every coordinate lies just below the middle of two bfloat16 numbers, and is rounded down.
    candidate = torch.full((1, 256), 2.0**-4 * (1 + 2.0**-8 * 0.999))
    # The candidate must not be longer than one.
    candidate[0, 253:] = 0
    rounded = candidate.bfloat16()
    rounding = float((candidate - rounded).norm())
    score = (units.bfloat16() @ rounded.T).float()
    missing = float((units @ candidate.T - score)[0, 0])
    bound = float(bfloat16.bfloat16_error(units, units.bfloat16(), rounding, None)[0])
    assert 1.9 * 2.0**-9 < missing <= bound


def test_the_error_bound_of_bfloat16_holds_for_random_vectors():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        width = int(rng.integers(2, 600))
        units = torch.from_numpy(normalise_rows(rng.standard_normal((200, width))))
        candidates = torch.from_numpy(normalise_rows(rng.standard_normal((200, width))))
        candidates[:100] = units[:100]
        penalty = rng.random(200).astype(np.float32)
        rounded = candidates.bfloat16()
        rounding = float((candidates - rounded.float()).norm(dim=1).max())

        exact = units @ candidates.T
        scores = (units.bfloat16() @ rounded.T).float()
        bound = bfloat16.bfloat16_error(units, units.bfloat16(), rounding, None)
        assert ((exact - scores) <= bound[:, None]).all()

        subtracted = torch.from_numpy(penalty)
        exact = units @ candidates.T - subtracted
        scores = torch.addmm(-subtracted.bfloat16(), units.bfloat16(), rounded.T).float()
        bound = bfloat16.bfloat16_error(units, units.bfloat16(), rounding, penalty)
        assert ((exact - scores) <= bound[:, None]).all()


def test_a_reversed_view_and_lists_are_searched():
    rows = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    _, ids = nearest_neighbours(rows[::-1], rows, 1)
    assert ids[:, 0].tolist() == list(range(19, -1, -1))
    expected = nearest_neighbours(rows[:3], rows, 2, penalty=np.zeros(20))
    neighbours = nearest_neighbours(rows[:3].tolist(), rows.tolist(), 2, penalty=[0] * 20)
    assert_equal_neighbours(neighbours, expected)


def test_rows_are_scaled_in_a_copy():
    rows = np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32)
    np.testing.assert_allclose(normalise_rows(rows), [[0.6, 0.8], [0.0, 0.0]])
    assert rows[0, 0] == 3


@pytest.mark.parametrize("precision", PRECISIONS)
def test_vectors_of_any_finite_length_have_the_same_cosines(precision):
    """The squares of these lengths are 0 or infinite in float32."""
    for factor in (2.0**-120, 2.0**-100, 2.0**-41, 2.0**63, 2.0**120):
        rng = np.random.default_rng(6)
        queries = rng.standard_normal((20, 16)).astype(np.float32)
        candidates = rng.standard_normal((90, 16)).astype(np.float32)
        expected_scores, expected_ids = nearest_neighbours(queries, candidates, 5)
        queries[::2] *= np.float32(factor)
        candidates[1::3] *= np.float32(factor)
        scores, ids = nearest_neighbours(queries, candidates, 5, precision=precision)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_allclose(scores, expected_scores, rtol=0, atol=2e-7)
        # Rows of usual lengths keep every bit.
        is_usual = ids[1::2] % 3 != 1
        np.testing.assert_array_equal(scores[1::2][is_usual], expected_scores[1::2][is_usual])


@pytest.mark.parametrize(
    ("queries", "candidates", "k", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), 1, r"\b3\b.*\b4\b"),
        (np.ones((2, 3)), np.ones((2, 3)), 3, "k is 3; .*2"),
        (np.ones((2, 3)), np.ones((2, 3)), 0, "k is 0; .*2"),
        (np.full((2, 3), np.nan), np.ones((2, 3)), 1, "row 0 of the queries"),
        (np.ones((2, 3)), np.array([[1, 2, 3], [1, np.inf, 3]]), 1, "row 1 of the candidates"),
        (np.ones(3), np.ones((2, 3)), 1, r"queries .*\(3,\)"),
        (np.ones((2, 3)), np.ones((0, 3)), 1, r"candidates .*\(0, 3\)"),
        ([[1, 2], [1]], np.ones((2, 2)), 1, "queries"),
        ([["a", "b"]], np.ones((2, 2)), 1, "queries .*<U1"),
        ([1.0, 2.0], np.ones((2, 2)), 1, r"queries .*\(2,\)"),
    ],
)
def test_vectors_that_cannot_be_compared_are_refused(queries, candidates, k, message):
    with pytest.raises(InputError, match=message):
        nearest_neighbours(queries, candidates, k)


def test_an_unknown_precision_an_invalid_penalty_and_no_parts_are_refused():
    vectors = np.ones((2, 3))
    with pytest.raises(InputError, match="'float64'"):
        nearest_neighbours(vectors, vectors, 1, precision="float64")
    for penalty in (np.zeros(3), np.array([0, np.nan])):
        with pytest.raises(InputError, match="penalty"):
            nearest_neighbours(vectors, vectors, 1, penalty=penalty)
    with pytest.raises(InputError, match="no candidates"):
        merge_neighbours([], 5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("small_blocks")
def test_merged_searches_of_parts_are_one_search_to_the_last_bit(precision):
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((30, 16))
    candidates = rng.standard_normal((500, 16))
    # Equal candidates in one part and in several.
    candidates[100:104] = candidates[3]
    candidates[400] = candidates[3]
    expected = nearest_neighbours(queries, candidates, 5, precision=precision)
    for bounds in ([0, 500], [0, 101, 103, 250, 500], [0, 2, 4, 499, 500]):
        parts = []
        for start, stop in pairwise(bounds):
            neighbours = nearest_neighbours(queries, candidates[start:stop], min(5, stop - start))
            parts.append(shift_ids(neighbours, start))
        assert_equal_neighbours(merge_neighbours(parts, 5), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, bool])
def test_embeddings_rounded_to_codes_are_refused(dtype):
    """The directions of codes are not those of the vectors."""
    vectors = np.eye(4)
    codes = np.eye(4, dtype=dtype)
    for search in (
        lambda: nearest_neighbours(vectors, codes, 1),
        lambda: nearest_neighbours(codes, vectors, 1),
        lambda: mine(codes, k=1),
        lambda: normalise_rows(codes),
        lambda: build_index(codes),
        lambda: build_index(codes, "int8"),
        lambda: search_index(build_index(vectors), codes, 1),
    ):
        with pytest.raises(InputError, match=r"(u?int8|bool).*embeddings\.load_embeddings\(path\)"):
            search()


def test_vectors_of_integers_are_searched():
    vectors = np.eye(4)
    _, ids = nearest_neighbours(vectors.astype(int), vectors.tolist(), 1)
    assert ids.tolist() == [[0], [1], [2], [3]]


def test_a_memory_limit_that_is_no_integer_is_refused():
    vectors = np.eye(4, 16, dtype=np.float32)
    for value in (-1, 2.5, None, True, "3", float("nan")):
        with pytest.raises(InputError, match="memory_mb "):
            nearest_neighbours(vectors, vectors, 1, memory_mb=value)


def test_a_number_of_neighbours_that_is_no_positive_integer_is_refused():
    vectors = np.eye(4, 16, dtype=np.float32)
    index = build_index(vectors)
    for value in (0, -1, 2.5, None, True, np.True_, "3", float("nan")):
        with pytest.raises(InputError, match="k is "):
            nearest_neighbours(vectors, vectors, value)
        with pytest.raises(InputError, match="k is "):
            mine(vectors, k=value)
        with pytest.raises(InputError, match="k is "):
            search_index(index, vectors, value)
    _, ids = search_index(index, vectors, np.int64(1))
    assert ids.tolist() == [[0], [1], [2], [3]]


def test_the_progress_of_a_search_is_shown_within_a_block_of_queries(monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.files.progress.can_overwrite", lambda: True)
    updates = []
    monkeypatch.setattr(Progress, "update", lambda bar, count=1: updates.append(count))
    # One block of queries is compared with three blocks of candidates.
    rng = np.random.default_rng(1)
    candidates = rng.normal(size=(3 * rows.CANDIDATE_ROWS, 4)).astype(np.float32)
    nearest_neighbours(candidates[: rows.QUERY_ROWS], candidates, 2, show_progress=True)
    assert len(updates) >= 3
    assert 0 < updates[0] < rows.QUERY_ROWS
