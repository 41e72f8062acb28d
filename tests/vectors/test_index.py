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

RNG = np.random.default_rng(0)
CENTRES = RNG.standard_normal((40, 16))
CANDIDATES = np.repeat(CENTRES, 50, axis=0) + 0.3 * RNG.standard_normal((2000, 16))
QUERIES = CANDIDATES[::20] + 0.02 * RNG.standard_normal((100, 16))


@cache
def built(kind):
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
    ("kind", "recall"),
    [("flat", 1), ("float16", 1), ("int8", 1), ("binary", 0.99)],
)
def test_the_nearest_vector_is_among_the_neighbours_of_any_kind(kind, recall, tmp_path):
    _, nearest = nearest_neighbours(QUERIES, CANDIDATES, 1)
    write_index(built(kind), tmp_path / "index")
    cosines, neighbours = search_index(read_index(tmp_path / "index"), QUERIES, 5)
    assert (neighbours == nearest).any(axis=1).mean() >= recall
    assert (np.diff(cosines, axis=1) <= 0).all()


def test_binary_indexes_of_the_same_vectors_are_equal(tmp_path):
    """Their rotation is drawn with a seed."""
    write_index(build_index(CANDIDATES, "binary"), tmp_path / "first")
    write_index(build_index(CANDIDATES, "binary"), tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@pytest.mark.parametrize("kind", [*KINDS, "sketch"])
def test_a_damaged_index_is_refused_in_one_line_without_much_memory(kind, tmp_path):
    """Damaged lengths would otherwise allocate as much memory as they say."""
    rows = CANDIDATES[:400]
    path = tmp_path / "index"
    if kind == "sketch":
        write_index(build_sketch(rows, np.arange(400)), path)
    else:
        write_index(build_index(rows, kind), path)
    content = path.read_bytes()
    limit = faiss.get_deserialization_vector_byte_limit()
    peak = peak_megabytes()
    messages = []
    # Every byte of the header, and some of the rest.
    positions = [*range(160), *range(200, len(content), 211)]
    for position, value in itertools.product(positions, (0, 1, 127, 255)):
        damaged = bytearray(content)
        damaged[position] = value
        path.write_bytes(damaged)
        try:
            read_index(path)
        except InputError as error:
            messages.append(str(error))
    assert len(messages) > 20
    for message in messages:
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
    assert peak_megabytes() - peak < 50
    assert faiss.get_deserialization_vector_byte_limit() == limit


@pytest.mark.parametrize(
    ("kind", "size"), [("flat", 64), ("float16", 32), ("int8", 16), ("binary", 18)]
)
def test_a_vector_takes_the_same_number_of_bytes_in_any_index_of_its_kind(kind, size, tmp_path):
    """The header, such as the rotation of `binary`, does not grow."""
    write_index(build_index(CANDIDATES[:1000], kind), tmp_path / "small")
    write_index(build_index(CANDIDATES, kind), tmp_path / "large")
    small = (tmp_path / "small").stat().st_size
    large = (tmp_path / "large").stat().st_size
    assert large - small == 1000 * size


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_cosines_of_rounded_vectors_are_near_the_exact_ones(kind):
    for count, k in ((1, 1), (7, 7), (400, 300)):
        exact_cosines, _ = nearest_neighbours(QUERIES, CANDIDATES[:count], k)
        cosines, neighbours = search_index(build_index(CANDIDATES[:count], kind), QUERIES, k)
        assert neighbours.min() >= 0
        for row in neighbours.tolist():
            assert len(set(row)) == k
        np.testing.assert_allclose(cosines, exact_cosines, atol=0.03)


def recall(neighbours, exact_neighbours):
    """The share of the exact neighbours of all queries that are among `neighbours`."""
    num_common = 0
    for row, exact_row in zip(neighbours, exact_neighbours, strict=True):
        num_common += len(np.intersect1d(row, exact_row))
    return num_common / exact_neighbours.size


def test_neighbours_by_signs_are_rescored_by_a_binary_index():
    index = built("binary")
    _, exact_neighbours = nearest_neighbours(QUERIES, CANDIDATES, 5)
    _, by_signs = faiss.downcast_index(index.base_index).search(normalise_rows(QUERIES), 5)
    _, rescored = search_index(index, QUERIES, 5)
    assert recall(by_signs, exact_neighbours) < 0.7
    assert recall(rescored, exact_neighbours) > 0.9


def test_unknown_kinds_are_refused():
    with pytest.raises(InputError, match=r"'ivf'.*flat, float16, int8, binary"):
        build_index(CANDIDATES, "ivf")


@pytest.mark.parametrize("kind", ["float16", "int8", "binary"])
def test_rounded_vectors_are_read_from_disk_even_if_the_file_is_removed(kind, tmp_path):
    rows = RNG.standard_normal((100_000, 128), dtype=np.float32)
    write_index(build_index(rows, kind), tmp_path / "index")
    expected = search_index(read_index(tmp_path / "index"), rows[:3], 5)
    before = anonymous_megabytes()
    index = read_index(tmp_path / "index")
    size = (tmp_path / "index").stat().st_size / 2**20
    assert anonymous_megabytes() - before < size / 4
    (tmp_path / "index").unlink()
    gc.collect()
    np.testing.assert_array_equal(search_index(index, rows[:3], 5), expected)


def test_queries_of_another_width_and_too_many_neighbours_are_refused():
    with pytest.raises(InputError, match=r"queries .*\(100, 5\).*16"):
        search_index(build_index(CANDIDATES), QUERIES[:, :5], 1)
    with pytest.raises(InputError, match=r"k is 2001; .*2000"):
        search_index(build_index(CANDIDATES), QUERIES, 2001)


def test_the_file_of_a_flat_index_is_the_file_of_faiss(tmp_path):
    """Byte for byte, so that each reads the files of the other."""
    write_index(build_index(CANDIDATES), tmp_path / "ours")
    faiss_index = faiss.index_factory(16, "Flat", faiss.METRIC_INNER_PRODUCT)
    faiss_index.add(normalise_rows(CANDIDATES))
    faiss.write_index(faiss_index, str(tmp_path / "faiss"))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "faiss").read_bytes()
    cosines, neighbours = search_index(read_index(tmp_path / "faiss"), QUERIES, 5)
    expected_cosines, expected_neighbours = faiss_index.search(normalise_rows(QUERIES), 5)
    np.testing.assert_array_equal(neighbours, expected_neighbours)
    np.testing.assert_allclose(cosines, expected_cosines, atol=1e-6)


def test_only_the_first_search_scales_all_vectors_of_a_file(tmp_path, monkeypatch):
    """Later searches scale only the nearest."""
    write_index(built("flat"), tmp_path / "index")
    index = read_index(tmp_path / "index")
    first = search_index(index, QUERIES[:1], 5)
    num_rows = []

    def counting_unit_rows(embeddings, start=0, stop=None, name="embeddings"):
        num_rows.append(len(embeddings[start:stop]))
        return unit_rows(embeddings, start, stop, name)

    monkeypatch.setattr("fairseq_lxsr.vectors.rows.unit_rows", counting_unit_rows)
    second = search_index(index, QUERIES[:1], 5)
    assert sum(num_rows) < 20
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, nearest_neighbours(QUERIES[:1], CANDIDATES, 5))


def test_vectors_of_any_length_in_a_file_are_scaled(tmp_path):
    """Other programs may write vectors without scaling them."""
    for length in (1.001, 3):
        rows = normalise_rows(CANDIDATES)
        rows[-1] *= length
        faiss_index = faiss.IndexFlatIP(rows.shape[1])
        faiss_index.add(rows)
        faiss.write_index(faiss_index, str(tmp_path / "index"))
        index = read_index(tmp_path / "index")
        # The first search scales the vectors of the file.
        for _ in range(2):
            cosines, ids = search_index(index, rows[-1:], 1)
            assert ids[0, 0] == len(rows) - 1
            assert cosines[0, 0] == pytest.approx(1, abs=1e-6)


def test_vectors_in_memory_may_change_between_searches():
    rows = normalise_rows(CANDIDATES)
    index = build_index(rows)
    search_index(index, QUERIES, 1)
    rows[7] = 5 * rows[0]
    cosines, ids = search_index(index, rows[:1], 2)
    assert ids[0].tolist() == [0, 7]
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


@pytest.mark.parametrize("share", [0, 0.004, 0.05, 0.5, 0.999])
@pytest.mark.parametrize("kind", KINDS)
def test_a_search_of_allowed_vectors_has_the_order_of_a_search_of_all(kind, share):
    """Except that `binary` rescores only some of them."""
    allowed = np.random.default_rng(5).random(len(CANDIDATES)) < share
    index = built(kind)
    queries = CANDIDATES[:9]
    cosines, ids = search_index(index, queries, 7, allowed)
    all_cosines, all_ids = search_index(index, queries, len(CANDIDATES))
    for row in range(9):
        is_allowed = allowed[all_ids[row]]
        expected_ids = all_ids[row][is_allowed][:7]
        expected_cosines = all_cosines[row][is_allowed][:7]
        count = len(expected_ids)
        assert allowed[ids[row, :count]].all()
        assert (ids[row, count:] == -1).all()
        assert (cosines[row, count:] == -np.inf).all()
        num_common = np.isin(ids[row, :count], expected_ids).sum()
        if kind == "binary":
            assert num_common >= count - 3
        else:
            assert num_common == count
            np.testing.assert_allclose(cosines[row, :count], expected_cosines, 1e-6)


@pytest.mark.parametrize(("kind", "tolerance"), [("flat", 1e-6), ("float16", 1e-3), ("int8", 0.02)])
def test_cosines_of_stored_rows_are_those_of_the_vectors(kind, tolerance, tmp_path):
    write_index(built(kind), tmp_path / "index")
    rows = np.array([7, 1999, 0, 7])
    [unit] = normalise_rows(QUERIES[:1])
    index = read_index(tmp_path / "index")
    cosines = stored_cosines(index, rows, unit)
    np.testing.assert_allclose(cosines, normalise_rows(CANDIDATES)[rows] @ unit, atol=tolerance)
    all_cosines = stored_cosines(index, np.arange(len(CANDIDATES)), unit)
    np.testing.assert_array_equal(cosines, all_cosines[rows])


def test_the_neighbours_of_a_sketch_contain_the_nearest_and_all_allowed_vectors(tmp_path):
    write_index(build_sketch(CANDIDATES, np.arange(2000)), tmp_path / "sketch")
    sketch = read_index(tmp_path / "sketch")
    _, nearest = nearest_neighbours(QUERIES, CANDIDATES, 10)
    _, neighbours = search_index(sketch, QUERIES, 60)
    assert recall(neighbours, nearest) >= 0.99
    allowed = np.arange(len(CANDIDATES)) % 50 == 0
    _, neighbours = search_index(sketch, QUERIES, 40, allowed=allowed)
    for row in neighbours.tolist():
        assert sorted(row) == list(range(0, 2000, 50))
