"""Exact nearest neighbours by cosine similarity, in blocks.

Memory does not grow with the number of queries or candidates.

Notation: N queries, M candidates, width D, c candidates in a block. `depth`
candidates per query are kept and finally rescored in float32. numpy computes in float32,
and torch, which is optional, in bfloat16.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.machine import require
from fairseq_lxsr.options import at_least
from fairseq_lxsr.vectors.rows import (
    CANDIDATE_ROWS,
    QUERY_ROWS,
    SPARE_CANDIDATES,
    BestCandidates,
    CandidateRows,
    FloatArray,
    IntArray,
    as_matrix,
    best_first,
    check_count,
    queries_per_block,
    query_blocks,
    unit_rows,
)


def nearest_neighbours(
    queries: ArrayLike,
    candidates: ArrayLike,
    k: int,
    *,
    penalty: ArrayLike | None = None,
    precision: str = "float32",
    memory_mb: int = 128,
    show_progress: bool = False,
    unit_candidates: bool = False,
) -> tuple[FloatArray, IntArray]:
    """Find the k candidates with the largest cosine similarity to each query.

        cosines, ids = nearest_neighbours(queries, candidates, k=5)

    Both precisions give the same result: the best candidates are scored again in float32, and a
    query for which bfloat16 rounding could have hidden a better candidate is searched again in
    float32. Candidates with equal cosines keep their order; if more than 8 tie with the k-th,
    any of them may be returned.

    Args:
        queries: vectors [N, D] of any length, float32 or float16, in memory or memory-mapped; lists
            are converted. Codes (int8, bits) are rejected: `embeddings.load_embeddings` decodes
            them.
        candidates: vectors [M, D] of any length, in the same formats.
        k: number of neighbours, at most M.
        penalty: value to subtract from the cosine of each candidate (for CSLS) [M].
        precision: precision of the products: float32, or bfloat16 (2 to 3 times faster if the
            processor supports it).
        memory_mb: memory limit in MB for a block of queries and its products, in addition to
            arguments and result; a block has at least 2,048 queries.
        show_progress: show a progress bar.
        unit_candidates: whether all candidates are known to be unit vectors, which need no
            scaling.

    Returns:
        Cosines minus penalty, float32 [N, k], in descending order; ids of the candidates
        [N, k].

    Raises:
        InputError: if the arrays do not match, a row contains NaN or infinity, or another argument
            is out of range.
    """
    queries = as_matrix(queries, "queries")
    candidates = as_matrix(candidates, "candidates")
    penalty = None if penalty is None else np.asarray(penalty)
    _check(queries, candidates, k, penalty, precision)
    at_least(0).check("memory_mb", memory_mb)
    scores = np.empty((len(queries), k), dtype=np.float32)
    ids = np.empty((len(queries), k), dtype=np.int64)
    memory_mb = int(memory_mb)
    block_rows = queries_per_block(memory_mb, queries.shape[1], k + SPARE_CANDIDATES[precision])
    with Progress(
        total=len(queries), desc="search", unit=" queries", leave=None, disable=not show_progress
    ) as bar:
        step = _Step(bar)
        candidate_rows = CandidateRows(candidates, penalty, memory_mb, unit_candidates, step)
        for start in range(0, len(queries), block_rows):
            stop = min(start + block_rows, len(queries))
            step.queries = range(start, stop)
            units = unit_rows(queries, start, stop, "queries")
            # Queries of this block that still have to be searched in float32.
            remaining: Any = slice(None)
            if precision == "bfloat16":
                from fairseq_lxsr.vectors.bfloat16 import search_bfloat16

                scores[start:stop], ids[start:stop], is_certain = search_bfloat16(
                    units, candidate_rows, k
                )
                remaining = np.flatnonzero(~is_certain)
            exact_scores, exact_ids = _search(units[remaining], candidate_rows, k)
            scores[start:stop][remaining] = exact_scores
            ids[start:stop][remaining] = exact_ids
            step(1)
    return scores, ids


class _Step:
    """Moves a progress bar while a block of queries is compared with the candidates."""

    def __init__(self, bar: Progress):
        self.bar = bar
        self.queries = range(0)

    def __call__(self, share: float) -> None:
        """Show that the queries have been compared with a share of the candidates."""
        done = self.queries.start + int(len(self.queries) * share)
        # Queries that are compared a second time, in float32, do not move the bar back.
        self.bar.update(max(0, done - self.bar.n))


def shift_ids(neighbours: tuple[FloatArray, IntArray], start: int) -> tuple[FloatArray, IntArray]:
    """Convert row indices within a block of candidates to global row indices.

    Args:
        neighbours: cosines and ids within the block, [N, k] each; -1 marks a missing neighbour.
        start: index of the block's first candidate.

    Returns:
        Cosines, and ids among all candidates, [N, k] each.
    """
    cosines, ids = neighbours
    return cosines, np.where(ids < 0, ids, ids + start)


def fill_neighbours(
    cosines: NDArray[Any], ids: NDArray[Any], k: int
) -> tuple[FloatArray, IntArray]:
    """Pad the neighbours to k columns, with a cosine of minus infinity and the id -1.

    Args:
        cosines: cosines to k' <= k neighbours [N, k'].
        ids: candidate ids of these neighbours [N, k'].
        k: number of columns of the result.

    Returns:
        Cosines and ids, [N, k] each.
    """
    missing = ((0, 0), (0, k - cosines.shape[1]))
    cosines = np.pad(cosines.astype(np.float32, copy=False), missing, constant_values=-np.inf)
    return cosines, np.pad(ids.astype(np.int64, copy=False), missing, constant_values=-1)


def merge_neighbours(
    parts: Iterable[tuple[FloatArray, IntArray]], k: int
) -> tuple[FloatArray, IntArray]:
    """Merge the nearest neighbours found in separate parts of the candidates into the k nearest.

    For exact neighbours, the result is bit-identical to a single search, because a cosine does not
    depend on the other candidates. Among equal cosines, earlier parts come first.

    Args:
        parts: for each part, cosines in descending order and global ids, [N, k'] each;
            k' may be smaller than k.
        k: number of neighbours to keep.

    Returns:
        Cosines and ids of the nearest neighbours, [N, k] each.
    """
    best: tuple[FloatArray, IntArray] | None = None
    for cosines, ids in parts:
        if best is not None:
            cosines = np.concatenate((best[0], cosines), axis=1)
            ids = np.concatenate((best[1], ids), axis=1)
        best = best_first(cosines, ids, k)
    if best is None:
        raise InputError("no candidates to merge; expected at least one part")
    return best


def _check(
    queries: NDArray[Any],
    candidates: NDArray[Any],
    k: int,
    penalty: NDArray[Any] | None,
    precision: str,
) -> None:
    if queries.shape[1] != candidates.shape[1]:
        raise InputError(
            f"queries have width {queries.shape[1]}, candidates have width {candidates.shape[1]}; "
            "expected embeddings from the same model"
        )
    check_count("k", k, len(candidates), "candidates")
    if penalty is not None and penalty.shape != (len(candidates),):
        raise InputError(f"penalty has shape {penalty.shape}; expected ({len(candidates)},)")
    if penalty is not None and not np.isfinite(penalty).all():
        raise InputError("penalty contains NaN or infinity; expected finite numbers")
    if precision not in SPARE_CANDIDATES:
        expected = ", ".join(SPARE_CANDIDATES)
        raise InputError(f"invalid precision {precision!r}; choose from {expected}")
    if precision == "bfloat16":
        require("torch", "torch", f"precision {precision}")


def _search(units: FloatArray, candidates: CandidateRows, k: int) -> tuple[FloatArray, IntArray]:
    """Search in float32 with unit-length queries [n, D], and return scores and ids [n, k]."""
    if not len(units):
        return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
    depth = min(k + SPARE_CANDIDATES["float32"], len(candidates))
    if len(units) * len(candidates) <= QUERY_ROWS * CANDIDATE_ROWS:
        ids = _search_at_once(units, candidates, depth)
    else:
        ids = _search_blocks(units, candidates, depth)
    # Sort ids in ascending order, so that the first of several equal candidates comes first.
    return candidates.best(units, np.sort(ids, axis=1), k)


def _search_at_once(units: FloatArray, candidates: CandidateRows, depth: int) -> IntArray:
    """Return the ids of the best candidates [n, depth], for queries whose scores fit in memory.

    The best candidates are selected once, instead of after each block.
    """
    scores = np.empty((len(units), len(candidates)), dtype=np.float32)
    for start, block, penalty in candidates.blocks():
        _score(units, block, penalty, out=scores[:, start : start + len(block)])
    selected = _BestOfBlocks(len(units), depth)
    selected.update(scores, 0)
    return selected.ids


def _search_blocks(units: FloatArray, candidates: CandidateRows, depth: int) -> IntArray:
    """Return the ids of the best candidates [n, depth], comparing one block at a time."""
    parts = query_blocks(len(units))
    best = [_BestOfBlocks(len(units[part]), depth) for part in parts]
    buffer = np.empty(len(units[parts[0]]) * candidates.largest_block, dtype=np.float32)
    for start, block, penalty in candidates.blocks():
        for part, selected in zip(parts, best, strict=True):
            rows = units[part]
            # Scores [n, c] are stored in a buffer that all blocks reuse.
            scores = buffer[: len(rows) * len(block)].reshape(len(rows), len(block))
            _score(rows, block, penalty, out=scores)
            selected.update(scores, start)
    return np.concatenate([selected.ids for selected in best])


def _score(
    units: FloatArray, block: FloatArray, penalty: FloatArray | None, out: FloatArray
) -> None:
    """Write the scores [n, c] of a block of candidates to `out`."""
    np.matmul(units, block.T, out=out)
    if penalty is not None:
        out -= penalty.astype(np.float32)


class _BestOfBlocks(BestCandidates):
    """Finds the best candidates by comparing each new score with the worst score kept so far."""

    def update(self, scores: FloatArray, offset: int) -> None:
        """Add the scores [n, c] of the candidates that start at index `offset`."""
        c = scores.shape[1]
        depth = self.scores.shape[1]
        if offset == 0 and c > depth:
            # In the first block, take the scores that at least `depth` candidates reach.
            least = np.partition(scores, c - depth, axis=1)[:, c - depth, None]
            hits = np.flatnonzero(scores >= least)
        else:
            # Keep only larger scores, so that the first of several equal candidates stays.
            hits = np.flatnonzero(scores > self.scores[:, -1:])
        if len(hits):
            rows, columns = np.divmod(hits, c)
            self.merge(rows, columns + offset, scores.ravel()[hits])
