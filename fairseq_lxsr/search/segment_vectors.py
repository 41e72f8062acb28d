"""Vectors of a segment, and the search for the nearest of them."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.search.window_pieces import find_windows, joined_ranges
from fairseq_lxsr.vectors import search_index
from fairseq_lxsr.vectors.index import FlatIndex, refine_sketch, stored_cosines
from fairseq_lxsr.vectors.rounded import RoundedRows
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, best_first, unit_rows

# Number of windows whose rows are compared for each window to find.
CANDIDATES_PER_WINDOW = 4
# Number of windows that a sketch finds for each window whose rows are compared.
SKETCHED_PER_CANDIDATE = 2
# Number of rows that a sketch finds if each document has one row: at least SKETCHED, and at least
# SKETCHED_PER_K for each neighbour to return. Recall is then that of a comparison with all rows.
SKETCHED = 400
SKETCHED_PER_K = 6
# Number of queries to search with a sketch at a time.
QUERIES_AT_ONCE = 1024
# All rows are compared if the sketch would have to find more than this fraction of them.
LARGEST_SKETCHED_SHARE = 0.25
# All allowed rows are compared if they are less than this fraction of the rows: the sketch cannot
# skip rows, so it would take longer.
SMALLEST_ALLOWED_SHARE = 0.5

Mask = NDArray[np.bool_]


class SegmentVectors:
    """Vectors of the documents of a segment.

    Attributes:
        index: vector index of the rows: a faiss index or a `vectors.index.FlatIndex`.
        num_rows: number of rows.
        is_flat: whether the vectors are stored unrounded, so that they can be copied.

    Args:
        index: see the attribute.
        sketch: sketch of the windows, see `vectors.index.build_sketch`; None if there is none.
        spans: document of each row, and its start and end byte there [R, 3]; None if each document
            has one row.
    """

    def __init__(self, index: Any, sketch: Any, spans: IntArray | None):
        self.index = index
        self.num_rows = index.ntotal
        self.is_flat = isinstance(index, FlatIndex)
        self._sketch = sketch
        self._spans = spans

    @cached_property
    def window_starts(self) -> IntArray:
        """First row of each window of the documents, ascending; see `splitting.passage_rows`.

        The row of a window is followed by the rows of its sentences, which lie inside it.
        """
        if self._spans is None:
            return np.arange(self.num_rows)
        return find_windows(*self._spans.T)

    @cached_property
    def window_stops(self) -> IntArray:
        """Row after the last row of each window."""
        return np.append(self.window_starts[1:], self.num_rows)

    def neighbours(
        self, embeddings: FloatArray, k: int, allowed: Mask | None
    ) -> tuple[FloatArray, IntArray]:
        """Find the nearest rows of the segment; see `search_index`.

        Args:
            embeddings: query embeddings [N, D].
            k: number of neighbours, at most the number of rows.
            allowed: mask of the documents that may be found; None for all.

        Returns:
            Cosines and rows, [N, k] each.
        """
        if allowed is not None and self._spans is not None:
            allowed = allowed[self._spans[:, 0]]
        depth = self._sketch_depth(k, allowed)
        if depth:
            parts = []
            # The candidates of many queries would need much memory.
            for start in range(0, max(1, len(embeddings)), QUERIES_AT_ONCE):
                block = embeddings[start : start + QUERIES_AT_ONCE]
                parts.append(self._sketched_neighbours(block, k, depth, allowed))
            cosines, rows = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        else:
            cosines, rows = search_index(self.index, embeddings, k, allowed)
        return cosines, rows

    def _sketch_depth(self, k: int, allowed: Mask | None) -> int:
        """Return the number of rows that the sketch should find; 0 to compare all rows."""
        if self._sketch is None or self._spans is not None:
            return 0
        num_allowed = self.num_rows
        if allowed is not None:
            num_allowed = int(np.count_nonzero(allowed))
        if num_allowed < SMALLEST_ALLOWED_SHARE * self.num_rows:
            return 0
        depth = max(SKETCHED, SKETCHED_PER_K * k) * self.num_rows // num_allowed
        return depth if depth <= LARGEST_SKETCHED_SHARE * self.num_rows else 0

    def _sketched_neighbours(
        self, embeddings: FloatArray, k: int, depth: int, allowed: Mask | None
    ) -> tuple[FloatArray, IntArray]:
        """Find the k nearest rows among the `depth` rows that the sketch finds for each query."""
        refined = refine_sketch(self._sketch, self.index)
        cosines, rows = search_index(refined, embeddings, depth)
        # Sort by row, so that rows with equal cosines keep their order, as in a flat index.
        order = np.argsort(rows, axis=1)
        cosines = np.take_along_axis(cosines, order, axis=1)
        rows = np.take_along_axis(rows, order, axis=1)
        if allowed is None:
            return best_first(cosines, rows, k)
        is_allowed = allowed[rows] & (rows >= 0)
        cosines[~is_allowed] = -np.inf
        best_cosines, best_rows = best_first(cosines, rows, k)
        # A query may be close to rows that are not allowed, so that the sketch found few others.
        is_short = is_allowed.sum(axis=1) < max(SKETCHED, SKETCHED_PER_K * k) / 2
        if is_short.any():
            best_cosines[is_short], best_rows[is_short] = search_index(
                self.index, embeddings[is_short], k, allowed=allowed
            )
        return best_cosines, best_rows

    @cached_property
    def _window_vectors(self) -> RoundedRows:
        """Vectors of the windows alone, rounded in memory."""
        return RoundedRows(self.index.rows, self.window_starts)

    def nearest_windows(
        self, embeddings: FloatArray, k: int, allowed: Mask | None
    ) -> tuple[FloatArray, IntArray]:
        """Find candidate rows for a ranking of k windows per query.

        The vectors of windows are compared first: exactly in a flat segment, and with the sketch
        if the vectors are rounded. Of the nearest 4 k windows, all rows are compared, and the best
        row is returned. A segment with few rounded vectors compares all rows instead. It returns
        the nearest 4 k rows, of which several may belong to one window.

        Args:
            embeddings: query embeddings [N, D].
            k: number of windows to rank.
            allowed: mask of the documents that may be found; None for all.

        Returns:
            Cosines in descending order, and rows, as `neighbours` does.
        """
        if not self.is_flat and self._sketch is None:
            depth = min(CANDIDATES_PER_WINDOW * k, self.num_rows)
            return self.neighbours(embeddings, depth, allowed)
        if allowed is not None and self._spans is not None:
            allowed = allowed[self._spans[self.window_starts, 0]]
        depth = min(CANDIDATES_PER_WINDOW * k, len(self.window_starts))
        units = unit_rows(embeddings)
        if self.is_flat:
            cosines, windows = self._window_vectors.nearest(units, depth, allowed)
        else:
            cosines, windows = self._sketched_windows(units, depth, allowed)
        rows = np.full(windows.shape, -1)
        for number, windows_of_query in enumerate(windows):
            is_found = windows_of_query >= 0
            best = self._best_rows(windows_of_query[is_found], units[number])
            order = np.argsort(-best[0], kind="stable")
            cosines[number, : len(order)] = best[0][order]
            rows[number, : len(order)] = best[1][order]
        return cosines, rows

    def _sketched_windows(
        self, units: FloatArray, k: int, allowed: Mask | None
    ) -> tuple[FloatArray, IntArray]:
        """Find the k windows whose stored vectors are nearest, among those of the sketch."""
        depth = min(SKETCHED_PER_CANDIDATE * k, len(self.window_starts))
        _, windows = search_index(self._sketch, units, depth, allowed=allowed)
        is_found = windows >= 0
        cosines = np.full(windows.shape, -np.inf, dtype=np.float32)
        for number in range(len(windows)):
            rows = self.window_starts[windows[number, is_found[number]]]
            cosines[number, is_found[number]] = stored_cosines(self.index, rows, units[number])
        return best_first(cosines, windows, k)

    def _best_rows(self, windows: IntArray, unit: FloatArray) -> tuple[FloatArray, IntArray]:
        """Return the largest cosine of the rows of each window with a query, and its row."""
        if not len(windows):
            return np.empty(0, dtype=np.float32), windows
        first_rows = self.window_starts[windows]
        counts = self.window_stops[windows] - first_rows
        starts = counts.cumsum() - counts
        rows = joined_ranges(first_rows, counts)
        cosines = stored_cosines(self.index, rows, unit)
        largest = np.maximum.reduceat(cosines, starts)
        # The first row of each window that has this cosine.
        is_largest = np.flatnonzero(cosines == np.repeat(largest, counts))
        return largest, rows[is_largest[np.searchsorted(is_largest, starts)]]
