"""Exact nearest neighbours that first compares int8 copies of the vectors.

A search for one query reads all vectors once, so its time is that of the memory. Rows in int8 are a
quarter of float32. The copy of a row x is s c, with the codes c and the scale s = max|x| / 127. For
a unit query q,

    |q x - s q c| <= |x - s c|

and the right side is stored for each row. So a row whose rounded cosine plus this bound is below
the k-th best of the rounded cosines minus the bound is not among the k nearest. The remaining rows,
about k and a half, are compared in float32: the result is that of a search in float32.
"""

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.vectors.neighbours import fill_neighbours
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, unit_rows

# Number of rows to convert to float32 at a time; they fit into the cache of a core.
ROWS_AT_ONCE = 256
# Number of queries to compare at a time.
QUERIES_AT_ONCE = 64
LARGEST_CODE = 127
# Rounding errors of sums in float32.
SLACK = np.float32(2e-6)


class RoundedRows:
    """Finds the nearest of some rows of a matrix, with an int8 copy in memory.

        rounded = RoundedRows(matrix, np.arange(len(matrix)))
        cosines, numbers = rounded.nearest(unit_queries, k=5)

    Args:
        matrix: vectors [M, D], in memory or memory-mapped; they must not change.
        rows: rows of the matrix to search [W].
    """

    def __init__(self, matrix: NDArray[np.float32], rows: IntArray):
        self._matrix = matrix
        self._rows = rows
        self._codes = np.empty((len(rows), matrix.shape[1]), dtype=np.int8)
        self._scales = np.empty(len(rows), dtype=np.float32)
        self._errors = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            units = unit_rows(matrix[rows[part]])
            scales = np.abs(units).max(axis=1) / np.float32(LARGEST_CODE)
            scales = np.maximum(scales, np.finfo(np.float32).tiny)
            codes = np.rint(units / scales[:, None])
            self._codes[part] = codes
            self._scales[part] = scales
            self._errors[part] = np.linalg.norm(units - codes * scales[:, None], axis=1) + SLACK

    def __len__(self) -> int:
        """Return the number of rows to search."""
        return len(self._rows)

    def nearest(
        self, units: FloatArray, k: int, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Find the k nearest rows of each query.

        Args:
            units: unit queries, float32 [N, D].
            k: number of rows to find, at most W.
            allowed: mask of the rows that may be found [W]; None for all.

        Returns:
            Cosines [N, k] in descending order, and positions in `rows` [N, k]; -1 with a cosine of
            minus infinity if fewer than k rows are allowed.
        """
        depth = k
        if allowed is not None:
            depth = min(k, int(allowed.sum()))
        cosines = np.full((len(units), depth), -np.inf, dtype=np.float32)
        numbers = np.full((len(units), depth), -1, dtype=np.int64)
        for start in range(0, len(units) if depth else 0, QUERIES_AT_ONCE):
            scores = self._scores(units[start : start + QUERIES_AT_ONCE])
            if allowed is not None:
                scores[:, ~allowed] = -np.inf
            for number, scores_of_query in enumerate(scores, start=start):
                cosines[number], numbers[number] = self._best(units[number], scores_of_query, depth)
        return fill_neighbours(cosines, numbers, k)

    def _scores(self, units: FloatArray) -> FloatArray:
        """Return the rounded cosines [n, W]."""
        scores = np.empty((len(units), len(self)), dtype=np.float32)
        buffer = np.empty((ROWS_AT_ONCE, self._codes.shape[1]), dtype=np.float32)
        for start in range(0, len(self), ROWS_AT_ONCE):
            codes = self._codes[start : start + ROWS_AT_ONCE]
            block = buffer[: len(codes)]
            np.copyto(block, codes)
            np.matmul(units, block.T, out=scores[:, start : start + len(codes)])
        scores *= self._scales
        return scores

    def _best(self, unit: FloatArray, scores: FloatArray, k: int) -> tuple[FloatArray, IntArray]:
        """Return the cosines and positions of the k nearest rows of a query."""
        at_least = scores - self._errors
        kth = len(scores) - k
        threshold = np.partition(at_least, kth)[kth]
        candidates = np.flatnonzero(scores + self._errors >= threshold)
        rows = unit_rows(self._matrix[self._rows[candidates]])
        # A sum of products, unlike a matrix product, gives equal rows equal cosines.
        cosines = (rows * unit).sum(axis=1)
        order = np.argsort(-cosines, kind="stable")[:k]
        return cosines[order], candidates[order]
