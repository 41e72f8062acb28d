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


def brute_force(queries, candidates, k, penalty=0.0):
    """All cosines in float64, the k largest, of equal ones the first."""
    a, b = (
        x / np.linalg.norm(x, axis=1, keepdims=True)
        for x in (queries.astype(float), candidates.astype(float))
    )
    scores = a @ b.T - penalty
    found = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, found, axis=1), found


def assert_same_neighbours(found, expected):
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], atol=1e-6)


@pytest.fixture
def small_blocks(monkeypatch):
    """Many blocks of odd sizes even for small sets."""
    monkeypatch.setattr(rows, "QUERY_ROWS", 7)
    monkeypatch.setattr(rows, "CANDIDATE_ROWS", 48)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("queries", "candidates", "width", "k"),
    [(1, 1, 3, 1), (17, 50, 8, 10), (40, 33, 5, 33), (23, 700, 16, 3)],
)
@pytest.mark.usefixtures("small_blocks")
def test_equal_to_brute_force(queries, candidates, width, k, precision):
    rng = np.random.default_rng(queries)
    a, b = rng.standard_normal((queries, width)), rng.standard_normal((candidates, width)) * 7
    penalty = rng.random(candidates).astype(np.float32)
    found = nearest_neighbours(a, b, k, penalty=penalty, precision=precision)
    assert_same_neighbours(found, brute_force(a, b, k, penalty))
    assert_same_neighbours(nearest_neighbours(a, b, k, precision=precision), brute_force(a, b, k))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_equal_to_faiss_on_many_candidates(precision):
    rng = np.random.default_rng(1)
    candidates = normalise_rows(rng.standard_normal((20_000, 32)))
    queries = normalise_rows(candidates[:300] + 0.1 * rng.standard_normal((300, 32)))
    index = faiss.IndexFlatIP(32)
    index.add(candidates)
    assert_same_neighbours(
        nearest_neighbours(queries, candidates, 10, precision=precision), index.search(queries, 10)
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("small_blocks")
def test_of_equal_candidates_the_first_are_found_first(precision):
    rng = np.random.default_rng(2)
    once = rng.standard_normal((60, 8)).astype(np.float32)
    # row i is also row 119 - i and row 120 + i
    candidates = np.concatenate([once, once[::-1], once])
    _, found = nearest_neighbours(once, candidates, 3, precision=precision)
    rows = np.arange(60)
    np.testing.assert_array_equal(found, np.stack([rows, 119 - rows, 120 + rows], axis=1))
    _, found = nearest_neighbours(np.ones((9, 4)), np.ones((150, 4)), 10, precision=precision)
    np.testing.assert_array_equal(found, np.tile(np.arange(10), (9, 1)))


@pytest.mark.parametrize("penalised", [False, True])
def test_bfloat16_finds_what_its_own_rounding_hides(penalised):
    """Thousands of candidates closer to each other than bfloat16 can tell: the search falls back to
    float32.
    """
    rng = np.random.default_rng(3)
    candidates = np.ones((5000, 16)) + 1e-3 * rng.standard_normal((5000, 16))
    queries = np.ones((20, 16)) + 1e-3 * rng.standard_normal((20, 16))
    penalty = (1e-3 * rng.random(5000)).astype(np.float32) if penalised else None
    exact = nearest_neighbours(queries, candidates, 4, penalty=penalty)
    rounded = nearest_neighbours(queries, candidates, 4, penalty=penalty, precision="bfloat16")
    np.testing.assert_array_equal(rounded, exact)
    units = rows.unit_rows(queries, 0, 20, "queries")
    _, found, certain = bfloat16.search_bfloat16(
        units, rows.CandidateRows(candidates, penalty, memory_mb=100), 4
    )
    assert not certain.all()  # the fallback was needed
    assert (found != exact[1]).any()


def test_float16_in_a_memory_map_and_any_memory_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "QUERY_ROWS", 16)
    rng = np.random.default_rng(5)
    candidates = rng.standard_normal((500, 24)).astype(np.float16)
    np.save(tmp_path / "candidates.npy", candidates)
    mapped = np.load(tmp_path / "candidates.npy", mmap_mode="r")
    queries = mapped[:100]
    for memory_mb in (0, 1, 1000):
        found = nearest_neighbours(queries, mapped, 7, memory_mb=memory_mb)
        assert_same_neighbours(found, brute_force(queries, candidates, 7))


def test_the_bound_on_bfloat16_holds_where_rounding_is_worst():
    """Every coordinate of y lies just below the middle of two bfloat16 numbers: 2^-4 (1 + 2^-8),
    rounded down.
    """
    x = np.full((1, 256), 2.0**-4)
    y = np.full((1, 256), 2.0**-4 * (1 + 2.0**-8 * 0.999))
    y[0, 253:] = 0  # so that y is shorter than one
    units, candidate = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    rounded = candidate.bfloat16()
    rounding = float((candidate - rounded).norm())
    score = (units.bfloat16() @ rounded.T).float()
    missing = float((units @ candidate.T - score)[0, 0])
    bound = float(bfloat16.bfloat16_error(units, units.bfloat16(), rounding, None)[0])
    assert 1.9 * 2.0**-9 < missing <= bound


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_on_bfloat16_holds(seed):
    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 600))
    units, candidates = (
        torch.from_numpy(normalise_rows(rng.standard_normal((200, width)))) for _ in range(2)
    )
    candidates[:100] = units[:100]
    penalty = rng.random(200).astype(np.float32) if seed % 2 else None
    minus = torch.zeros(200) if penalty is None else torch.from_numpy(penalty)
    rounded = candidates.bfloat16()
    scores = torch.addmm(-minus.bfloat16(), units.bfloat16(), rounded.T).float()
    exact = units @ candidates.T - minus
    rounding = float((candidates - rounded.float()).norm(dim=1).max())
    bound = bfloat16.bfloat16_error(units, units.bfloat16(), rounding, penalty)
    assert ((exact - scores) <= bound[:, None]).all()


def test_a_reversed_view_and_lists_are_searched():
    rows = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    _, found = nearest_neighbours(rows[::-1], rows, 1)
    assert found[:, 0].tolist() == list(range(19, -1, -1))
    expected = nearest_neighbours(rows[:3], rows, 2, penalty=np.zeros(20))
    found = nearest_neighbours(rows[:3].tolist(), rows.tolist(), 2, penalty=[0] * 20)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    rows = np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32)
    np.testing.assert_allclose(normalise_rows(rows), [[0.6, 0.8], [0.0, 0.0]])
    assert rows[0, 0] == 3  # input is untouched


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("factor", [2.0**-120, 2.0**-100, 2.0**-41, 2.0**63, 2.0**120])
def test_vectors_of_any_finite_length_have_the_same_cosines(factor, precision):
    """Whose squares are 0 or infinite in float32; ordinary rows beside them keep every bit."""
    rng = np.random.default_rng(6)
    queries, candidates = (
        rng.standard_normal((count, 16)).astype(np.float32) for count in (20, 90)
    )
    expected = nearest_neighbours(queries, candidates, 5)
    queries[::2], candidates[1::3] = (
        queries[::2] * np.float32(factor),
        candidates[1::3] * np.float32(factor),
    )
    scores, found = nearest_neighbours(queries, candidates, 5, precision=precision)
    np.testing.assert_array_equal(found, expected[1])
    np.testing.assert_allclose(scores, expected[0], rtol=0, atol=2e-7)
    ordinary = found[1::2] % 3 != 1
    np.testing.assert_array_equal(scores[1::2][ordinary], expected[0][1::2][ordinary])


@pytest.mark.parametrize(
    ("queries", "candidates", "k", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), 1, r"\b3\b.*\b4\b"),
        (np.ones((2, 3)), np.ones((2, 3)), 3, "k is 3; .*2"),
        (np.ones((2, 3)), np.ones((2, 3)), 0, "k is 0; .*2"),
        (np.full((2, 3), np.nan), np.ones((2, 3)), 1, "row 0 of the queries"),
        (
            np.ones((2, 3)),
            np.array([[1, 2, 3], [1, np.inf, 3]]),
            1,
            "row 1 of the candidates",
        ),
        (np.ones(3), np.ones((2, 3)), 1, r"queries .*\(3,\)"),
        (np.ones((2, 3)), np.ones((0, 3)), 1, r"candidates .*\(0, 3\)"),
        (
            [[1, 2], [1]],
            np.ones((2, 2)),
            1,
            "queries",
        ),
        ([["a", "b"]], np.ones((2, 2)), 1, "queries .*<U1"),
        ([1.0, 2.0], np.ones((2, 2)), 1, r"queries .*\(2,\)"),
    ],
)
def test_what_has_no_neighbours_is_refused(queries, candidates, k, message):
    with pytest.raises(InputError, match=message):
        nearest_neighbours(queries, candidates, k)
    with pytest.raises(InputError, match="'float64'"):
        nearest_neighbours(np.ones((2, 3)), np.ones((2, 3)), 1, precision="float64")
    with pytest.raises(InputError, match="no candidates"):
        merge_neighbours([], 5)
    for penalty in (np.zeros(3), np.array([0, np.nan])):
        with pytest.raises(InputError, match="penalty"):
            nearest_neighbours(np.ones((2, 3)), np.ones((2, 3)), 1, penalty=penalty)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("small_blocks")
def test_merged_parts_are_one_search_to_the_last_bit(precision):
    rng = np.random.default_rng(0)
    queries, candidates = rng.standard_normal((30, 16)), rng.standard_normal((500, 16))
    candidates[100:104] = candidates[400] = candidates[3]  # ties in one part and in several
    for cuts in ([0, 500], [0, 101, 103, 250, 500], [0, 2, 4, 499, 500]):
        parts = [
            shift_ids(
                nearest_neighbours(queries, candidates[start:stop], min(5, stop - start)), start
            )
            for start, stop in pairwise(cuts)
        ]
        merged, whole = (
            merge_neighbours(parts, 5),
            nearest_neighbours(queries, candidates, 5, precision=precision),
        )
        for one, other in zip(merged, whole, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, bool])
def test_codes_are_refused(kind):
    """Their directions are not those of the vectors; whole numbers of other types are taken for
    what they are.
    """
    vectors, codes = np.eye(4), np.eye(4, dtype=kind)
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
    assert nearest_neighbours(vectors.astype(int), vectors.tolist(), 1)[1].ravel().tolist() == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("value", [-1, 2.5, None, True, "3", float("nan")])
def test_a_memory_limit_is_an_integer(value):
    vectors = np.eye(4, 16, dtype=np.float32)
    with pytest.raises(InputError, match="memory_mb "):
        nearest_neighbours(vectors, vectors, 1, memory_mb=value)


@pytest.mark.parametrize("value", [0, -1, 2.5, None, True, np.True_, "3", float("nan")])
def test_numbers_of_neighbours(value):
    vectors = np.eye(4, 16, dtype=np.float32)
    index = build_index(vectors)
    for name, search in (
        ("k", lambda: nearest_neighbours(vectors, vectors, value)),
        ("k", lambda: mine(vectors, k=value)),
        ("k", lambda: search_index(index, vectors, value)),
    ):
        with pytest.raises(InputError, match=f"{name} is "):
            search()
    assert search_index(index, vectors, np.int64(1))[1].ravel().tolist() == [
        0,
        1,
        2,
        3,
    ]


def test_a_search_is_shown_while_a_block_of_queries_is_compared(monkeypatch):
    """The block has all queries, and the candidates several blocks."""
    monkeypatch.setattr("fairseq_lxsr.files.progress.can_overwrite", lambda: True)
    shown = []
    monkeypatch.setattr(Progress, "update", lambda bar, n=1: shown.append(n))
    generator = np.random.default_rng(1)
    candidates = generator.normal(size=(3 * rows.CANDIDATE_ROWS, 4)).astype(np.float32)
    nearest_neighbours(candidates[: rows.QUERY_ROWS], candidates, 2, show_progress=True)
    assert len(shown) >= 3
    assert 0 < shown[0] < rows.QUERY_ROWS
