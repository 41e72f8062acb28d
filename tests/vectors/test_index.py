"""Indexes of vectors: their files, their sizes, and their neighbours against exact search."""

import gc
import itertools
import resource
from functools import cache
from pathlib import Path

import faiss
import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.vectors import (
    build_index,
    nearest_neighbours,
    normalise_rows,
    read_index,
    search_index,
    write_index,
)
from fairseq_lxsr.vectors.index import KINDS, build_sketch, stored_cosines
from fairseq_lxsr.vectors.rows import unit_rows

WIDTH = 16
NUM_CENTRES = 40
PER_CENTRE = 50
NUM_CANDIDATES = NUM_CENTRES * PER_CENTRE
RNG = np.random.default_rng(0)
CENTRES = RNG.standard_normal((NUM_CENTRES, WIDTH))
# Clusters of 50 vectors around each centre, so that the nearest neighbours are close to each other.
CENTRES = RNG.standard_normal((40, 16))
CANDIDATES = np.repeat(CENTRES, PER_CENTRE, axis=0)
CANDIDATES = CANDIDATES + 0.3 * RNG.standard_normal(CANDIDATES.shape)
# Every 20th candidate, slightly moved.
QUERIES = CANDIDATES[::20] + 0.02 * RNG.standard_normal((100, WIDTH))


@cache
def index_of_candidates(kind):
    """The index of all candidates."""
    return build_index(CANDIDATES, kind)


def peak_megabytes():
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def anonymous_megabytes():
    """Memory of this process, without pages of files."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


@pytest.mark.parametrize(
    ("kind", "min_share"),
    # Vectors of one bit per dimension miss the nearest for a few queries.
    [("flat", 1), ("float16", 1), ("int8", 1), ("binary", 0.99)],
)
def test_the_five_neighbours_in_any_kind_contain_the_nearest_and_are_best_first(
    kind, min_share, tmp_path
):
    _, nearest = nearest_neighbours(QUERIES, CANDIDATES, 1)
    write_index(index_of_candidates(kind), tmp_path / "index")

    cosines, neighbours = search_index(read_index(tmp_path / "index"), QUERIES, 5)

    contains_nearest = (neighbours == nearest).any(axis=1)
    assert contains_nearest.mean() >= min_share
    assert (np.diff(cosines, axis=1) <= 0).all()


def test_binary_indexes_of_the_same_vectors_have_the_same_bytes(tmp_path):
    """The random rotation of the vectors is drawn with a fixed seed."""
    write_index(build_index(CANDIDATES, "binary"), tmp_path / "first")
    write_index(build_index(CANDIDATES, "binary"), tmp_path / "second")

    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def messages_for_damaged_bytes(path, positions):
    """The errors of `read_index` when one byte of the file is changed, for each position."""
    content = path.read_bytes()
    messages = []
    # The smallest values, and the largest with and without a sign bit.
    for position, value in itertools.product(positions, (0, 1, 127, 255)):
        damaged = bytearray(content)
        damaged[position] = value
        path.write_bytes(damaged)
        try:
            read_index(path)
        except InputError as error:
            messages.append(str(error))
    return messages


@pytest.mark.parametrize("kind", [*KINDS, "sketch"])
def test_a_damaged_index_is_refused_in_one_line_without_much_memory(kind, tmp_path):
    """Damaged lengths would otherwise allocate as much memory as they say."""
    rows = CANDIDATES[:400]
    path = tmp_path / "index"
    if kind == "sketch":
        write_index(build_sketch(rows, np.arange(len(rows))), path)
    else:
        write_index(build_index(rows, kind), path)
    # Every byte of the header, and some of the vectors. Not every change can be noticed: a vector
    # with another value is a valid vector.
    positions = [*range(160), *range(200, path.stat().st_size, 211)]
    faiss_limit = faiss.get_deserialization_vector_byte_limit()
    peak_before = peak_megabytes()

    messages = messages_for_damaged_bytes(path, positions)

    assert len(messages) > 20
    for message in messages:
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
    assert peak_megabytes() - peak_before < 50
    # Reading changes this global setting of faiss for a while.
    assert faiss.get_deserialization_vector_byte_limit() == faiss_limit


@pytest.mark.parametrize(
    ("kind", "vector_bytes"),
    [
        ("flat", WIDTH * 4),
        ("float16", WIDTH * 2),
        ("int8", WIDTH),
        # One bit per dimension, and the int8 vector for rescoring.
        ("binary", WIDTH // 8 + WIDTH),
    ],
)
def test_only_the_vectors_of_an_index_take_more_bytes_if_it_has_more_of_them(
    kind, vector_bytes, tmp_path
):
    """The header, such as the rotation of `binary`, does not grow."""
    num_small = NUM_CANDIDATES // 2
    write_index(build_index(CANDIDATES[:num_small], kind), tmp_path / "small")
    write_index(build_index(CANDIDATES, kind), tmp_path / "large")

    small_size = (tmp_path / "small").stat().st_size
    large_size = (tmp_path / "large").stat().st_size

    assert large_size - small_size == (NUM_CANDIDATES - num_small) * vector_bytes


@pytest.mark.parametrize(
    ("count", "k"),
    # A single vector, all of a few, and more than the 100 that `binary` rescores at least.
    [(1, 1), (7, 7), (400, 300)],
)
@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_neighbours_among_rounded_vectors_differ_and_have_nearly_exact_cosines(kind, count, k):
    candidates = CANDIDATES[:count]
    exact_cosines, _ = nearest_neighbours(QUERIES, candidates, k)

    cosines, neighbours = search_index(build_index(candidates, kind), QUERIES, k)

    np.testing.assert_allclose(cosines, exact_cosines, atol=0.03)
    assert neighbours.min() >= 0
    for ids in neighbours.tolist():
        assert len(set(ids)) == k


def recall(neighbours, exact_neighbours):
    """The share of the exact neighbours of all queries that are among `neighbours`."""
    num_common = 0
    for row, exact_row in zip(neighbours, exact_neighbours, strict=True):
        num_common += len(np.intersect1d(row, exact_row))
    return num_common / exact_neighbours.size


def test_a_binary_index_finds_more_neighbours_than_its_signs_alone():
    """It rescores the nearest by signs with vectors of int8."""
    index = index_of_candidates("binary")
    signs_index = faiss.downcast_index(index.base_index)
    _, exact = nearest_neighbours(QUERIES, CANDIDATES, 5)

    _, by_signs = signs_index.search(normalise_rows(QUERIES), 5)
    _, rescored = search_index(index, QUERIES, 5)

    assert recall(by_signs, exact) < 0.7
    assert recall(rescored, exact) > 0.9


def test_the_error_for_an_unknown_kind_names_the_known_ones():
    with pytest.raises(InputError, match=r"'ivf'.*flat, float16, int8, binary"):
        build_index(CANDIDATES, "ivf")


@pytest.mark.parametrize("kind", ["float16", "int8", "binary"])
def test_rounded_vectors_are_memory_mapped_and_found_even_if_the_file_is_removed(kind, tmp_path):
    path = tmp_path / "index"
    vectors = RNG.standard_normal((100_000, 128), dtype=np.float32)
    queries = vectors[:3]
    write_index(build_index(vectors, kind), path)
    expected = search_index(read_index(path), queries, 5)
    file_megabytes = path.stat().st_size / 2**20

    memory_before = anonymous_megabytes()
    index = read_index(path)
    memory_growth = anonymous_megabytes() - memory_before
    path.unlink()
    gc.collect()
    neighbours = search_index(index, queries, 5)

    # A copy of the file in memory would take as much as the file.
    assert memory_growth < file_megabytes / 4
    np.testing.assert_array_equal(neighbours, expected)


def test_queries_narrower_than_the_index_are_refused():
    index = build_index(CANDIDATES)

    with pytest.raises(InputError, match=rf"queries .*\(100, 5\).*{WIDTH}"):
        search_index(index, QUERIES[:, :5], 1)


def test_more_neighbours_than_vectors_are_refused():
    index = build_index(CANDIDATES)
    k = NUM_CANDIDATES + 1

    with pytest.raises(InputError, match=rf"k is {k}; .*{NUM_CANDIDATES}"):
        search_index(index, QUERIES, k)


@pytest.fixture
def faiss_flat_index():
    """The candidates in an index made by faiss alone."""
    index = faiss.index_factory(WIDTH, "Flat", faiss.METRIC_INNER_PRODUCT)
    index.add(normalise_rows(CANDIDATES))
    return index


def test_a_flat_index_is_written_with_the_bytes_of_faiss(faiss_flat_index, tmp_path):
    faiss.write_index(faiss_flat_index, str(tmp_path / "faiss"))

    write_index(build_index(CANDIDATES), tmp_path / "ours")

    assert (tmp_path / "ours").read_bytes() == (tmp_path / "faiss").read_bytes()


def test_a_flat_index_written_by_faiss_is_searched_as_faiss_does(faiss_flat_index, tmp_path):
    faiss.write_index(faiss_flat_index, str(tmp_path / "faiss"))
    expected_cosines, expected_ids = faiss_flat_index.search(normalise_rows(QUERIES), 5)

    cosines, ids = search_index(read_index(tmp_path / "faiss"), QUERIES, 5)

    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(cosines, expected_cosines, atol=1e-6)


def test_a_second_search_of_a_file_scales_few_vectors_and_finds_the_same(tmp_path, monkeypatch):
    """The first search scales all vectors, and remembers that their lengths are 1."""
    write_index(index_of_candidates("flat"), tmp_path / "index")
    index = read_index(tmp_path / "index")
    query = QUERIES[:1]
    first = search_index(index, query, 5)
    num_scaled = []

    def counting_unit_rows(embeddings, start=0, stop=None, name="embeddings"):
        num_scaled.append(len(embeddings[start:stop]))
        return unit_rows(embeddings, start, stop, name)

    monkeypatch.setattr("fairseq_lxsr.vectors.rows.unit_rows", counting_unit_rows)

    second = search_index(index, query, 5)

    # The query and the nearest vectors, of 2000.
    assert sum(num_scaled) < 20
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, nearest_neighbours(query, CANDIDATES, 5))


@pytest.mark.parametrize("length", [1.001, 3])
def test_a_vector_in_a_file_has_cosine_one_to_itself_whatever_its_length(length, tmp_path):
    """Other programs may write vectors without scaling them."""
    vectors = normalise_rows(CANDIDATES)
    last_id = NUM_CANDIDATES - 1
    vectors[last_id] *= length
    faiss_index = faiss.IndexFlatIP(WIDTH)
    faiss_index.add(vectors)
    faiss.write_index(faiss_index, str(tmp_path / "index"))
    index = read_index(tmp_path / "index")

    # The first search checks the lengths of all vectors; the second uses what it has found.
    for _ in range(2):
        cosines, ids = search_index(index, vectors[last_id:], 1)

        assert ids.tolist() == [[last_id]]
        assert cosines[0, 0] == pytest.approx(1, abs=1e-6)


def test_a_vector_changed_in_memory_after_a_search_is_found_by_the_next():
    vectors = normalise_rows(CANDIDATES)
    index = build_index(vectors)
    search_index(index, QUERIES, 1)

    # Vector 7 now has the direction of vector 0, and another length.
    vectors[7] = 5 * vectors[0]
    cosines, ids = search_index(index, vectors[:1], 2)

    # Rounding decides which of both is first.
    assert sorted(ids[0].tolist()) == [0, 7]
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


@pytest.mark.parametrize(
    "allowed_share",
    # None, fewer than the seven neighbours asked for, some, half, almost all.
    [0, 0.004, 0.05, 0.5, 0.999],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_search_of_allowed_vectors_is_a_search_of_all_without_the_others(kind, allowed_share):
    k = 7
    allowed = np.random.default_rng(5).random(NUM_CANDIDATES) < allowed_share
    index = index_of_candidates(kind)
    queries = CANDIDATES[:9]

    cosines, ids = search_index(index, queries, k, allowed)

    all_cosines, all_ids = search_index(index, queries, NUM_CANDIDATES)
    for row in range(len(queries)):
        is_allowed = allowed[all_ids[row]]
        expected_ids = all_ids[row][is_allowed][:k]
        expected_cosines = all_cosines[row][is_allowed][:k]
        count = len(expected_ids)
        assert allowed[ids[row, :count]].all()
        # If fewer than k vectors are allowed, the remaining places are empty.
        assert (ids[row, count:] == -1).all()
        assert (cosines[row, count:] == -np.inf).all()
        num_common = np.isin(ids[row, :count], expected_ids).sum()
        if kind == "binary":
            # It rescores only the nearest by signs, so it may miss some.
            assert num_common >= count - 3
        else:
            assert num_common == count
            np.testing.assert_allclose(cosines[row, :count], expected_cosines, 1e-6)


@pytest.mark.parametrize(("kind", "tolerance"), [("flat", 1e-6), ("float16", 1e-3), ("int8", 0.02)])
def test_cosines_of_stored_rows_are_those_of_the_vectors_up_to_rounding(kind, tolerance, tmp_path):
    write_index(index_of_candidates(kind), tmp_path / "index")
    index = read_index(tmp_path / "index")
    # In no order, with the first and the last, and one twice.
    rows = np.array([7, NUM_CANDIDATES - 1, 0, 7])
    query = normalise_rows(QUERIES[:1])[0]

    cosines = stored_cosines(index, rows, query)

    exact_cosines = normalise_rows(CANDIDATES)[rows] @ query
    np.testing.assert_allclose(cosines, exact_cosines, atol=tolerance)
    # The same to the last bit, whichever rows are asked for with them.
    all_cosines = stored_cosines(index, np.arange(NUM_CANDIDATES), query)
    np.testing.assert_array_equal(cosines, all_cosines[rows])


@pytest.fixture
def sketch(tmp_path):
    """The sketch of all candidates, read from a file."""
    write_index(build_sketch(CANDIDATES, np.arange(NUM_CANDIDATES)), tmp_path / "sketch")
    return read_index(tmp_path / "sketch")


def test_sixty_neighbours_in_a_sketch_contain_nearly_all_of_the_ten_nearest(sketch):
    """A sketch rounds vectors, so more candidates are asked for than are needed."""
    _, nearest = nearest_neighbours(QUERIES, CANDIDATES, 10)

    _, neighbours = search_index(sketch, QUERIES, 60)

    assert recall(neighbours, nearest) >= 0.99


def test_a_sketch_returns_all_allowed_vectors_if_as_many_are_asked_for(sketch):
    # The first vector of each cluster.
    allowed_ids = list(range(0, NUM_CANDIDATES, PER_CENTRE))
    allowed = np.isin(np.arange(NUM_CANDIDATES), allowed_ids)

    _, neighbours = search_index(sketch, QUERIES, len(allowed_ids), allowed=allowed)

    for ids in neighbours.tolist():
        assert sorted(ids) == allowed_ids
