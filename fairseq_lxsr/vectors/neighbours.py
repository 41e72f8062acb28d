"""Exact nearest neighbours by cosine, in blocks: memory does not grow with the number of queries or
candidates.

Notation: N queries, M candidates, D width, c candidates in a block, depth the candidates kept for a
query before the last step, which scores them again in float32. numpy computes in float32; torch,
which need not be installed, in bfloat16.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.machine import require
from fairseq_lxsr.vectors.rows import (
    SPARE,
    Best,
    CandidateRows,
    FloatArray,
    IntArray,
    as_matrix,
    best_first,
    check_count,
    queries_in,
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
) -> tuple[FloatArray, IntArray]:
    """Find the k candidates of largest cosine for every query; ties go to the first (of up to 8
    beyond the k-th).

    Both precisions give the same result: the best candidates are scored again in float32, and a
    query for which bfloat16 rounding could have hidden a better candidate is searched again in
    float32.

    Args:
        queries: vectors [N, D] of any length, float32 or float16, in memory or memory-mapped; lists
            are converted. Codes (int8, bits) are refused: `embeddings.load_embeddings` decodes
            them.
        candidates: vectors [M, D] of the same kinds.
        k: number of neighbours, at most M.
        penalty: value to subtract from every candidate's cosine (CSLS) [M].
        precision: precision of the products: float32, or bfloat16 (2 to 3 times as fast where the
            processor has it).
        memory_mb: megabytes for a block of queries and its products, in addition to arguments and
            result; a block has at least 2,048 queries.
        show_progress: show a progress bar.

    Returns:
        Cosines minus penalty, float32 [N, k], in descending order; indices into the candidates [N,
        k].
    """
    queries, candidates = as_matrix(queries, "queries"), as_matrix(candidates, "candidates")
    penalty = None if penalty is None else np.asarray(penalty)
    _check(queries, candidates, k, penalty, precision)
    found_scores = np.empty((len(queries), k), dtype=np.float32)
    found = np.empty((len(queries), k), dtype=np.int64)
    rows = queries_in(memory_mb, queries.shape[1], k + SPARE[precision])
    others = CandidateRows(candidates, penalty, memory_mb)
    with Progress(
        total=len(queries), desc="search", unit=" queries", disable=None if show_progress else True
    ) as bar:
        for start in range(0, len(queries), rows):
            stop = min(start + rows, len(queries))
            units = unit_rows(queries, start, stop, "queries")
            doubtful: Any = slice(None)
            if precision == "bfloat16":
                from fairseq_lxsr.vectors.bfloat16 import search_bfloat16

                found_scores[start:stop], found[start:stop], certain = search_bfloat16(
                    units, others, k
                )
                doubtful = np.flatnonzero(~certain)
            again = _search(units[doubtful], others, k)
            found_scores[start:stop][doubtful], found[start:stop][doubtful] = again
            bar.update(stop - start)
    return found_scores, found


def shifted(neighbours: tuple[FloatArray, IntArray], start: int) -> tuple[FloatArray, IntArray]:
    """Number the neighbours in a part, -1 for none, among all candidates; `start` is the first of
    the part.
    """
    cosines, ids = neighbours
    return cosines, np.where(ids < 0, ids, ids + start)


def merge_neighbours(
    parts: Iterable[tuple[FloatArray, IntArray]], k: int
) -> tuple[FloatArray, IntArray]:
    """Merge the nearest in each part of the candidates into the k nearest in all; ties go to the
    first part.

    Of exact neighbours this gives those of one search, to the last bit: a cosine does not depend on
    the other candidates. Parts are cosines in descending order and ids among all candidates, [N,
    k'] each; k' may be smaller.
    """
    best: tuple[FloatArray, IntArray] | None = None
    for part in parts:
        cosines, ids = (
            part
            if best is None
            else (np.concatenate(two, axis=1) for two in zip(best, part, strict=True))
        )
        best = best_first(cosines, ids, k)
    if best is None:
        raise InputError("no candidates; expected at least one part")
    return best


def _check(queries, candidates, k: int, penalty, precision: str) -> None:
    if queries.shape[1] != candidates.shape[1]:
        raise InputError(
            f"queries are {queries.shape[1]} wide, candidates {candidates.shape[1]}; expected one model"
        )
    check_count("k", k, len(candidates), "candidates")
    if penalty is not None and (
        penalty.shape != (len(candidates),) or not np.isfinite(penalty).all()
    ):
        raise InputError(
            f"penalty has shape {penalty.shape}; expected ({len(candidates)},) finite numbers"
        )
    if precision not in SPARE:
        raise InputError(f"precision {precision!r}; expected one of {', '.join(SPARE)}")
    if precision == "bfloat16":
        require("torch", "torch", f"precision {precision}")


def _search(units: FloatArray, candidates: CandidateRows, k: int) -> tuple[FloatArray, IntArray]:
    """Search unit queries [n, D] in float32: scores and ids [n, k]."""
    if not len(units):
        return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
    depth = min(k + SPARE["float32"], len(candidates))
    parts = query_blocks(len(units))
    best = [_BestOfBlocks(len(units[part]), depth) for part in parts]
    buffer = np.empty(len(units[parts[0]]) * candidates.largest_block, dtype=np.float32)
    for start, block, penalty in candidates.blocks():
        for part, selected in zip(parts, best, strict=True):
            rows = units[part]
            scores = buffer[: len(rows) * len(block)].reshape(len(rows), len(block))  # [n, c]
            np.matmul(rows, block.T, out=scores)
            if penalty is not None:
                scores -= penalty.astype(np.float32)
            selected.update(scores, start)
    return candidates.best(
        units, np.sort(np.concatenate([selected.ids for selected in best]), axis=1), k
    )


class _BestOfBlocks(Best):
    """Compares a block of scores with the worst so far; after the first blocks few are larger."""

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
            self.merge(rows, columns + offset, scores.ravel()[hits])
