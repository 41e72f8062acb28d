"""Exact nearest neighbours by cosine, in blocks: memory does not grow with the number of queries or candidates.

Notation: N queries, M candidates, D width, c candidates in a block, depth the candidates kept for a query before the
last step, which scores them again in float32. numpy computes in float32; torch, which need not be installed, in
bfloat16.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from fairseq_lxsr.errors import InputError, first_line
from fairseq_lxsr.machine import require
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

QUERY_ROWS, CANDIDATE_ROWS = 2048, 4096  # sizes of one matrix product: 32 MB of float32 scores
# candidates kept beyond k, so that exact scores decide the order of ties and near ties with the k-th
SPARE = {"float32": 8, "bfloat16": 24}
NO_NUMBERS = "OSUcMm"  # kinds of numpy's types: objects, text, bytes, complex numbers, times
UNIT_TOLERANCE = 5e-7  # rounding error of a normalized row
# least sum of squares in which those that float32 rounds to nothing do not count, up to width 4 million
LEAST_SQUARES = np.float32(2.0**-80)


def normalise_rows(embeddings: ArrayLike) -> FloatArray:
    """Normalize rows to length one, float32 [N, D]; a zero row stays zero.

    Raises:
        InputError: for NaN or infinity, naming the row, and for what is no matrix of numbers.
    """
    embeddings = _matrix(embeddings, "embeddings")
    rows = unit_rows(embeddings, 0, len(embeddings), "embeddings")
    return rows.copy() if np.may_share_memory(rows, embeddings) else rows


def check_directions(embeddings: FloatArray, where: Callable[[int], str]) -> None:
    """Refuse embeddings without a direction, whose neighbours would be arbitrary.

    Args:
        embeddings: vectors [N, D].
        where: maps a row number to what was embedded, for the message.

    Raises:
        InputError: naming the first row that is zero or has NaN or infinity.
    """
    with np.errstate(over="ignore"):  # values whose square overflows are refused like infinity
        norms = np.linalg.norm(embeddings, axis=1)
    for bad, why in ((~np.isfinite(norms), "has NaN or infinity"), (norms == 0, "is a zero vector")):
        if bad.any():
            what = where(int(bad.argmax()))
            raise InputError(f"{what} {why}, so nothing is near to it; leave the sentence out or mend the encoder")


def nearest_neighbours(
    queries: ArrayLike,
    candidates: ArrayLike,
    k: int,
    *,
    penalty: ArrayLike | None = None,
    precision: str = "float32",
    memory_mb: int = 128,
    show_progress: bool = False,
) -> tuple[FloatArray, IntArray]:
    """Find the k candidates of largest cosine for every query; ties go to the first (of up to 8 beyond the k-th).

    Both precisions give the same result: the best candidates are scored again in float32, and a query for which
    bfloat16 rounding could have hidden a better candidate is searched again in float32.

    Args:
        queries: vectors [N, D] of any length, float32 or float16, in memory or memory-mapped; lists are converted.
        candidates: vectors [M, D] of the same kinds.
        k: number of neighbours, at most M.
        penalty: value to subtract from every candidate's cosine (CSLS) [M].
        precision: precision of the products: float32, or bfloat16 (2 to 3 times as fast where the processor has it).
        memory_mb: megabytes for a block of queries and its products, in addition to arguments and result; a block has
            at least 2,048 queries.
        show_progress: show a progress bar.

    Returns:
        Cosines minus penalty, float32 [N, k], in descending order; indices into the candidates [N, k].

    Raises:
        InputError: for embeddings of different width, fewer candidates than k, NaN, or an unknown precision.
    """
    queries, candidates = _matrix(queries, "queries"), _matrix(candidates, "candidates")
    penalty = None if penalty is None else np.asarray(penalty)
    _check(queries, candidates, k, penalty, precision)
    found_scores = np.empty((len(queries), k), dtype=np.float32)
    found = np.empty((len(queries), k), dtype=np.int64)
    rows = rows_in(memory_mb, queries.shape[1], k + SPARE[precision])
    with tqdm(total=len(queries), desc="search", unit=" queries", disable=None if show_progress else True) as bar:
        for start in range(0, len(queries), rows):
            stop = min(start + rows, len(queries))
            units = unit_rows(queries, start, stop, "queries")
            doubtful: Any = slice(None)
            if precision == "bfloat16":
                from fairseq_lxsr.vectors.bfloat16 import search_bfloat16

                scores, ids, certain = search_bfloat16(units, candidates, k, penalty, memory_mb)
                found_scores[start:stop], found[start:stop] = scores, ids
                doubtful = np.flatnonzero(~certain)
            again = _search(units[doubtful], candidates, k, penalty, memory_mb)
            found_scores[start:stop][doubtful], found[start:stop][doubtful] = again
            bar.update(stop - start)
    return found_scores, found


def merge_neighbours(parts: Iterable[tuple[FloatArray, IntArray]], k: int) -> tuple[FloatArray, IntArray]:
    """Merge the nearest in each part of the candidates into the k nearest in all; ties go to the first part.

    Of exact neighbours this gives those of one search, to the last bit: a cosine does not depend on the other
    candidates.

    Args:
        parts: cosines, in descending order, and ids among all candidates, [N, k'] each; k' may be smaller than k.
        k: number of neighbours; where all parts have fewer, all are returned.

    Returns:
        Cosines [N, k] in descending order and ids [N, k].
    """
    best: tuple[FloatArray, IntArray] | None = None
    for part in parts:
        cosines, ids = part if best is None else (np.concatenate(two, axis=1) for two in zip(best, part, strict=True))
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(cosines, order, axis=1), np.take_along_axis(ids, order, axis=1)
    if best is None:
        raise InputError("no candidates; expected at least one part")
    return best


def rows_in(memory_mb: int, width: int, depth: int) -> int:
    """Return how many queries fit in memory, at least one block: rows in two precisions and the candidates of each."""
    return max(QUERY_ROWS, memory_mb * 10**6 // (width * 10 + depth * 64) // QUERY_ROWS * QUERY_ROWS)


def _matrix(embeddings: ArrayLike, name: str) -> NDArray[Any]:
    """Return embeddings as an array [N, D]; an array is returned as it is, memory-mapped or not."""
    try:
        matrix = embeddings if isinstance(embeddings, np.ndarray) else np.asarray(embeddings)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of several lengths, a tensor on a GPU
        reason = f"{first_line(error):.150}"
        raise InputError(f"{name} are no array of numbers ({reason}); expected rows of one length") from None
    if matrix.dtype.kind in NO_NUMBERS:
        raise InputError(f"{name} are {matrix.dtype}; expected floating-point numbers")
    if matrix.ndim != 2 or not len(matrix):
        raise InputError(f"{name} have shape {matrix.shape}; expected [N, D] with at least one row")
    return matrix


def _check(queries, candidates, k: int, penalty, precision: str) -> None:
    if queries.shape[1] != candidates.shape[1]:
        raise InputError(
            f"queries are {queries.shape[1]} wide and candidates {candidates.shape[1]}; expected one model"
        )
    if not 1 <= k <= len(candidates):
        raise InputError(f"k is {k}; expected 1 to {len(candidates)}, the number of candidates")
    if penalty is not None and (penalty.shape != (len(candidates),) or not np.isfinite(penalty).all()):
        raise InputError(f"penalty has shape {penalty.shape}; expected ({len(candidates)},) finite numbers")
    if precision not in SPARE:
        raise InputError(f"precision {precision!r}; expected one of {', '.join(SPARE)}")
    if precision == "bfloat16":
        require("torch", "torch", f"precision {precision}")


def unit_rows(embeddings: NDArray[Any], start: int, stop: int, name: str) -> FloatArray:
    """Return rows start to stop in float32 with length one, without a copy where they are normalized already."""
    rows = np.require(embeddings[start:stop], np.float32, ["C", "A"])
    with np.errstate(over="ignore", invalid="ignore"):  # treated below
        squares = (rows * rows).sum(axis=1, keepdims=True)
    # without NaN in either; asked of all rows at once, because nearly always none is extreme
    if not (squares.min(initial=np.inf) >= LEAST_SQUARES and squares.max(initial=0) < np.inf):
        rows, squares = _rescaled(rows, squares)
        if not np.isfinite(squares).all():
            row = start + int((~np.isfinite(squares)).argmax())
            raise InputError(
                f"row {row} of the {name} has NaN or infinity; expected finite numbers, encode the text again"
            )
    norms = np.sqrt(squares)
    one = (norms == 0) | (np.abs(norms - 1) < UNIT_TOLERANCE)
    return rows if one.all() else rows / np.where(one, 1, norms)


def _rescaled(rows: FloatArray, squares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Scale rows of extreme length by the power of two that brings their largest number near one: nothing is rounded.

    Args:
        rows: vectors [n, D].
        squares: their sums of squares [n, 1], some of them too small, infinite or NaN.

    Returns:
        The rows, and their sums of squares; NaN or infinite only where the row has such a number.
    """
    extreme = ~((squares >= LEAST_SQUARES) & (squares < np.inf))[:, 0]
    chosen = rows[extreme]
    _, exponents = np.frexp(np.abs(chosen).max(axis=1, initial=0, keepdims=True))
    chosen = np.ldexp(chosen, -exponents)
    rows, squares = rows.copy(), squares.copy()
    rows[extreme], squares[extreme] = chosen, (chosen * chosen).sum(axis=1, keepdims=True)
    return rows, squares


def _search(units: FloatArray, candidates, k: int, penalty, memory_mb: int) -> tuple[FloatArray, IntArray]:
    """Search unit queries [n, D] in float32: scores and ids [n, k]."""
    depth = min(k + SPARE["float32"], len(candidates))
    parts = [slice(start, start + QUERY_ROWS) for start in range(0, len(units), QUERY_ROWS)]
    best = [_Best(len(units[part]), depth) for part in parts]
    buffer = np.empty(min(QUERY_ROWS, len(units)) * min(CANDIDATE_ROWS, len(candidates)), dtype=np.float32)
    for start in range(0, len(candidates), CANDIDATE_ROWS):
        block = unit_rows(candidates, start, min(start + CANDIDATE_ROWS, len(candidates)), "candidates")
        for part, selected in zip(parts, best, strict=True):
            rows = units[part]
            scores = buffer[: len(rows) * len(block)].reshape(len(rows), len(block))  # [n, c]
            np.matmul(rows, block.T, out=scores)
            if penalty is not None:
                scores -= penalty[start : start + len(block)].astype(np.float32)
            selected.update(scores, start)
    if not best:
        return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
    ids = np.sort(np.concatenate([selected.ids for selected in best]), axis=1)
    exact = rescore(units, candidates, ids, penalty, memory_mb)
    order = np.argsort(-exact, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(exact, order, axis=1), np.take_along_axis(ids, order, axis=1)


def rescore(units: FloatArray, candidates, ids: IntArray, penalty, memory_mb: int) -> FloatArray:
    """Score the kept candidates in float32 [n, depth]; equal rows get equal scores at any position."""
    scores = np.empty(ids.shape, dtype=np.float32)
    step = int(min(256, max(1, memory_mb * 10**6 // (12 * ids.shape[1] * units.shape[1]))))
    for start in range(0, len(ids), step):
        chosen = ids[start : start + step]
        rows = unit_rows(candidates[chosen.ravel()], 0, chosen.size, "candidates")
        products = units[start : start + step, None] * rows.reshape(*chosen.shape, -1)  # [r, depth, D]
        scores[start : start + step] = products.sum(axis=2)
    return scores if penalty is None else scores - penalty[ids].astype(np.float32)


class _Best:
    """Keeps the `depth` best candidates of each of n queries, by ascending index.

    A block of scores is compared with the worst score so far; after the first blocks few scores are larger.
    """

    def __init__(self, n: int, depth: int):
        self.scores = np.full((n, depth), -np.inf, dtype=np.float32)  # in descending order
        self.ids = np.zeros((n, depth), dtype=np.int64)

    def update(self, scores: FloatArray, offset: int) -> None:
        """Add the scores [n, c] of the candidates from `offset` on."""
        c, depth = scores.shape[1], self.scores.shape[1]
        if offset == 0 and c > depth:  # depth candidates reach this score
            least = np.partition(scores, c - depth, axis=1)[:, c - depth, None]
            hits = np.flatnonzero(scores >= least)
        else:  # strictly larger, so that the first of equal candidates stays
            hits = np.flatnonzero(scores > self.scores[:, -1:])
        if len(hits):
            rows, columns = np.divmod(hits, c)
            self._merge(rows, columns + offset, scores.ravel()[hits])

    def _merge(self, rows: IntArray, ids: IntArray, scores: FloatArray) -> None:
        """Merge new candidates, each [hits], into the best: `rows` ascend, and `ids` ascend within a row."""
        depth = self.scores.shape[1]
        changed, which, counts = np.unique(rows, return_inverse=True, return_counts=True)
        place = np.arange(len(rows)) - (counts.cumsum() - counts)[which] + depth
        width = depth + int(counts.max())
        all_scores = np.full((len(changed), width), -np.inf, dtype=np.float32)
        all_ids = np.zeros((len(changed), width), dtype=np.int64)
        all_scores[:, :depth], all_ids[:, :depth] = self.scores[changed], self.ids[changed]
        all_scores[which, place], all_ids[which, place] = scores, ids
        order = np.argsort(-all_scores, axis=1, kind="stable")[:, :depth]
        self.scores[changed] = np.take_along_axis(all_scores, order, axis=1)
        self.ids[changed] = np.take_along_axis(all_ids, order, axis=1)
