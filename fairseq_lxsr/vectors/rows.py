"""Rows of numbers: the types of arrays, rows of length one, and what searches in any precision
share.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairseq_lxsr.errors import InputError, first_line, shown

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.int64]

QUERY_ROWS, CANDIDATE_ROWS = 2048, 4096  # sizes of one matrix product: 32 MB of float32 scores
# candidates kept beyond k, so that exact scores decide the order of ties and near ties with the
# k-th
SPARE = {"float32": 8, "bfloat16": 24}
NO_NUMBERS = "OSUcMm"  # kinds of numpy's types: objects, text, bytes, complex numbers, times
UNIT_TOLERANCE = 5e-7  # rounding error of a normalized row
# least sum of squares in which those that float32 rounds to nothing do not count, up to width 4
# million
LEAST_SQUARES = np.float32(2.0**-80)


def normalise_rows(embeddings: ArrayLike) -> FloatArray:
    """Normalize rows to length one, float32 [N, D]; a zero row stays zero, NaN and infinity raise
    `InputError`.
    """
    embeddings = as_matrix(embeddings, "embeddings")
    rows = unit_rows(embeddings)
    return rows.copy() if np.may_share_memory(rows, embeddings) else rows


def as_matrix(embeddings: ArrayLike, name: str) -> NDArray[Any]:
    """Return embeddings as an array [N, D]; an array is returned as it is, memory-mapped or not.

    Numbers of one byte are refused: they are codes of `lxsr embed`, whose directions are not those
    of the vectors.
    """
    try:
        matrix = embeddings if isinstance(embeddings, np.ndarray) else np.asarray(embeddings)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # rows of several lengths, a tensor on a GPU
        reason = f"{first_line(error):.150}"
        raise InputError(
            f"{name} are not an array of numbers ({reason}); expected rows of one length"
        ) from None
    if matrix.dtype.kind in NO_NUMBERS:
        raise InputError(f"{name} are {matrix.dtype}; expected floating-point numbers")
    if matrix.dtype.itemsize == 1:
        raise InputError(
            f"{name} are {matrix.dtype}; expected floating-point numbers: decode files of `lxsr embed` with "
            "fairseq_lxsr.embeddings.load_embeddings(path)"
        )
    if matrix.ndim != 2 or not len(matrix):
        raise InputError(f"{name} have shape {matrix.shape}; expected [N, D] with at least one row")
    return matrix


def check_count(name: str, value: Any, most: int | None = None, of: str = "") -> None:
    """Check a whole number from 1 on, of any integer type; at most `most`, the number of
    something.
    """
    try:
        fits = 1 <= index(value) <= (value if most is None else most)
    except TypeError:
        fits = False
    if not fits:
        limit = (
            "a whole number of at least 1" if most is None else f"1 to {most}, the number of {of}"
        )
        limit = f"more text: there are no {of}" if most == 0 else limit
        raise InputError(f"{name} is {shown(value)}; expected {limit}")


def check_directions(
    embeddings: FloatArray, where: Callable[[int], str], zeros: bool = False
) -> None:
    """Refuse rows of NaN or infinity, or of zeros, whose neighbours would be arbitrary; `where`
    says whence a row is.

    With `zeros`, rows of zeros are for the caller to leave out.
    """
    with np.errstate(over="ignore"):  # values whose square overflows are refused like infinity
        norms = np.linalg.norm(embeddings, axis=1)
    empty = (norms == 0) & (not zeros)
    for bad, why in (
        (~np.isfinite(norms), "has NaN or infinity"),
        (empty, "is a zero vector, without a known word"),
    ):
        if bad.any():
            what = where(int(bad.argmax()))
            raise InputError(
                f"{what} {why}, so nothing is near to it; leave the sentence out or correct the encoder"
            )


def unit_rows(
    embeddings: Any, start: int = 0, stop: int | None = None, name: str = "embeddings"
) -> FloatArray:
    """Return rows start to stop of [N, D] in float32 with length one, or zero; no copy where they
    are so already.
    """
    rows = np.require(embeddings[start:stop], np.float32, ["C", "A"])
    with np.errstate(over="ignore", invalid="ignore"):  # treated below
        squares = (rows * rows).sum(axis=1, keepdims=True)
    # without NaN in either; asked of all rows at once, because nearly always none is extreme
    if not (squares.min(initial=np.inf) >= LEAST_SQUARES and squares.max(initial=0) < np.inf):
        rows, squares = _rescaled(rows, squares)
        if not np.isfinite(squares).all():
            row = start + int((~np.isfinite(squares)).argmax())
            raise InputError(
                f"row {row} of the {name} has NaN or infinity; expected numbers, encode the text again"
            )
    norms = np.sqrt(squares)
    one = (norms == 0) | (np.abs(norms - 1) < UNIT_TOLERANCE)
    return rows if one.all() else rows / np.where(one, 1, norms)


def _rescaled(rows: FloatArray, squares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Scale rows of extreme length by the power of two that brings their largest number near one:
    nothing is rounded.

    Of the sums of squares [n, 1], only those of rows with NaN or infinity stay NaN or infinite.
    """
    extreme = ~((squares >= LEAST_SQUARES) & (squares < np.inf))[:, 0]
    chosen = rows[extreme]
    _, exponents = np.frexp(np.abs(chosen).max(axis=1, initial=0, keepdims=True))
    chosen = np.ldexp(chosen, -exponents)
    rows, squares = rows.copy(), squares.copy()
    rows[extreme], squares[extreme] = chosen, (chosen * chosen).sum(axis=1, keepdims=True)
    return rows, squares


@dataclass(frozen=True)
class CandidateRows:
    """What queries are compared with."""

    rows: NDArray[Any]  # [M, D] of any length, in memory or memory-mapped
    penalty: FloatArray | None  # to subtract from every candidate's cosine [M]
    memory_mb: int  # for scoring the candidates of some queries again

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def largest_block(self) -> int:
        """Number of rows of the largest block."""
        return min(CANDIDATE_ROWS, len(self))

    def blocks(self) -> Iterator[tuple[int, FloatArray, FloatArray | None]]:
        """Yield the number of the first row of a block, its rows with length one [c, D], and its
        penalties [c].
        """
        for start in range(0, len(self), CANDIDATE_ROWS):
            stop = min(start + CANDIDATE_ROWS, len(self))
            penalty = None if self.penalty is None else self.penalty[start:stop]
            yield start, unit_rows(self.rows, start, stop, "candidates"), penalty

    def best(self, units: FloatArray, ids: IntArray, k: int) -> tuple[FloatArray, IntArray]:
        """Score the kept candidates of unit queries [n, D] in float32: scores and ids of the k best
        [n, k].

        Equal rows get equal scores at any position; of equal scores the first of `ids` [n, depth]
        comes first.
        """
        scores = np.empty(ids.shape, dtype=np.float32)
        step = int(min(256, max(1, self.memory_mb * 10**6 // (12 * ids.shape[1] * units.shape[1]))))
        for start in range(0, len(ids), step):
            chosen = ids[start : start + step]
            rows = unit_rows(self.rows[chosen.ravel()], 0, chosen.size, "candidates")
            # [n, depth, D]
            products = units[start : start + step, None] * rows.reshape(*chosen.shape, -1)
            scores[start : start + step] = products.sum(axis=2)
        if self.penalty is not None:
            scores -= self.penalty[ids].astype(np.float32)
        return best_first(scores, ids, k)


def best_first(
    scores: FloatArray, ids: IntArray, k: int | None = None
) -> tuple[FloatArray, IntArray]:
    """Return the k best (None: all) of each row [n, c] by descending score; of equal scores the
    first stays first.
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1)


class Best:
    """Keeps the `depth` best candidates of each of n queries, by ascending index."""

    def __init__(self, n: int, depth: int):
        self.scores = np.full((n, depth), -np.inf, dtype=np.float32)  # in descending order
        self.ids = np.zeros((n, depth), dtype=np.int64)

    def merge(self, rows: IntArray, ids: IntArray, scores: FloatArray) -> None:
        """Merge new candidates, each [hits], into the best: `rows` ascend, and `ids` ascend within
        a row.
        """
        depth = self.scores.shape[1]
        changed, which, counts = np.unique(rows, return_inverse=True, return_counts=True)
        place = np.arange(len(rows)) - (counts.cumsum() - counts)[which] + depth
        width = depth + int(counts.max())
        all_scores = np.full((len(changed), width), -np.inf, dtype=np.float32)
        all_ids = np.zeros((len(changed), width), dtype=np.int64)
        all_scores[:, :depth], all_ids[:, :depth] = self.scores[changed], self.ids[changed]
        all_scores[which, place], all_ids[which, place] = scores, ids
        self.scores[changed], self.ids[changed] = best_first(all_scores, all_ids, depth)


def query_blocks(count: int) -> list[slice]:
    """Cut `count` queries into the blocks of one matrix product each."""
    return [slice(start, start + QUERY_ROWS) for start in range(0, count, QUERY_ROWS)]


def queries_in(memory_mb: int, width: int, depth: int) -> int:
    """Return how many queries fit in memory, at least one block: rows in two precisions and the
    candidates of each.
    """
    return max(
        QUERY_ROWS, memory_mb * 10**6 // (width * 10 + depth * 64) // QUERY_ROWS * QUERY_ROWS
    )
