"""Indexes on disk: exact search by numpy; approximate and compressed search by faiss, which need
not be installed.
"""

import contextlib
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.errors import InputError, first_line
from fairseq_lxsr.files.locks import ThreadLock
from fairseq_lxsr.files.write import naming
from fairseq_lxsr.machine import require
from fairseq_lxsr.options import INDEX_KINDS
from fairseq_lxsr.vectors.neighbours import nearest_neighbours
from fairseq_lxsr.vectors.rows import (
    CANDIDATE_ROWS,
    FloatArray,
    IntArray,
    as_matrix,
    check_count,
    normalise_rows,
    unit_rows,
)

ADD_ROWS = 65_536
TRAINING_ROWS_PER_LIST = 64
MIN_ROWS_PER_LIST = 39  # faiss warns below this number, for a list and for each value of a byte
PQ_WIDTH = 8  # dimensions per byte
MIN_PQ_ROWS = 256  # number of values of a byte
# candidates of `binary` that are scored again, at least, and for each neighbour
RESCORED, RESCORED_PER_K = (100, 10)
LARGEST_VECTOR = 64  # times the bytes of the file; the tables that faiss derives for ivf-pq are 32 times its centroids

_limit_before: list[int] = []  # bytes, while `_bounded` has set another limit
_limit = ThreadLock(lambda: _restore_limit())
logger = logging.getLogger(__name__)


def default_lists(count: int) -> int:
    """Return the number of inverted lists for `count` vectors: 4 sqrt(count), from faiss's guide to
    indexes.
    """
    return int(max(1, min(4 * count**0.5, count // MIN_ROWS_PER_LIST)))


def least_rows(kind: str, lists: int | None = None) -> int:
    """Return the least number of vectors that lists and codes of an index can be learnt from."""
    return max(lists or 1, MIN_PQ_ROWS if kind == "ivf-pq" else 1)


def check_kind(kind: str, lists: int | None, width: int, count: int | None = None) -> None:
    """Check that `build_index` can build this index for `count` vectors (None: not known yet) of a
    width.
    """
    if kind not in INDEX_KINDS:
        raise InputError(f"index {kind!r}; expected one of {', '.join(INDEX_KINDS)}")
    if lists is not None and not kind.startswith("ivf"):
        raise InputError(
            f"{lists} lists for an index of kind {kind}; only ivf and ivf-pq have lists"
        )
    of = "vectors" if count is None else f"{count} vectors"
    least = 1 if lists is None else lists
    if least < 1 or (count is not None and least > count):
        raise InputError(f"{least} lists for {of}; expected 1 to their number")
    if kind == "ivf-pq" and (width % PQ_WIDTH or (count is not None and count < MIN_PQ_ROWS)):
        raise InputError(
            f"ivf-pq of {of} of width {width}; expected at least {MIN_PQ_ROWS} of a width divisible by {PQ_WIDTH}: "
            "take ivf"
        )


def _faiss() -> Any:
    """Import faiss, which only indexes of the other kinds than flat need."""
    require("faiss", "faiss", "an index of another kind than flat")
    import faiss

    return faiss


def build_index(
    embeddings: NDArray[Any], kind: str = "flat", lists: int | None = None, seed: int = 1
) -> Any:
    """Build an index for search by cosine (inner product of normalized rows), in blocks.

    Args:
        embeddings: vectors [M, D], in memory or memory-mapped.
        kind: `flat` is exact; `float16` and `int8` compare the query in float32 with all vectors
            rounded, at a half and a quarter of the memory; `binary` compares the signs of the
            rotated vectors (Hamming distance, D/8 bytes) and scores the best again as `int8` does
            (D bytes more); `ivf` (float16) compares only the lists nearest to a query; `ivf-pq` is
            `ivf` with D/8 bytes per vector.
        lists: number of inverted lists; None for 4 sqrt(M).
        seed: seed of the sample that the lists are learnt from.

    Vectors with NaN raise `InputError`; of a flat index, when it is written or searched.
    """
    embeddings = as_matrix(embeddings, "embeddings")
    count, width = embeddings.shape
    check_kind(kind, lists, width, count)
    if kind == "flat":
        return FlatIndex(embeddings)
    faiss = _faiss()
    lists = default_lists(count) if lists is None else lists
    factory = {
        "float16": "SQfp16",
        "int8": "SQ8",  # least and largest value of each dimension are stored with the index
        "ivf": f"IVF{lists},SQfp16",
        "ivf-pq": f"IVF{lists},PQ{width // PQ_WIDTH}",
    }
    if kind == "binary":
        index = _binary_index(width)
    else:
        index = faiss.index_factory(width, factory[kind], faiss.METRIC_INNER_PRODUCT)
    if kind.startswith("ivf"):
        _warn_if_few(index, kind, count)
    sample = min(count, max(lists * TRAINING_ROWS_PER_LIST, 256 * MIN_ROWS_PER_LIST))
    chosen = np.sort(np.random.default_rng(seed).choice(count, sample, replace=False))
    index.train(normalise_rows(embeddings[chosen]))
    for start in range(0, count, ADD_ROWS):
        index.add(normalise_rows(embeddings[start : start + ADD_ROWS]))
    return index


def _warn_if_few(index: Any, kind: str, count: int) -> None:
    """Warn where lists or codes are learnt from few vectors, once: faiss would for each part of a
    code.
    """
    parts = [(index.nlist, index.cp)]
    if kind == "ivf-pq":
        parts.append((MIN_PQ_ROWS, index.pq.cp))
    for _, learning in parts:
        learning.min_points_per_centroid = 1
    enough = MIN_ROWS_PER_LIST * max(centroids for centroids, _ in parts)
    if count < enough:
        logger.warning(
            f"{kind} of {count:,} vectors, learnt from fewer than {enough:,}: it finds less; flat finds all"
        )


def _binary_index(width: int) -> Any:
    """Make an empty index of signs after a random rotation, which makes them independent, and of
    int8 beside them.
    """
    faiss = _faiss()
    index: Any = faiss.index_factory(width, "LSHr,Refine(SQ8)")
    for part in (index, index.base_index, index.refine_index):
        part.metric_type = faiss.METRIC_INNER_PRODUCT  # the factory knows signs with distances only
    return index


def search_index(
    index: Any, queries: NDArray[Any], k: int, probes: int = 32
) -> tuple[FloatArray, IntArray]:
    """Search the k nearest vectors: cosines [N, k] in descending order and ids [N, k]; threads may
    share the index.

    `probes` are the inverted lists to search for a query [N, D], at least 1; more lists are slower
    and find more. Where they hold fewer than k vectors, the rest has id -1 and cosine minus
    infinity.
    """
    queries = as_matrix(queries, "queries")
    if queries.shape[1] != index.d:
        raise InputError(
            f"queries have shape {queries.shape}; expected [N, {index.d}] as in the index"
        )
    check_count("k", k, index.ntotal, "vectors in the index")
    check_count("probes", probes)
    if isinstance(index, FlatIndex):
        return nearest_neighbours(queries, index.rows, k)
    faiss, parameters = _faiss(), None
    if isinstance(index, faiss.IndexIVF):  # index.nprobe would change for all threads
        parameters = faiss.SearchParametersIVF(nprobe=min(probes, index.nlist))
    elif isinstance(index, faiss.IndexRefine):
        # faiss finds nothing where it lacks some
        factor = min(max(RESCORED_PER_K, RESCORED / k), index.ntotal / k)
        parameters = faiss.IndexRefineSearchParameters(k_factor=factor)
    cosines, found = index.search(normalise_rows(queries), k, params=parameters)
    return np.where(found < 0, -np.inf, cosines).astype(np.float32), found


def write_index(index: Any, path: Path) -> None:
    """Write an index, in the format of faiss."""
    if isinstance(index, FlatIndex):
        return index.write(path)
    try:
        _faiss().write_index(index, str(path))
    except RuntimeError as error:
        reason = first_line(error)
        raise InputError(
            f"{path}: cannot be written ({reason}); check the path and the free space"
        ) from None


@contextlib.contextmanager
def _bounded(size: int) -> Iterator[None]:
    """Limit the vectors that faiss allocates inside the block to `size` bytes; a damaged length
    could fill the memory.

    faiss has one limit for the whole process, since version 1.14.
    """
    faiss = _faiss()
    if not hasattr(faiss, "set_deserialization_vector_byte_limit"):
        yield
        return
    with _limit:
        _limit_before.append(faiss.get_deserialization_vector_byte_limit())
        faiss.set_deserialization_vector_byte_limit(size)
        try:
            yield
        finally:
            _restore_limit()


def _restore_limit() -> None:
    while _limit_before:
        _faiss().set_deserialization_vector_byte_limit(_limit_before.pop())


def read_index(file: str | Path | BinaryIO) -> Any:
    """Read an index in the format of faiss; the vectors of a flat one stay on disk.

    An open file is read, or mapped, whatever happens to its name, and is not needed afterwards.
    """
    with (
        open(file, "rb") if isinstance(file, str | Path) else contextlib.nullcontext(file) as stream
    ):
        stream.seek(0)
        is_flat = stream.read(len(MAGIC)) == MAGIC
        stream.seek(0)
        if is_flat:
            return FlatIndex.read(stream)
        faiss = _faiss()
        try:
            with _bounded(LARGEST_VECTOR * os.fstat(stream.fileno()).st_size):
                return faiss.read_index(faiss.PyCallbackIOReader(stream.read))
        except OSError:
            raise
        except (
            Exception
        ) as error:  # a damaged file raises errors of many kinds, for example MemoryError
            reason = f"{type(error).__name__} {error}".splitlines()[0]
            raise InputError(
                f"{stream.name}: not an index of faiss ({reason}); build it again"
            ) from None


MAGIC = b"IxFI"
# magic, width, vectors, two numbers that faiss ignores, whether it is trained, metric, coordinates
# (faiss, index_write)
FLAT_HEADER = struct.Struct("<4siqqqBiQ")
IGNORED, TRAINED, INNER_PRODUCT = 1 << 20, 1, 0


class FlatIndex:
    """Vectors [M, D] of any length that are all compared with a query; memory-mapped where read
    from a file.
    """

    def __init__(self, rows: NDArray[Any]):
        self.rows = rows
        self.ntotal, self.d = rows.shape  # the names of faiss

    def write(self, path: Path) -> None:
        """Write the index as faiss does; rows of length one, in blocks."""
        header = FLAT_HEADER.pack(
            MAGIC, self.d, self.ntotal, IGNORED, IGNORED, TRAINED, INNER_PRODUCT, self.rows.size
        )
        with naming(path), open(path, "wb") as stream:
            stream.write(header)
            for start in range(0, self.ntotal, CANDIDATE_ROWS):
                block = unit_rows(
                    self.rows, start, min(start + CANDIDATE_ROWS, self.ntotal), "embeddings"
                )
                stream.write(block.tobytes())

    @classmethod
    def read(cls, stream: BinaryIO) -> "FlatIndex":
        """Map an index into memory, from an open file."""
        header, path = stream.read(FLAT_HEADER.size), stream.name
        size = os.fstat(stream.fileno()).st_size
        if len(header) < FLAT_HEADER.size:
            raise InputError(f"{path}: not an index of faiss (cut off); build it again")
        _, width, count, _, _, _, metric, numbers = FLAT_HEADER.unpack(header)
        described = (
            min(width, count) > 0
            and width * count == numbers
            and FLAT_HEADER.size + 4 * numbers == size
        )
        if metric != INNER_PRODUCT or not described:
            raise InputError(
                f"{path}: not an index of faiss ({count:,} vectors of width {width}); build it again"
            )
        return cls(np.memmap(stream, np.dtype("<f4"), "r", FLAT_HEADER.size, (count, width)))
