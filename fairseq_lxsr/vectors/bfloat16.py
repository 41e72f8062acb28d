"""Exact search with bfloat16 matrix products in torch.

It is 2 to 3 times faster than float32 if the processor supports bfloat16.
"""

import numpy as np
import torch
from torch import Tensor

from fairseq_lxsr.vectors.rows import (
    SPARE_CANDIDATES,
    BestCandidates,
    CandidateRows,
    FloatArray,
    IntArray,
    query_blocks,
)

# Number of columns per group; at first, only the largest score of each group is compared.
GROUP_COLUMNS = 16
# Largest relative error of rounding to bfloat16; below 1, the absolute error is half of it.
BFLOAT16_ROUNDING = 2.0**-8
FLOAT32_ROUNDING = 2.0**-23


def search_bfloat16(
    units: FloatArray, candidates: CandidateRows, k: int
) -> tuple[FloatArray, IntArray, np.ndarray]:
    """Find the k best candidates of unit-length queries [n, D].

    Returns:
        Scores and ids [n, k], and whether these k are guaranteed to be the best [n].
    """
    depth = min(k + SPARE_CANDIDATES["bfloat16"], len(candidates))
    queries = _tensor(units).bfloat16()
    parts = [queries[part] for part in query_blocks(len(units))]
    best = [_BestOfGroups(len(rows), depth) for rows in parts]
    buffer = torch.empty(len(parts[0]) * candidates.largest_block, dtype=torch.bfloat16)
    rounding = 0.0
    for start, units_of_block, penalty in candidates.blocks():
        block = _tensor(units_of_block)
        rounded = block.bfloat16()
        rounding = max(rounding, float(torch.linalg.vector_norm(block - rounded, dim=1).max()))
        minus = None if penalty is None else torch.from_numpy(-penalty).bfloat16()
        for rows, selected in zip(parts, best, strict=True):
            # Scores [n, c] are stored in a buffer that all blocks reuse.
            scores = buffer[: len(rows) * len(block)].view(len(rows), len(block))
            if minus is None:
                torch.mm(rows, rounded.T, out=scores)
            else:
                torch.addmm(minus, rows, rounded.T, out=scores)
            selected.update(scores, start)
    ids = np.sort(np.concatenate([selected.ids for selected in best]), axis=1)
    exact_scores, exact_ids = candidates.best(units, ids, k)
    is_certain = np.ones(len(units), dtype=bool)
    if depth < len(candidates):
        # Every discarded candidate scores at most as high as the last kept candidate.
        last = np.concatenate([selected.scores[:, -1] for selected in best])
        error = bfloat16_error(_tensor(units), queries, rounding, candidates.penalty).numpy()
        is_certain = exact_scores[:, -1] > last + error
    return exact_scores, exact_ids, is_certain


def _tensor(rows: FloatArray) -> Tensor:
    # Copy read-only arrays, because torch warns about them.
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())


def bfloat16_error(
    units: Tensor, rounded: Tensor, rounding: float, penalty: FloatArray | None
) -> Tensor:
    """Bound how far a bfloat16 score can lie below the exact score.

    With queries x and candidates y, rounded to x' and y', and with `rounding` the largest |y - y'|:
    |x'y' - xy| <= |x - x'| + |y - y'| |x'| (Cauchy-Schwarz), summed in float32; the penalty and
    then the result are rounded as well.

    Args:
        units: queries x [n, D].
        rounded: queries x' [n, D].
        rounding: largest |y - y'| of all candidates.
        penalty: penalties of the candidates [M]; None for no penalties.

    Returns:
        The bound for each query [n].
    """
    error = torch.linalg.vector_norm(units - rounded.float(), dim=1)
    error += rounding * (1 + BFLOAT16_ROUNDING) + 2 * units.shape[1] * FLOAT32_ROUNDING
    if penalty is None:
        return error + BFLOAT16_ROUNDING / 2
    return error + BFLOAT16_ROUNDING * (1 + 2 * float(np.abs(penalty).max()) + BFLOAT16_ROUNDING)


class _BestOfGroups(BestCandidates):
    """Finds the best candidates by first comparing only the largest score per group of columns.

    Only groups whose largest score is among the best so far are examined further. After the first
    blocks, only few groups are.
    """

    is_first_block = True

    def update(self, scores: Tensor, offset: int) -> None:
        """Add the scores [n, c] of the candidates that start at index `offset`."""
        c = scores.shape[1]
        depth = self.scores.shape[1]
        members = GROUP_COLUMNS if c % GROUP_COLUMNS == 0 and c // GROUP_COLUMNS >= depth else 1
        # Group g has the columns g, g + c/members, ...
        groups = scores.unflatten(1, (members, c // members))
        largest = groups.amax(dim=1)
        if self.is_first_block and c >= depth:
            # At least `depth` groups reach this score, so at least as many candidates do.
            least = largest.topk(depth, dim=1).values[:, -1]
            row, group = (largest >= least[:, None]).nonzero().T
        else:
            # Keep only larger scores, so that the first of several equal candidates stays. The
            # scores so far came from bfloat16, so this conversion does not round them.
            least = torch.from_numpy(self.scores[:, -1]).bfloat16()
            row, group = (largest > least[:, None]).nonzero().T
        # Scores of all members of the selected groups, [hits, members].
        values = groups[row, :, group]
        if self.is_first_block:
            is_hit = values >= least[row, None]
        else:
            is_hit = values > least[row, None]
        hit, member = is_hit.nonzero().T
        self.is_first_block = False
        if len(hit):
            columns = group[hit] + member * (c // members)
            order = (row[hit] * c + columns).argsort()
            self.merge(
                row[hit][order].numpy(),
                (columns[order] + offset).numpy(),
                values[hit, member][order].float().numpy(),
            )
