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
    """The rows in float64, scaled to length 1."""
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


@pytest.mark.parametrize("has_penalty", [False, True], ids=["plain", "penalty"])
@pytest.mark.parametrize(
    ("num_queries", "num_candidates", "width", "k"),
    [
        pytest.param(1, 1, 3, 1, id="one"),
        # Blocks have 7 queries and 48 candidates, so that most of these have several.
        pytest.param(17, 50, 8, 10, id="blocks"),
        pytest.param(40, 33, 5, 33, id="all candidates"),
        pytest.param(23, 700, 16, 3, id="many blocks"),
    ],
)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("small_blocks")
def test_neighbours_are_those_of_brute_force(
    precision, num_queries, num_candidates, width, k, has_penalty
):
    rng = np.random.default_rng(num_queries)
    queries = rng.standard_normal((num_queries, width))
    # The length of candidates does not count, so they need not have length 1.
    candidates = rng.standard_normal((num_candidates, width)) * 7
    penalty = np.zeros(num_candidates, dtype=np.float32)
    options = {}
    if has_penalty:
        penalty = rng.random(num_candidates).astype(np.float32)
        options = {"penalty": penalty}

    neighbours = nearest_neighbours(queries, candidates, k, precision=precision, **options)

    assert_same_neighbours(neighbours, brute_force(queries, candidates, k, penalty))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_neighbours_among_many_candidates_are_those_of_faiss(precision):
    width = 32
    rng = np.random.default_rng(1)
    candidates = normalise_rows(rng.standard_normal((20_000, width)))
    queries = normalise_rows(candidates[:300] + 0.1 * rng.standard_normal((300, width)))
    faiss_index = faiss.IndexFlatIP(width)
    faiss_index.add(candidates)

    neighbours = nearest_neighbours(queries, candidates, 10, precision=precision)

    assert_same_neighbours(neighbours, faiss_index.search(queries, 10))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("small_blocks")
def test_of_equal_candidates_the_first_come_first(precision):
    rng = np.random.default_rng(2)
    queries = rng.standard_normal((60, 8)).astype(np.float32)
    # Query i is equal to the candidates i, 119 - i and 120 + i, which are in different blocks.
    candidates = np.concatenate([queries, queries[::-1], queries])

    _, ids = nearest_neighbours(queries, candidates, 3, precision=precision)

    expected_ids = [[i, 119 - i, 120 + i] for i in range(60)]
    assert ids.tolist() == expected_ids


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("small_blocks")
def test_of_candidates_that_are_all_equal_the_first_k_are_returned(precision):
    _, ids = nearest_neighbours(np.ones((9, 4)), np.ones((150, 4)), 10, precision=precision)

    assert ids.tolist() == [list(range(10))] * 9


@pytest.fixture
def close_vectors():
    """20 queries and 5000 candidates whose cosines bfloat16 rounds to the same numbers."""
    rng = np.random.default_rng(3)
    candidates = np.ones((5000, 16)) + 1e-3 * rng.standard_normal((5000, 16))
    queries = np.ones((20, 16)) + 1e-3 * rng.standard_normal((20, 16))
    return queries, candidates


@pytest.mark.parametrize("has_penalty", [False, True])
def test_candidates_closer_than_bfloat16_can_tell_are_compared_in_float32(
    close_vectors, has_penalty
):
    queries, candidates = close_vectors
    penalty = None
    if has_penalty:
        penalty = (1e-3 * np.random.default_rng(4).random(5000)).astype(np.float32)

    neighbours = nearest_neighbours(queries, candidates, 4, penalty=penalty, precision="bfloat16")

    expected = nearest_neighbours(queries, candidates, 4, penalty=penalty)
    assert_equal_neighbours(neighbours, expected)


@pytest.mark.parametrize("has_penalty", [False, True])
def test_a_search_in_bfloat16_alone_errs_among_close_candidates_and_marks_it(
    close_vectors, has_penalty
):
    """It marks which queries certainly have their nearest; `nearest_neighbours` repeats others."""
    queries, candidates = close_vectors
    penalty = None
    if has_penalty:
        penalty = (1e-3 * np.random.default_rng(4).random(5000)).astype(np.float32)
    units = rows.unit_rows(queries, 0, len(queries), "queries")
    candidate_rows = rows.CandidateRows(candidates, penalty, memory_mb=100)

    _, ids, is_certain = bfloat16.search_bfloat16(units, candidate_rows, 4)

    _, expected_ids = nearest_neighbours(queries, candidates, 4, penalty=penalty)
    assert (ids != expected_ids).any()
    assert not is_certain.all()


@pytest.mark.parametrize(
    "memory_mb",
    # As few rows at once as possible, some, all.
    [0, 1, 1000],
)
def test_float16_vectors_of_a_memory_map_are_searched_with_any_memory_limit(
    tmp_path, monkeypatch, memory_mb
):
    # Queries are in several blocks.
    monkeypatch.setattr(rows, "QUERY_ROWS", 16)
    rng = np.random.default_rng(5)
    candidates = rng.standard_normal((500, 24)).astype(np.float16)
    np.save(tmp_path / "candidates.npy", candidates)
    mapped = np.load(tmp_path / "candidates.npy", mmap_mode="r")
    queries = mapped[:100]

    neighbours = nearest_neighbours(queries, mapped, 7, memory_mb=memory_mb)

    assert_same_neighbours(neighbours, brute_force(queries, candidates, 7))


def test_the_error_bound_of_bfloat16_holds_for_the_largest_rounding_error():
    # A unit vector of 256 equal coordinates of 1/16, which bfloat16 does not round.
    units = torch.full((1, 256), 2.0**-4)
    # bfloat16 numbers at 1/16 are 2^-11 apart. Every coordinate of the candidate lies just below
    # the middle of two of them, and is rounded down.
    candidate = torch.full((1, 256), 2.0**-4 * (1 + 2.0**-8 * 0.999))
    # Three coordinates fewer, as the candidate must not be longer than 1.
    candidate[0, 253:] = 0
    rounded = candidate.bfloat16()
    rounding_error = float((candidate - rounded).norm())
    rounded_score = (units.bfloat16() @ rounded.T).float()
    score_error = float((units @ candidate.T - rounded_score)[0, 0])

    bound = bfloat16.bfloat16_error(units, units.bfloat16(), rounding_error, None)

    assert score_error <= float(bound[0])
    # The error is near the largest possible, 2^-8.
    assert score_error > 0.95 * 2.0**-8


def random_rounded_vectors(seed):
    """200 random units and candidates, the rounded candidates, and their largest rounding error.

    Half of the candidates are equal to units, so that their scores are the largest.
    """
    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 600))
    units = torch.from_numpy(normalise_rows(rng.standard_normal((200, width))))
    candidates = torch.from_numpy(normalise_rows(rng.standard_normal((200, width))))
    candidates[:100] = units[:100]
    rounded = candidates.bfloat16()
    rounding_error = float((candidates - rounded.float()).norm(dim=1).max())
    return units, candidates, rounded, rounding_error


def test_the_error_bound_of_bfloat16_holds_for_random_vectors():
    for seed in range(20):
        units, candidates, rounded, rounding_error = random_rounded_vectors(seed)
        exact_scores = units @ candidates.T
        rounded_scores = (units.bfloat16() @ rounded.T).float()

        bound = bfloat16.bfloat16_error(units, units.bfloat16(), rounding_error, None)

        assert ((exact_scores - rounded_scores) <= bound[:, None]).all()


def test_the_error_bound_of_bfloat16_holds_for_random_vectors_with_a_penalty():
    for seed in range(20):
        units, candidates, rounded, rounding_error = random_rounded_vectors(seed)
        penalty = torch.from_numpy(np.random.default_rng(seed).random(200).astype(np.float32))
        exact_scores = units @ candidates.T - penalty
        rounded_scores = torch.addmm(-penalty.bfloat16(), units.bfloat16(), rounded.T).float()

        bound = bfloat16.bfloat16_error(units, units.bfloat16(), rounding_error, penalty.numpy())

        assert ((exact_scores - rounded_scores) <= bound[:, None]).all()


def test_queries_may_be_a_reversed_view_of_an_array():
    vectors = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)

    _, ids = nearest_neighbours(vectors[::-1], vectors, 1)

    # Each finds itself.
    assert ids[:, 0].tolist() == list(reversed(range(20)))


def test_lists_are_searched_like_arrays():
    vectors = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    expected = nearest_neighbours(vectors[:3], vectors, 2, penalty=np.zeros(20))

    neighbours = nearest_neighbours(vectors[:3].tolist(), vectors.tolist(), 2, penalty=[0] * 20)

    assert_equal_neighbours(neighbours, expected)


def test_rows_are_scaled_to_length_one_in_a_copy_and_zero_rows_stay_zero():
    vectors = np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32)

    scaled = normalise_rows(vectors)

    np.testing.assert_allclose(scaled, [[0.6, 0.8], [0.0, 0.0]])
    assert vectors.tolist() == [[3, 4], [0, 0]]


@pytest.mark.parametrize(
    "factor",
    # The squares of such lengths are 0, tiny, huge or infinite in float32.
    [2.0**-120, 2.0**-100, 2.0**-41, 2.0**63, 2.0**120],
)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_length_of_vectors_does_not_change_cosines(precision, factor):
    rng = np.random.default_rng(6)
    queries = rng.standard_normal((20, 16)).astype(np.float32)
    candidates = rng.standard_normal((90, 16)).astype(np.float32)
    expected_scores, expected_ids = nearest_neighbours(queries, candidates, 5)
    is_scaled_query = np.arange(20) % 2 == 0
    is_scaled_candidate = np.arange(90) % 3 == 1
    queries[is_scaled_query] *= np.float32(factor)
    candidates[is_scaled_candidate] *= np.float32(factor)

    scores, ids = nearest_neighbours(queries, candidates, 5, precision=precision)

    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(scores, expected_scores, rtol=0, atol=2e-7)
    # Cosines of two vectors that were not scaled keep every bit.
    is_usual_pair = ~is_scaled_query[:, None] & ~is_scaled_candidate[ids]
    np.testing.assert_array_equal(scores[is_usual_pair], expected_scores[is_usual_pair])


@pytest.mark.parametrize(
    ("queries", "candidates", "k", "message"),
    [
        pytest.param(np.ones((2, 3)), np.ones((2, 4)), 1, r"\b3\b.*\b4\b", id="widths"),
        pytest.param(np.ones((2, 3)), np.ones((2, 3)), 3, "k is 3; .*2", id="k too large"),
        pytest.param(np.ones((2, 3)), np.ones((2, 3)), 0, "k is 0; .*2", id="k zero"),
        pytest.param(np.full((2, 3), np.nan), np.ones((2, 3)), 1, "row 0 of the queries", id="nan"),
        pytest.param(
            np.ones((2, 3)),
            np.array([[1, 2, 3], [1, np.inf, 3]]),
            1,
            "row 1 of the candidates",
            id="infinity",
        ),
        pytest.param(np.ones(3), np.ones((2, 3)), 1, r"queries .*\(3,\)", id="one vector"),
        pytest.param(np.ones((2, 3)), np.ones((0, 3)), 1, r"candidates .*\(0, 3\)", id="none"),
        pytest.param([[1, 2], [1]], np.ones((2, 2)), 1, "queries", id="ragged list"),
        pytest.param([["a", "b"]], np.ones((2, 2)), 1, "queries .*<U1", id="text"),
        pytest.param([1.0, 2.0], np.ones((2, 2)), 1, r"queries .*\(2,\)", id="flat list"),
    ],
)
def test_the_error_for_vectors_that_cannot_be_compared_names_them(queries, candidates, k, message):
    with pytest.raises(InputError, match=message):
        nearest_neighbours(queries, candidates, k)


def test_an_unknown_precision_is_refused():
    vectors = np.ones((2, 3))

    with pytest.raises(InputError, match="'float64'"):
        nearest_neighbours(vectors, vectors, 1, precision="float64")


@pytest.mark.parametrize(
    "penalty",
    [
        pytest.param(np.zeros(3), id="3 for 2 candidates"),
        pytest.param(np.array([0, np.nan]), id="nan"),
    ],
)
def test_an_invalid_penalty_is_refused(penalty):
    vectors = np.ones((2, 3))

    with pytest.raises(InputError, match="penalty"):
        nearest_neighbours(vectors, vectors, 1, penalty=penalty)


def test_merging_the_neighbours_of_no_parts_is_refused():
    with pytest.raises(InputError, match="no candidates"):
        merge_neighbours([], 5)


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param([0, 500], id="one part"),
        # Some of the equal candidates 3, 100 to 103 and 400 share a part, some do not.
        pytest.param([0, 101, 103, 250, 500], id="parts"),
        # Parts with fewer candidates than neighbours are asked for.
        pytest.param([0, 2, 4, 499, 500], id="small parts"),
    ],
)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("small_blocks")
def test_merged_searches_of_parts_are_one_search_to_the_last_bit(precision, bounds):
    k = 5
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((30, 16))
    candidates = rng.standard_normal((500, 16))
    candidates[100:104] = candidates[3]
    candidates[400] = candidates[3]
    expected = nearest_neighbours(queries, candidates, k, precision=precision)

    neighbours_of_parts = []
    for start, stop in pairwise(bounds):
        neighbours = nearest_neighbours(queries, candidates[start:stop], min(k, stop - start))
        neighbours_of_parts.append(shift_ids(neighbours, start))
    merged = merge_neighbours(neighbours_of_parts, k)

    assert_equal_neighbours(merged, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, bool])
def test_every_search_refuses_embeddings_rounded_to_codes_and_says_how_to_load_them(dtype):
    """The directions of codes are not those of the vectors."""
    vectors = np.eye(4)
    codes = np.eye(4, dtype=dtype)
    index = build_index(vectors)
    for function in (
        lambda: nearest_neighbours(vectors, codes, 1),
        lambda: nearest_neighbours(codes, vectors, 1),
        lambda: mine(codes, k=1),
        lambda: normalise_rows(codes),
        lambda: build_index(codes),
        lambda: build_index(codes, "int8"),
        lambda: search_index(index, codes, 1),
    ):
        with pytest.raises(InputError, match=r"(u?int8|bool).*embeddings\.load_embeddings\(path\)"):
            function()


def test_vectors_of_integers_are_searched():
    """Only int8, uint8 and bool are the types of codes."""
    vectors = np.eye(4)

    _, ids = nearest_neighbours(vectors.astype(int), vectors.tolist(), 1)

    assert ids.tolist() == [[0], [1], [2], [3]]


@pytest.mark.parametrize("memory_mb", [-1, 2.5, None, True, "3", float("nan")])
def test_a_memory_limit_that_is_negative_or_no_integer_is_refused(memory_mb):
    vectors = np.eye(4, 16, dtype=np.float32)

    with pytest.raises(InputError, match="memory_mb "):
        nearest_neighbours(vectors, vectors, 1, memory_mb=memory_mb)


@pytest.mark.parametrize("k", [0, -1, 2.5, None, True, np.True_, "3", float("nan")])
def test_a_number_of_neighbours_that_is_no_positive_integer_is_refused(k):
    vectors = np.eye(4, 16, dtype=np.float32)
    index = build_index(vectors)

    with pytest.raises(InputError, match="k is "):
        nearest_neighbours(vectors, vectors, k)
    with pytest.raises(InputError, match="k is "):
        mine(vectors, k=k)
    with pytest.raises(InputError, match="k is "):
        search_index(index, vectors, k)


def test_the_number_of_neighbours_may_be_an_integer_of_numpy():
    vectors = np.eye(4, 16, dtype=np.float32)

    _, ids = search_index(build_index(vectors), vectors, np.int64(1))

    assert ids.tolist() == [[0], [1], [2], [3]]


def test_the_progress_of_a_search_advances_within_a_block_of_queries(monkeypatch):
    # The bar is shown only on a terminal.
    monkeypatch.setattr("fairseq_lxsr.files.progress.can_overwrite", lambda: True)
    updates = []
    monkeypatch.setattr(Progress, "update", lambda bar, count=1: updates.append(count))
    # One block of queries is compared with three blocks of candidates.
    rng = np.random.default_rng(1)
    candidates = rng.normal(size=(3 * rows.CANDIDATE_ROWS, 4)).astype(np.float32)
    queries = candidates[: rows.QUERY_ROWS]

    nearest_neighbours(queries, candidates, 2, show_progress=True)

    assert len(updates) >= 3
    # The first update counts a part of the queries.
    assert 0 < updates[0] < rows.QUERY_ROWS
