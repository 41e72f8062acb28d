"""Exact nearest neighbours by cosine, in blocks: memory does not grow with the number of queries or candidates.

Notation: N queries, M candidates, D width, c candidates in a block, depth the candidates kept for a query before the
last step, which scores them again in float32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from fairseq_lxsr.errors import InputError

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.int64]

QUERY_ROWS, CANDIDATE_ROWS = 2048, 4096  # sizes of one matrix product: 32 MB of float32 scores
GROUP = 16  # columns that are first compared by their largest score only
# candidates kept beyond k, so that exact scores decide the order of ties and near ties with the k-th
SPARE = {"float32": 8, "bfloat16": 24}
UNIT_TOLERANCE = 5e-7  # rounding error of a normalized row
BFLOAT16_ROUNDING = 2.0**-8  # largest relative error of rounding to bfloat16; below 1 the absolute one is half of it
FLOAT32_ROUNDING = 2.0**-23


def normalise_rows(embeddings: NDArray[Any]) -> FloatArray:
    """Normalize rows to length one, float32 [N, D]; a zero row stays zero.

    Raises:
        InputError: for NaN or infinity, naming the row.
    """
    _check_matrix(embeddings)
    return _unit_rows(embeddings, 0, len(embeddings), "embeddings").clone().numpy()


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
    queries: NDArray[Any],
    candidates: NDArray[Any],
    k: int,
    *,
    penalty: FloatArray | None = None,
    precision: str = "float32",
    memory_mb: int = 128,
    show_progress: bool = False,
) -> tuple[FloatArray, IntArray]:
    """Find the k candidates of largest cosine for every query; ties go to the first (of up to 8 beyond the k-th).

    Both precisions give the same result: the best candidates are scored again in float32, and a query for which
    bfloat16 rounding could have hidden a better candidate is searched again in float32.

    Args:
        queries: vectors [N, D] of any length, float32 or float16, in memory or memory-mapped.
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
    _check(queries, candidates, k, penalty, precision)
    found_scores = np.empty((len(queries), k), dtype=np.float32)
    found = np.empty((len(queries), k), dtype=np.int64)
    rows = rows_in(memory_mb, queries.shape[1], k + SPARE[precision])
    with tqdm(total=len(queries), desc="search", unit=" queries", disable=None if show_progress else True) as bar:
        for start in range(0, len(queries), rows):
            stop = min(start + rows, len(queries))
            units = _unit_rows(queries, start, stop, "queries")
            scores, ids, certain = _search(units, candidates, k, penalty, precision, memory_mb)
            doubtful = (~certain).nonzero()[:, 0]
            if len(doubtful):
                found_again = _search(units[doubtful], candidates, k, penalty, "float32", memory_mb)
                scores[doubtful], ids[doubtful], _ = found_again
            found_scores[start:stop], found[start:stop] = scores.numpy(), ids.numpy()
            bar.update(stop - start)
    return found_scores, found


def rows_in(memory_mb: int, width: int, depth: int) -> int:
    """Return how many queries fit in memory, at least one block: rows in two precisions and the candidates of each."""
    return max(QUERY_ROWS, memory_mb * 10**6 // (width * 10 + depth * 64) // QUERY_ROWS * QUERY_ROWS)


def _check_matrix(embeddings: NDArray[Any], name: str = "embeddings") -> None:
    if embeddings.ndim != 2 or not len(embeddings):
        raise InputError(f"{name} have shape {embeddings.shape}; expected [N, D] with at least one row")


def _check(queries, candidates, k: int, penalty, precision: str) -> None:
    _check_matrix(queries, "queries")
    _check_matrix(candidates, "candidates")
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


def _unit_rows(embeddings: NDArray[Any], start: int, stop: int, name: str) -> Tensor:
    """Return rows start to stop in float32 with length one, without a copy where they are normalized already."""
    block = np.ascontiguousarray(embeddings[start:stop], dtype=np.float32)
    rows = torch.from_numpy(block if block.flags.writeable else block.copy())
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if not norms.isfinite().all():
        row = start + int((~norms.isfinite()).int().argmax())
        raise InputError(f"row {row} of the {name} has NaN or infinity; expected finite numbers, encode the text again")
    one = (norms == 0) | ((norms - 1).abs() < UNIT_TOLERANCE)
    return rows if one.all() else rows / norms.masked_fill_(one, 1)


def _search(
    units: Tensor, candidates, k: int, penalty, precision: str, memory_mb: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Search unit queries [n, D]: scores and ids [n, k], and whether these k are certainly the best [n]."""
    dtype = getattr(torch, precision)
    depth = min(k + SPARE[precision], len(candidates))
    queries = units.to(dtype)
    best = [_Best(len(block), depth, dtype) for block in queries.split(QUERY_ROWS)]
    buffer = torch.empty(min(QUERY_ROWS, len(queries)) * min(CANDIDATE_ROWS, len(candidates)), dtype=dtype)
    rounding = 0.0
    for start in range(0, len(candidates), CANDIDATE_ROWS):
        block = _unit_rows(candidates, start, min(start + CANDIDATE_ROWS, len(candidates)), "candidates")
        rounded = block.to(dtype)
        if precision == "bfloat16":
            rounding = max(rounding, float(torch.linalg.vector_norm(block - rounded, dim=1).max()))
        minus = None if penalty is None else torch.from_numpy(-penalty[start : start + len(block)]).to(dtype)
        for rows, selected in zip(queries.split(QUERY_ROWS), best, strict=True):
            scores = buffer[: len(rows) * len(block)].view(len(rows), len(block))  # [n, c]
            if minus is None:
                torch.mm(rows, rounded.T, out=scores)
            else:
                torch.addmm(minus, rows, rounded.T, out=scores)
            selected.update(scores, start)
    ids = torch.cat([selected.ids for selected in best]).sort(dim=1).values
    exact, order = _rescore(units, candidates, ids, penalty, memory_mb).sort(dim=1, descending=True, stable=True)
    certain = torch.ones(len(units), dtype=torch.bool)
    if precision == "bfloat16" and depth < len(candidates):
        last = torch.cat([selected.scores[:, -1] for selected in best]).float()
        certain = exact[:, k - 1] > last + bfloat16_error(units, queries, rounding, penalty)
    return exact[:, :k], ids.gather(1, order)[:, :k], certain


def bfloat16_error(units: Tensor, rounded: Tensor, rounding: float, penalty: FloatArray | None) -> Tensor:
    """Bound how far a bfloat16 score can lie below the exact one [n].

    With x', y' rounded: |x'y' - xy| <= |x - x'| + |y - y'| |x'| (Cauchy-Schwarz), summed in float32; the penalty and
    then the result are rounded as well.

    Args:
        units: queries x [n, D].
        rounded: rounded queries x' [n, D].
        rounding: largest |y - y'| of the candidates.
        penalty: see `nearest_neighbours`.
    """
    error = torch.linalg.vector_norm(units - rounded.float(), dim=1)
    error += rounding * (1 + BFLOAT16_ROUNDING) + 2 * units.shape[1] * FLOAT32_ROUNDING
    if penalty is None:
        return error + BFLOAT16_ROUNDING / 2
    return error + BFLOAT16_ROUNDING * (1 + 2 * float(np.abs(penalty).max()) + BFLOAT16_ROUNDING)


def _rescore(units: Tensor, candidates, ids: Tensor, penalty, memory_mb: int) -> Tensor:
    """Score the kept candidates in float32 [n, depth]; equal rows get equal scores at any position."""
    scores = torch.empty(ids.shape)
    step = int(min(256, max(1, memory_mb * 10**6 // (12 * ids.shape[1] * units.shape[1]))))
    for start in range(0, len(ids), step):
        chosen = ids[start : start + step]
        rows = _unit_rows(candidates[chosen.flatten().numpy()], 0, chosen.numel(), "candidates")
        products = units[start : start + step, None] * rows.view(*chosen.shape, -1)  # [r, depth, D]
        scores[start : start + step] = products.sum(dim=2)
    return scores if penalty is None else scores - torch.from_numpy(penalty)[ids]


class _Best:
    """Keeps the `depth` best candidates of each of n queries, by ascending index.

    A block of scores is read once for the largest score of every group of columns; only groups whose largest score
    is among the best so far are read again. After the first blocks these are few.
    """

    def __init__(self, n: int, depth: int, dtype: torch.dtype):
        self.scores = torch.full((n, depth), -torch.inf, dtype=dtype)  # in descending order
        self.ids = torch.zeros((n, depth), dtype=torch.long)
        self.first = True

    def update(self, scores: Tensor, offset: int) -> None:
        """Add the scores [n, c] of the candidates from `offset` on."""
        c = scores.shape[1]
        depth = self.scores.shape[1]
        members = GROUP if c % GROUP == 0 and c // GROUP >= depth else 1
        groups = scores.unflatten(1, (members, c // members))  # group g: columns g, g + c/members, ...
        largest = groups.amax(dim=1)
        if self.first and c >= depth:  # depth groups reach this score, so depth candidates do
            least = largest.topk(depth, dim=1).values[:, -1]
            row, group = (largest >= least[:, None]).nonzero().T
        else:  # strictly larger, so that the first of equal candidates stays
            least = self.scores[:, -1]
            row, group = (largest > least[:, None]).nonzero().T
        values = groups[row, :, group]  # [hits, members]
        hit, member = (values >= least[row, None] if self.first else values > least[row, None]).nonzero().T
        self.first = False
        if len(hit):
            columns = group[hit] + member * (c // members)
            order = (row[hit] * c + columns).argsort()
            self._merge(row[hit][order], columns[order] + offset, values[hit, member][order])

    def _merge(self, rows: Tensor, ids: Tensor, scores: Tensor) -> None:
        """Merge new candidates, each [hits], into the best: `rows` ascend, and `ids` ascend within a row."""
        depth = self.scores.shape[1]
        changed, which, counts = rows.unique_consecutive(return_inverse=True, return_counts=True)
        place = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[which] + depth
        width = depth + int(counts.max())
        all_scores = torch.full((len(changed), width), -torch.inf, dtype=scores.dtype)
        all_ids = torch.zeros((len(changed), width), dtype=torch.long)
        all_scores[:, :depth], all_ids[:, :depth] = self.scores[changed], self.ids[changed]
        all_scores[which, place], all_ids[which, place] = scores, ids
        best, order = all_scores.sort(dim=1, descending=True, stable=True)
        self.scores[changed], self.ids[changed] = best[:, :depth], all_ids.gather(1, order)[:, :depth]
