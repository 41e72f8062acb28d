"""Indexes of vectors: exact search with NumPy, search of rounded vectors with faiss.

faiss is optional. Indexes are stored in its format.
"""

import contextlib
import os
import struct
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.errors import InputError, first_line
from fairseq_lxsr.files.locks import ThreadLock
from fairseq_lxsr.files.mapping import map_file
from fairseq_lxsr.files.write import naming
from fairseq_lxsr.machine import require
from fairseq_lxsr.options import INDEX_KINDS, MINING_KINDS
from fairseq_lxsr.vectors.neighbours import fill_neighbours, nearest_neighbours
from fairseq_lxsr.vectors.rows import (
    CANDIDATE_ROWS,
    FloatArray,
    IntArray,
    are_unit_rows,
    as_matrix,
    check_count,
    normalise_rows,
    unit_rows,
)

# All kinds of `build_index`: those of `lxsr index` and of `lxsr mine`.
KINDS = tuple(dict.fromkeys((*INDEX_KINDS, *MINING_KINDS)))
# Number of vectors to add to an index at a time.
ADD_ROWS = 65_536
# `int8` and `binary` learn the range of each dimension from 256 sqrt(M) of M vectors.
TRAINING_STEPS_PER_ROOT = 4
TRAINING_ROWS_PER_STEP = 64
# Number of candidates that a `binary` index rescores: at least RESCORED, and at least
# RESCORED_PER_K for each neighbour to return.
RESCORED = 100
RESCORED_PER_K = 10
# Minimum number of vectors of a sketch: for fewer, comparing all vectors is fast.
MIN_SKETCH_ROWS = 2048
SKETCH_TRAINING_ROWS = 4096
SKETCH_ITERATIONS = 10
# Penalty for the cosine of a vector that is not allowed, which ranks it below all allowed vectors.
EXCLUDED_PENALTY = 4
# A search of a flat index copies the allowed vectors if they are at most this fraction of all
# vectors; otherwise it compares the query with all vectors.
COPIED_SHARE = 0.1
# Factor by which a search of a `binary` index is extended if too few of its results are allowed.
DEEPER = 4

# Serializes changes to the allocation limit of faiss, which applies to the whole process.
_limit_lock = ThreadLock(lambda: _restore_limit())
# The limit in bytes to restore when `_limited` ends; empty at other times.
_previous_limits: list[int] = []


# -- building


def _faiss() -> Any:
    """Import faiss, which all kinds of indexes except flat need."""
    require("faiss", "faiss", "an index kind other than flat")
    import faiss

    return faiss


def build_index(embeddings: NDArray[Any], kind: str = "flat") -> Any:
    """Build an index for search by cosine similarity (inner product of unit vectors).

        index = build_index(embeddings, "float16")
        cosines, ids = search_index(index, queries, k=5)

    Args:
        embeddings: vectors [M, D], in memory or memory-mapped; read in blocks.
        kind: `flat` is exact. `float16` and `int8` compare the float32 query with all vectors,
            which are rounded and take half or a quarter of the bytes. `binary`, for mining,
            compares the signs of the rotated vectors (Hamming distance, D/8 bytes) and rescores the
            best candidates with int8 vectors (D more bytes).

    Returns:
        A faiss index or a `FlatIndex`.

    Raises:
        InputError: if the kind is unknown, or a vector contains NaN or infinity. A flat index
            detects NaN and infinity only when it is written or searched.
    """
    embeddings = as_matrix(embeddings, "embeddings")
    if kind not in KINDS:
        raise InputError(f"unknown index kind {kind!r}; choose from {', '.join(KINDS)}")
    if kind == "flat":
        return FlatIndex(embeddings)
    count, width = embeddings.shape
    index = _empty_index(kind, width)
    num_steps = int(TRAINING_STEPS_PER_ROOT * count**0.5)
    sample_size = min(count, TRAINING_ROWS_PER_STEP * num_steps)
    sample = np.random.default_rng(1).choice(count, sample_size, replace=False)
    index.train(normalise_rows(embeddings[np.sort(sample)]))
    for start in range(0, count, ADD_ROWS):
        index.add(normalise_rows(embeddings[start : start + ADD_ROWS]))
    return index


def _empty_index(kind: str, width: int) -> Any:
    if kind == "binary":
        return _binary_index(width)
    # SQ8 stores the smallest and the largest value of each dimension in addition to the codes.
    description = {"float16": "SQfp16", "int8": "SQ8"}[kind]
    faiss = _faiss()
    return faiss.index_factory(width, description, faiss.METRIC_INNER_PRODUCT)


def _binary_index(width: int) -> Any:
    """Return an empty index that stores the signs of vectors, and int8 vectors for rescoring.

    A random rotation is applied first, which makes the signs independent.
    """
    faiss = _faiss()
    index: Any = faiss.index_factory(width, "LSHr,Refine(SQ8)")
    # index_factory supports LSH only with the L2 metric, so the metric is set afterwards.
    for part in (index, index.base_index, index.refine_index):
        part.metric_type = faiss.METRIC_INNER_PRODUCT
    return index


def build_sketch(embeddings: NDArray[Any], rows: IntArray) -> Any:
    """Build an index that quickly finds candidates for an exact comparison.

    Each dimension has 4 bits, which faiss compares 32 at a time (fast scan: Andre, Kermarrec and Le
    Scouarnec 2015). Its cosines are rounded, so find about twice as many candidates as needed, and
    compare their vectors.

    Args:
        embeddings: vectors [M, D], in memory or memory-mapped; read in blocks.
        rows: rows to index, ascending, at least `MIN_SKETCH_ROWS` [R].

    Returns:
        A faiss index of R vectors.
    """
    faiss = _faiss()
    width = embeddings.shape[1]
    index: Any = faiss.index_factory(width, f"PQ{width}x4fs", faiss.METRIC_INNER_PRODUCT)
    index.pq.cp.niter = SKETCH_ITERATIONS
    step = max(1, len(rows) // SKETCH_TRAINING_ROWS)
    index.train(normalise_rows(embeddings[rows[::step][:SKETCH_TRAINING_ROWS]]))
    for start in range(0, len(rows), ADD_ROWS):
        index.add(normalise_rows(embeddings[rows[start : start + ADD_ROWS]]))
    return index


def refine_sketch(sketch: Any, index: Any) -> Any:
    """Return an index whose candidates come from a sketch, and their cosines from `index`.

    The new index copies neither of the two.

    Args:
        sketch: an index of `build_sketch`.
        index: an index of the same vectors, of kind `float16` or `int8`.

    Returns:
        A faiss index that refers to both.
    """
    return _faiss().IndexRefine(sketch, index)


# -- searching


def search_index(
    index: Any,
    queries: NDArray[Any],
    k: int,
    allowed: NDArray[np.bool_] | None = None,
) -> tuple[FloatArray, IntArray]:
    """Find the k nearest vectors of each query; threads may share the index.

    Args:
        index: an index from `build_index` or `read_index`.
        queries: vectors [N, D].
        k: number of neighbours, at most the number of vectors.
        allowed: mask of the vectors that may be returned [M]; None allows all.

    Returns:
        Cosines [N, k] in descending order, and ids of the vectors [N, k]. If fewer than k vectors
        are allowed, the last ids are -1, with a cosine of minus infinity.

    Raises:
        InputError: if the width or `k` is invalid for the index, or a query contains NaN or
            infinity.
    """
    queries = as_matrix(queries, "queries")
    if queries.shape[1] != index.d:
        raise InputError(
            f"queries have shape {queries.shape}; expected [N, {index.d}] as in the index"
        )
    check_count("k", k, index.ntotal, "vectors in the index")
    if isinstance(index, FlatIndex):
        if allowed is None:
            return nearest_neighbours(queries, index.rows, k, unit_candidates=index.has_unit_rows)
        return _search_allowed_flat(index, queries, k, allowed)
    if allowed is None:
        return _search_faiss(index, normalise_rows(queries), k)
    return _search_allowed_faiss(index, normalise_rows(queries), k, allowed)


def _search_allowed_flat(
    index: "FlatIndex", queries: NDArray[Any], k: int, allowed: NDArray[np.bool_]
) -> tuple[FloatArray, IntArray]:
    ids = np.flatnonzero(allowed)
    count = min(k, len(ids))
    if not count:
        return fill_neighbours(np.empty((len(queries), 0)), np.empty((len(queries), 0)), k)
    if len(ids) <= len(allowed) * COPIED_SHARE:
        cosines, rows = nearest_neighbours(queries, index.rows[ids], count)
        return fill_neighbours(cosines, ids[rows], k)
    penalty = np.where(allowed, np.float32(0), np.float32(EXCLUDED_PENALTY))
    cosines, rows = nearest_neighbours(
        queries, index.rows, count, penalty=penalty, unit_candidates=index.has_unit_rows
    )
    return fill_neighbours(cosines, rows, k)


def _search_allowed_faiss(
    index: Any, units: FloatArray, k: int, allowed: NDArray[np.bool_]
) -> tuple[FloatArray, IntArray]:
    """Find the nearest allowed vectors of unit queries [N, D]."""
    faiss = _faiss()
    if not isinstance(index, faiss.IndexRefine | faiss.IndexFastScan):
        bitmap = np.packbits(allowed, bitorder="little")
        return _search_faiss(index, units, k, faiss.IDSelectorBitmap(bitmap))
    # An index of signs, or a sketch, cannot skip vectors: find more vectors, and drop those that
    # are not allowed.
    depth = k
    while True:
        cosines, ids = _search_faiss(index, units, depth)
        is_dropped = (ids < 0) | ~allowed[ids]
        best = np.argsort(is_dropped, axis=1, kind="stable")[:, :k]
        is_dropped = np.take_along_axis(is_dropped, best, axis=1)
        if depth == index.ntotal or not is_dropped.any():
            break
        depth = min(index.ntotal, depth * DEEPER)
    cosines = np.where(is_dropped, -np.inf, np.take_along_axis(cosines, best, axis=1))
    ids = np.where(is_dropped, -1, np.take_along_axis(ids, best, axis=1))
    return cosines.astype(np.float32), ids


def _search_faiss(
    index: Any, units: FloatArray, k: int, selector: Any = None
) -> tuple[FloatArray, IntArray]:
    """Search with unit queries [N, D]; `selector` is a faiss `IDSelector`, or None for all."""
    faiss = _faiss()
    parameters = None
    if isinstance(index, faiss.IndexRefine):
        factor = 1.0
        # The type is lost where one index contains another.
        if not isinstance(faiss.downcast_index(index.base_index), faiss.IndexFastScan):
            # faiss finds nothing if there are fewer vectors than candidates.
            factor = min(max(RESCORED_PER_K, RESCORED / k), index.ntotal / k)
        parameters = faiss.IndexRefineSearchParameters(k_factor=factor)
    elif selector is not None:
        parameters = faiss.SearchParameters(sel=selector)
    cosines, ids = index.search(units, k, params=parameters)
    return np.where(ids < 0, -np.inf, cosines).astype(np.float32), ids


def stored_cosines(index: Any, rows: IntArray, unit: FloatArray) -> FloatArray:
    """Compare a query with selected vectors of an index, as they are stored.

    Args:
        index: an index of `build_index` or `read_index`, of any kind but `binary`.
        rows: numbers of the vectors [n].
        unit: unit query, float32 [D].

    Returns:
        Cosines [n]. Those of rounded vectors are rounded.
    """
    if isinstance(index, FlatIndex):
        vectors = index.rows[rows]
    else:
        # faiss can also return vectors by number, but decodes them one by one.
        codes = _faiss().rev_swig_ptr(index.codes.data(), index.ntotal * index.code_size)
        vectors = index.sa_decode(codes.reshape(-1, index.code_size).take(rows, axis=0))
    # Rounding changes the lengths, and another program may have written vectors of any length.
    norms = np.sqrt(np.einsum("rd,rd->r", vectors, vectors))
    # Unlike a matrix product, a row has the same cosine whichever rows are compared with it.
    products = np.einsum("rd,d->r", vectors, unit)
    return products / np.maximum(norms, np.finfo(np.float32).tiny)


# -- files


def write_index(index: Any, path: Path) -> None:
    """Write an index in faiss format.

    Args:
        index: an index from `build_index` or `read_index`.
        path: output file.

    Raises:
        InputError: if the file cannot be written, or a vector contains NaN or infinity.
    """
    if isinstance(index, FlatIndex):
        index.write(path)
        return
    try:
        _faiss().write_index(index, str(path))
    except RuntimeError as error:
        reason = first_line(error)
        raise InputError(
            f"{path}: cannot be written ({reason}); check the path and the free space"
        ) from None


def read_index(file: str | Path | BinaryIO) -> Any:
    """Read an index in faiss format. The vectors stay on disk; only a sketch is copied to memory.

    Args:
        file: path or open file. An open file may be replaced on disk meanwhile, and may be closed
            afterwards.

    Returns:
        A faiss index or a `FlatIndex`.

    Raises:
        InputError: if the file is not an index.
    """
    if isinstance(file, str | Path):
        with open(file, "rb") as stream:
            return _read_index(stream)
    return _read_index(file)


def _read_index(stream: BinaryIO) -> Any:
    stream.seek(0)
    is_flat = stream.read(len(MAGIC)) == MAGIC
    stream.seek(0)
    if is_flat:
        return FlatIndex.read(stream)
    faiss = _faiss()
    content = map_file(stream)
    reader = faiss.ZeroCopyIOReader(faiss.swig_ptr(content), content.size)
    try:
        with _limited(content.size):
            index = faiss.read_index(reader)
    except Exception as error:
        # For a damaged file, faiss raises errors of many types, for example MemoryError.
        reason = f"{type(error).__name__} {error}".splitlines()[0]
        raise InputError(f"{stream.name}: not a faiss index ({reason}); build it again") from None
    # faiss keeps objects in this attribute that an index reads and does not own.
    index.referenced_objects = [content]
    return index


@contextlib.contextmanager
def _limited(size: int) -> Iterator[None]:
    """Limit each array that faiss allocates inside the `with` block to `size` bytes.

    Otherwise a wrong length in a damaged file could fill the memory. Only faiss 1.14 and later has
    such a limit, and it applies to the whole process.
    """
    faiss = _faiss()
    if not hasattr(faiss, "set_deserialization_vector_byte_limit"):
        yield
        return
    with _limit_lock:
        _previous_limits.append(faiss.get_deserialization_vector_byte_limit())
        faiss.set_deserialization_vector_byte_limit(size)
        try:
            yield
        finally:
            _restore_limit()


def _restore_limit() -> None:
    while _previous_limits:
        _faiss().set_deserialization_vector_byte_limit(_previous_limits.pop())


MAGIC = b"IxFI"
# Fields of the header in a faiss file (index_write): magic, width, number of vectors, two numbers
# that faiss ignores, whether the index is trained, metric, number of coordinates.
FLAT_HEADER = struct.Struct("<4siqqqBiQ")
IGNORED = 1 << 20
TRAINED = 1
INNER_PRODUCT = 0


class FlatIndex:
    """Exact index that compares each query with all vectors [M, D], which may have any length.

    The vectors are memory-mapped if the index was read from a file.

    Attributes:
        rows: the vectors.
        ntotal: number of vectors (the name in faiss).
        d: width of the vectors (the name in faiss).
    """

    def __init__(self, rows: NDArray[Any]):
        self.rows = rows
        self.ntotal, self.d = rows.shape

    @cached_property
    def has_unit_rows(self) -> bool:
        """Whether all rows are read-only unit vectors, so that a search need not scale them.

        Rows in a file are read-only and checked once. Writable rows may change between two
        searches, so they never count as unit vectors.
        """
        return not self.rows.flags.writeable and are_unit_rows(self.rows)

    def write(self, path: Path) -> None:
        """Write the index in faiss format, as unit vectors, block by block.

        Args:
            path: file to write.
        """
        header = FLAT_HEADER.pack(
            MAGIC, self.d, self.ntotal, IGNORED, IGNORED, TRAINED, INNER_PRODUCT, self.rows.size
        )
        with naming(path), open(path, "wb") as stream:
            stream.write(header)
            for start in range(0, self.ntotal, CANDIDATE_ROWS):
                stop = min(start + CANDIDATE_ROWS, self.ntotal)
                block = unit_rows(self.rows, start, stop, "embeddings")
                stream.write(block.tobytes())

    @classmethod
    def read(cls, stream: BinaryIO) -> "FlatIndex":
        """Map the vectors of an open index file into memory.

        Args:
            stream: index file, open for reading.

        Returns:
            The index, whose vectors are read when they are needed.
        """
        path = stream.name
        header = stream.read(FLAT_HEADER.size)
        if len(header) < FLAT_HEADER.size:
            raise InputError(f"{path}: not a faiss index (truncated); build it again")
        _, width, count, _, _, _, metric, coordinates = FLAT_HEADER.unpack(header)
        size = os.fstat(stream.fileno()).st_size
        is_valid = (
            min(width, count) > 0
            and width * count == coordinates
            and FLAT_HEADER.size + 4 * coordinates == size
            and metric == INNER_PRODUCT
        )
        if not is_valid:
            raise InputError(
                f"{path}: not a faiss index ({count:,} vectors of width {width}); build it again"
            )
        rows = np.ndarray((count, width), np.dtype("<f4"), map_file(stream), FLAT_HEADER.size)
        return cls(rows)
