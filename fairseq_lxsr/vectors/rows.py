"""Array types, input checks, unit vectors, and helpers shared by all exact searches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairseq_lxsr.errors import InputError, first_line, shown

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.int64]

# Number of queries and candidates per matrix product, which gives 32 MB of float32 scores.
QUERY_ROWS = 2048
CANDIDATE_ROWS = 4096
# Number of rows to normalize at a time; a copy of them fits in the cache of a CPU core.
CACHED_ROWS = 1024
# Number of candidates to keep in addition to k, by precision. Exact scores then decide the order
# of candidates that tie, or nearly tie, with the k-th.
SPARE_CANDIDATES = {"float32": 8, "bfloat16": 24}
# NumPy type kinds that are rejected: objects, text, bytes, complex numbers and times.
NO_NUMBERS = "OSUcMm"
# Largest rounding error in the length of a unit vector.
UNIT_TOLERANCE = 5e-7
# Up to a width of 4 million, squares that float32 rounds to zero do not change a sum of squares
# that is at least this large.
LEAST_SQUARES = np.float32(2.0**-80)


# -- checks


def as_matrix(embeddings: ArrayLike, name: str) -> NDArray[Any]:
    """Return embeddings as an array [N, D]. An input that is already an array is not copied.

    Args:
        embeddings: an array, or nested lists.
        name: name of the argument, for messages.

    Raises:
        InputError: if the embeddings are not a matrix of numbers with at least one row. One-byte
            types are rejected: they are codes of `lxsr embed`, not coordinates.
    """
    try:
        # Do not call np.asarray on arrays: it would turn a memory-mapped array into a plain one.
        matrix = embeddings if isinstance(embeddings, np.ndarray) else np.asarray(embeddings)
    except (TypeError, ValueError, RuntimeError) as error:
        # The rows may have different lengths, or the array may be a tensor on a GPU.
        reason = f"{first_line(error):.150}"
        raise InputError(
            f"{name} are not an array of numbers ({reason}); expected rows of the same length"
        ) from None
    if matrix.dtype.kind in NO_NUMBERS:
        raise InputError(f"{name} have dtype {matrix.dtype}; expected floating-point numbers")
    if matrix.dtype.itemsize == 1:
        raise InputError(
            f"{name} are {matrix.dtype}; expected floating-point numbers: decode files of "
            "`lxsr embed` with fairseq_lxsr.embeddings.load_embeddings(path)"
        )
    if matrix.ndim != 2 or not len(matrix):
        raise InputError(f"{name} have shape {matrix.shape}; expected [N, D] with at least one row")
    return matrix


def check_count(name: str, value: Any, maximum: int | None = None, items: str = "") -> None:
    """Check that a value is an integer of at least 1; any integer type except bool is accepted.

    Args:
        name: name of the argument, for messages.
        value: value to check.
        maximum: largest allowed value; None for no limit.
        items: what `maximum` counts, for messages.

    Raises:
        InputError: if the value is out of range, or not an integer.
    """
    try:
        number = index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool):
        number = 0
    if number >= 1 and (maximum is None or number <= maximum):
        return
    if maximum is None:
        raise InputError(f"{name} is {shown(value)}; expected an integer of at least 1")
    if maximum == 0:
        raise InputError(f"{name} is {shown(value)}, but the number of {items} is 0; add text")
    raise InputError(f"{name} is {shown(value)}; expected 1 to {maximum}, the number of {items}")


def check_directions(
    embeddings: FloatArray, describe: Callable[[int], str], zeros: bool = False
) -> None:
    """Check that no embedding is a zero vector or contains NaN or infinity.

    The nearest neighbours of such a vector would be arbitrary.

    Args:
        embeddings: N vectors [N, D].
        describe: returns the place and text of a row by its index, for messages.
        zeros: whether to accept zero vectors, which the caller skips.

    Raises:
        InputError: for a row with NaN or infinity, and unless `zeros` is set, for a zero vector.
    """
    # Treat values with overflowing squares as infinite, and reject them.
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(embeddings, axis=1)
    is_infinite = ~np.isfinite(norms)
    if is_infinite.any():
        _refuse_row(describe(int(is_infinite.argmax())), "contains NaN or infinity")
    is_zero = norms == 0
    if is_zero.any() and not zeros:
        _refuse_row(describe(int(is_zero.argmax())), "is a zero vector (no known word)")


def _refuse_row(row: str, problem: str) -> None:
    raise InputError(
        f"{row} {problem}, so it has no nearest neighbours; remove the sentence, or correct the "
        "encoder"
    )


# -- unit vectors


def normalise_rows(embeddings: ArrayLike) -> FloatArray:
    """Scale rows to unit length.

    Args:
        embeddings: vectors [N, D].

    Returns:
        A new array, float32 [N, D]. A zero row stays zero.

    Raises:
        InputError: for a row with NaN or infinity.
    """
    embeddings = as_matrix(embeddings, "embeddings")
    rows = unit_rows(embeddings)
    if np.may_share_memory(rows, embeddings):
        return rows.copy()
    return rows


def unit_rows(
    embeddings: Any, start: int = 0, stop: int | None = None, name: str = "embeddings"
) -> FloatArray:
    """Return rows start to stop of a matrix [N, D] in float32, scaled to unit length.

    Zero rows stay zero. Rows that are already float32 unit vectors are not copied.

    Raises:
        InputError: for a row with NaN or infinity; `name` is the array in the message.
    """
    rows = np.require(embeddings[start:stop], np.float32, ["C", "A"])
    # Overflowing or vanishing sums are recomputed below.
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (rows * rows).sum(axis=1, keepdims=True)
    # Check all rows at once, because extreme rows are rare. The comparison is negated,
    # so that NaN is caught as well.
    if not (squares.min(initial=np.inf) >= LEAST_SQUARES and squares.max(initial=0) < np.inf):
        rows, squares = _rescale_extreme(rows, squares)
        is_finite = np.isfinite(squares)
        if not is_finite.all():
            row = start + int((~is_finite).argmax())
            raise InputError(
                f"row {row} of the {name} contains NaN or infinity; encode the text again"
            )
    norms = np.sqrt(squares)
    is_unit = (norms == 0) | (np.abs(norms - 1) < UNIT_TOLERANCE)
    if is_unit.all():
        return rows
    return rows / np.where(is_unit, 1, norms)


def copied_blocks(rows: NDArray[Any]) -> Iterator[tuple[int, FloatArray]]:
    """Yield the index of the first row of each block, and a copy of the block in float32.

    All copies use the same memory, so a block is only valid until the next one. Without this copy,
    numpy would copy unaligned rows of a file into new memory for each product.
    """
    buffer = np.empty((min(CACHED_ROWS, len(rows)), rows.shape[1]), dtype=np.float32)
    for start in range(0, len(rows), CACHED_ROWS):
        stored = rows[start : start + CACHED_ROWS]
        block = buffer[: len(stored)]
        np.copyto(block, stored)
        yield start, block


def are_unit_rows(rows: NDArray[Any]) -> bool:
    """Return whether all rows of a float32 matrix [M, D] have length 1 or 0.

    In this case, `unit_rows` would return them unchanged.
    """
    products = np.empty((min(CACHED_ROWS, len(rows)), rows.shape[1]), dtype=np.float32)
    # A row with a value whose square overflows does not have unit length.
    with np.errstate(over="ignore", invalid="ignore"):
        for _, block in copied_blocks(rows):
            squares = np.multiply(block, block, out=products[: len(block)]).sum(axis=1)
            is_unit = np.abs(np.sqrt(squares) - 1) < UNIT_TOLERANCE
            # The sum of squares of a row with tiny values may also be zero.
            is_zero = ~block[~is_unit].any(axis=1)
            if not is_zero.all():
                return False
    return True


def _rescale_extreme(rows: FloatArray, squares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Scale very long and very short rows so that their squares fit into float32.

    The factor of a row is the power of two that brings its largest value near 1, so nothing is
    rounded.

    Args:
        rows: vectors [n, D].
        squares: sums of their squares [n, 1].

    Returns:
        New rows and sums of squares. Only the sums of rows with NaN or infinity are not finite.
    """
    is_extreme = ~((squares >= LEAST_SQUARES) & (squares < np.inf))[:, 0]
    extreme = rows[is_extreme]
    _, exponents = np.frexp(np.abs(extreme).max(axis=1, initial=0, keepdims=True))
    extreme = np.ldexp(extreme, -exponents)
    rows = rows.copy()
    squares = squares.copy()
    rows[is_extreme] = extreme
    squares[is_extreme] = (extreme * extreme).sum(axis=1, keepdims=True)
    return rows, squares


# -- search


@dataclass(frozen=True)
class CandidateRows:
    """Candidate vectors that queries are compared with.

    Attributes:
        rows: M vectors of any length [M, D], in memory or memory-mapped.
        penalty: value to subtract from the cosine of each candidate [M]; None for no penalty.
        memory_mb: memory limit in MB for rescoring candidates.
        are_units: whether the vectors are known to be unit vectors; see `are_unit_rows`.
        show: called after each block of `blocks` with the share of candidates so far.
    """

    rows: NDArray[Any]
    penalty: FloatArray | None
    memory_mb: int
    are_units: bool = False
    show: Callable[[float], None] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def largest_block(self) -> int:
        """Number of rows of the largest block."""
        return min(CANDIDATE_ROWS, len(self))

    def blocks(self) -> Iterator[tuple[int, FloatArray, FloatArray | None]]:
        """Yield the index of the first row of each block, its unit vectors [c, D], and penalties.

        The penalties [c] are None if there are none. A block is only valid until the next one.
        """
        for start, block in self._unit_blocks():
            penalty = None if self.penalty is None else self.penalty[start : start + len(block)]
            yield start, block, penalty
            if self.show is not None:
                self.show((start + len(block)) / len(self))

    def _unit_blocks(self) -> Iterator[tuple[int, FloatArray]]:
        if self.are_units:
            is_aligned = self.rows.flags.aligned and self.rows.flags.c_contiguous
            if is_aligned and self.rows.dtype == np.float32:
                for start in range(0, len(self), CACHED_ROWS):
                    yield start, self.rows[start : start + CACHED_ROWS]
                return
            yield from copied_blocks(self.rows)
            return
        for start in range(0, len(self), CANDIDATE_ROWS):
            stop = min(start + CANDIDATE_ROWS, len(self))
            yield start, unit_rows(self.rows, start, stop, "candidates")

    def best(self, units: FloatArray, ids: IntArray, k: int) -> tuple[FloatArray, IntArray]:
        """Score selected candidates in float32, and return the k best.

        Equal rows get equal scores, whatever their position.

        Args:
            units: unit queries [n, D].
            ids: candidates of each query [n, depth]; equal scores keep their order.
            k: number of candidates to return.

        Returns:
            Scores and ids of the k best candidates, [n, k] each.
        """
        scores = np.empty(ids.shape, dtype=np.float32)
        depth = ids.shape[1]
        bytes_per_query = 12 * depth * units.shape[1]
        step = int(min(256, max(1, self.memory_mb * 10**6 // bytes_per_query)))
        for start in range(0, len(ids), step):
            block = ids[start : start + step]
            rows = unit_rows(self.rows[block.ravel()], 0, block.size, "candidates")
            # Products are [n, depth, D]. A sum of products, unlike a matrix product, does not
            # depend on the position of a row.
            products = units[start : start + step, None] * rows.reshape(*block.shape, -1)
            scores[start : start + step] = products.sum(axis=2)
        if self.penalty is not None:
            scores -= self.penalty[ids].astype(np.float32)
        return best_first(scores, ids, k)


def best_first(
    scores: FloatArray, ids: IntArray, k: int | None = None
) -> tuple[FloatArray, IntArray]:
    """Sort each row by descending score, and return the k best scores and ids.

    Equal scores keep their order.

    Args:
        scores: scores of c candidates for n queries [n, c].
        ids: ids of the candidates [n, c].
        k: number of candidates to return; None for all.

    Returns:
        Scores and ids, [n, k] each.
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1)


class BestCandidates:
    """The best `depth` candidates found so far for each of n queries.

    Attributes:
        scores: scores of the best candidates [n, depth], in descending order.
        ids: candidate ids [n, depth]; equal scores are sorted by id.
    """

    def __init__(self, n: int, depth: int):
        self.scores = np.full((n, depth), -np.inf, dtype=np.float32)
        self.ids = np.zeros((n, depth), dtype=np.int64)

    def merge(self, rows: IntArray, ids: IntArray, scores: FloatArray) -> None:
        """Merge new candidates into the best candidates so far.

        Args:
            rows: query index of each new candidate [hits], ascending.
            ids: candidate ids [hits], ascending for each query, and larger than all previous
                ids.
            scores: scores of the new candidates [hits].
        """
        depth = self.scores.shape[1]
        changed, inverse, counts = np.unique(rows, return_inverse=True, return_counts=True)
        # In each row, the previous best candidates come first, followed by the new ones.
        column = np.arange(len(rows)) - (counts.cumsum() - counts)[inverse] + depth
        width = depth + int(counts.max())
        all_scores = np.full((len(changed), width), -np.inf, dtype=np.float32)
        all_ids = np.zeros((len(changed), width), dtype=np.int64)
        all_scores[:, :depth] = self.scores[changed]
        all_ids[:, :depth] = self.ids[changed]
        all_scores[inverse, column] = scores
        all_ids[inverse, column] = ids
        self.scores[changed], self.ids[changed] = best_first(all_scores, all_ids, depth)


def query_blocks(count: int) -> list[slice]:
    """Split `count` queries into blocks, one matrix product per block."""
    return [slice(start, start + QUERY_ROWS) for start in range(0, count, QUERY_ROWS)]


def queries_per_block(memory_mb: int, width: int, depth: int) -> int:
    """Return the number of queries that fit into memory: full blocks, at least one.

    Each query takes memory for its vector in two precisions and for its best candidates.
    """
    bytes_per_query = width * 10 + depth * 64
    blocks = memory_mb * 10**6 // bytes_per_query // QUERY_ROWS
    return max(QUERY_ROWS, blocks * QUERY_ROWS)
