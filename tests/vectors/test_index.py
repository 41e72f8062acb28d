"""The approximate indexes against exact search."""

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
def test_recall(kind, recall, tmp_path):
    _, exact = nearest_neighbours(QUERIES, CANDIDATES, 1)
    write_index(built(kind), tmp_path / "index")
    cosines, found = search_index(read_index(tmp_path / "index"), QUERIES, 5)
    assert (found == exact).any(axis=1).mean() >= recall
    assert (np.diff(cosines, axis=1) <= 0).all()
    if kind == "binary":  # which draws by a seed
        write_index(build_index(CANDIDATES, kind), tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == (tmp_path / "index").read_bytes()


@pytest.mark.parametrize("kind", [*KINDS, "sketch"])
def test_every_byte_of_the_header_changed(kind, tmp_path):
    """A length of the wrong size takes neither the memory nor a traceback."""
    rows = CANDIDATES[:400]
    index = build_sketch(rows, np.arange(400)) if kind == "sketch" else build_index(rows, kind)
    write_index(index, tmp_path / "index")
    whole = (tmp_path / "index").read_bytes()
    limit, peak, messages = faiss.get_deserialization_vector_byte_limit(), peak_megabytes(), []
    for place, value in itertools.product(
        [*range(160), *range(200, len(whole), 211)], (0, 1, 127, 255)
    ):
        (tmp_path / "index").write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        try:
            read_index(tmp_path / "index")
        except InputError as error:
            messages.append(str(error))
    assert len(messages) > 20
    for message in messages:
        assert message.startswith(f"{tmp_path / 'index'}: ")
        assert "\n" not in message
    assert peak_megabytes() - peak < 50
    assert faiss.get_deserialization_vector_byte_limit() == limit


@pytest.mark.parametrize(
    ("kind", "size"), [("flat", 64), ("float16", 32), ("int8", 16), ("binary", 18)]
)
def test_bytes_of_a_vector(kind, size, tmp_path):
    """The rest, such as the rotation of `binary`, does not grow with the vectors."""
    few, many = tmp_path / "few", tmp_path / "many"
    for path, count in ((few, 1000), (many, 2000)):
        write_index(build_index(CANDIDATES[:count], kind), path)
    assert many.stat().st_size - few.stat().st_size == 1000 * size


@pytest.mark.parametrize("kind", ["int8", "binary"])
@pytest.mark.parametrize("count", [1, 7, 400])
def test_cosines_of_rounded_vectors_are_near_the_exact_ones(kind, count):
    """Of any number of vectors, and as many as there are."""
    k = min(count, 300)
    exact, _ = nearest_neighbours(QUERIES, CANDIDATES[:count], k)
    cosines, found = search_index(build_index(CANDIDATES[:count], kind), QUERIES, k)
    assert found.min() >= 0
    assert all(len(set(row)) == k for row in found.tolist())
    np.testing.assert_allclose(cosines, exact, atol=0.03)


def test_signs_alone_are_worse_than_scored_again():
    index = built("binary")
    _, exact = nearest_neighbours(QUERIES, CANDIDATES, 5)
    signs = faiss.downcast_index(index.base_index).search(normalise_rows(QUERIES), 5)[1]
    alone, again = (
        np.mean([len(np.intersect1d(*rows)) for rows in zip(found, exact, strict=True)]) / 5
        for found in (signs, search_index(index, QUERIES, 5)[1])
    )
    assert alone < 0.7 < 0.9 < again


def test_unknown_kinds_are_refused():
    with pytest.raises(InputError, match=r"'ivf'.*flat, float16, int8, binary"):
        build_index(CANDIDATES, "ivf")


@pytest.mark.parametrize("kind", ["float16", "int8", "binary"])
def test_rounded_vectors_stay_on_disk(kind, tmp_path):
    """A search reads them there, also when the file has been closed and removed."""
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


def test_bad_queries():  # bad files: test_every_byte_of_the_header_changed
    narrow = r"queries .*\(100, 5\).*16"
    many = "k is 2001; .*2000"
    for queries, k, message in ((QUERIES[:, :5], 1, narrow), (QUERIES, 2001, many)):
        with pytest.raises(InputError, match=message):
            search_index(build_index(CANDIDATES), queries, k)


def test_a_flat_index_is_that_of_faiss(tmp_path):
    """Byte for byte, so that either reads what the other has written."""
    write_index(build_index(CANDIDATES), tmp_path / "ours")
    index = faiss.index_factory(16, "Flat", faiss.METRIC_INNER_PRODUCT)
    index.add(normalise_rows(CANDIDATES))
    faiss.write_index(index, str(tmp_path / "theirs"))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    cosines, found = search_index(read_index(tmp_path / "theirs"), QUERIES, 5)
    expected = index.search(normalise_rows(QUERIES), 5)
    np.testing.assert_array_equal(found, expected[1])
    np.testing.assert_allclose(cosines, expected[0], atol=1e-6)


def test_the_vectors_of_a_file_are_scaled_once(tmp_path, monkeypatch):
    """Later searches scale the nearest only, and find the same."""
    write_index(built("flat"), tmp_path / "index")
    index = read_index(tmp_path / "index")
    first = search_index(index, QUERIES[:1], 5)
    num_rows = []

    def counted(embeddings, start=0, stop=None, name="embeddings"):
        num_rows.append(len(embeddings[start:stop]))
        return unit_rows(embeddings, start, stop, name)

    monkeypatch.setattr("fairseq_lxsr.vectors.rows.unit_rows", counted)
    second = search_index(index, QUERIES[:1], 5)
    assert sum(num_rows) < 20
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, nearest_neighbours(QUERIES[:1], CANDIDATES, 5))


@pytest.mark.parametrize("longest", [1.001, 3])
def test_vectors_of_any_length_in_a_file_are_scaled(longest, tmp_path):
    """As faiss writes them, if the program did not scale them."""
    rows = normalise_rows(CANDIDATES)
    rows[-1] *= longest
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    faiss.write_index(index, str(tmp_path / "index"))
    stored = read_index(tmp_path / "index")
    for _ in range(2):
        cosines, ids = search_index(stored, rows[-1:], 1)
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
def test_only_allowed_vectors_are_found(kind, share):
    """As many as are allowed, in the order that a search for all has them; `binary` compares a
    part of them.
    """
    allowed = np.random.default_rng(5).random(len(CANDIDATES)) < share
    index, queries = built(kind), CANDIDATES[:9]
    cosines, ids = search_index(index, queries, 7, allowed)
    all_cosines, all_ids = search_index(index, queries, len(CANDIDATES))
    for row in range(9):
        is_allowed = allowed[all_ids[row]]
        count = min(7, is_allowed.sum())
        assert allowed[ids[row, :count]].all()
        assert (ids[row, count:] == -1).all()
        assert (cosines[row, count:] == -np.inf).all()
        overlap = np.isin(ids[row, :count], all_ids[row][is_allowed][:7]).sum()
        assert overlap >= count - 3 * (kind == "binary")
        if kind != "binary":
            np.testing.assert_allclose(cosines[row, :count], all_cosines[row][is_allowed][:7], 1e-6)


@pytest.mark.parametrize(("kind", "tolerance"), [("flat", 1e-6), ("float16", 1e-3), ("int8", 0.02)])
def test_stored_vectors_are_compared(kind, tolerance, tmp_path):
    write_index(built(kind), tmp_path / "index")
    rows = np.array([7, 1999, 0, 7])
    [unit] = normalise_rows(QUERIES[:1])
    index = read_index(tmp_path / "index")
    cosines = stored_cosines(index, rows, unit)
    np.testing.assert_allclose(cosines, normalise_rows(CANDIDATES)[rows] @ unit, atol=tolerance)
    all_cosines = stored_cosines(index, np.arange(len(CANDIDATES)), unit)
    np.testing.assert_array_equal(cosines, all_cosines[rows])


def test_a_sketch_finds_the_nearest_among_its_candidates(tmp_path):
    write_index(build_sketch(CANDIDATES, np.arange(2000)), tmp_path / "sketch")
    _, exact = nearest_neighbours(QUERIES, CANDIDATES, 10)
    _, found = search_index(read_index(tmp_path / "sketch"), QUERIES, 60)
    shared = [len(set(a) & set(b)) for a, b in zip(exact, found.tolist(), strict=True)]
    assert np.mean(shared) >= 9.9
    allowed = np.arange(len(CANDIDATES)) % 50 == 0
    _, found = search_index(read_index(tmp_path / "sketch"), QUERIES, 40, allowed=allowed)
    assert all(set(row) == set(range(0, 2000, 50)) for row in found.tolist())
