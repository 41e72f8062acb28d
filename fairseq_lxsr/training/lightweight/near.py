"""Groups pairs that a trained model finds similar, as hard negatives for each other in a batch.

As in Global Contrastive Batch Sampling (Sachidananda, Yang and Zhu 2023), the whole text is ordered
so that hard negatives are close together; the order is based on cells and groups instead of a
sparse graph. Embeddings are first rounded to integers, whose products are exact, so that workers on
different machines build identical batches.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.training.lightweight.parts.teacher import TeacherEmbeddings
from fairseq_lxsr.vectors.rows import IntArray

# Approximate number of pairs per cell.
CELL = 1000
# Maximum number of pairs per cell, because all cosines within a cell are held in memory.
LARGEST_CELL = 4096
# Maximum number of pivots per split.
PIVOTS = 1024
# Maximum number of embedding values, or of cosines with pivots, in memory at once.
NUMBERS_AT_ONCE = 1 << 22


class NearPairs:
    """Groups similar pairs of a corpus by comparing the summed unit embeddings of both sides.

    A cell contains the pairs that are nearest to the same pivot, which is a randomly drawn pair. A
    group is a pair and its nearest neighbours in the cell.

    Args:
        embeddings: embeddings of both sides, or of one side.
        count: number of pairs N.
        size: number of pairs per group.
        seed: seed for drawing the pivots.
    """

    def __init__(self, embeddings: TeacherEmbeddings, count: int, size: int, seed: int):
        self.size = size
        self.vectors = np.empty((count, embeddings.width), dtype=np.int8)
        self.lengths = np.empty(count, dtype=np.float32)
        for block in self._blocks(np.arange(count)):
            rows = self.vectors[block] = whole_numbers(*embeddings.rows(block))
            self.lengths[block] = np.maximum(np.linalg.norm(rows.astype(np.float64), axis=1), 1)
        self.cells = self._cells(np.random.default_rng(seed))

    def groups(self, rows: IntArray) -> list[IntArray]:
        """Divide pairs into groups.

        Each pair that is not yet in a group starts one, together with the nearest pairs that are
        not in a group.

        Args:
            rows: pair indices, in random order.
        """
        order = rows[np.argsort(self.cells[rows], kind="stable")]
        cells = np.split(order, np.flatnonzero(np.diff(self.cells[order])) + 1)
        groups: list[IntArray] = []
        for members in cells:
            groups += self._groups_of_cell(members)
        return groups

    def _groups_of_cell(self, members: IntArray) -> Iterator[IntArray]:
        cosines = self._cosines(members, members)
        is_free = np.ones(len(members), dtype=bool)
        for first in range(len(members)):
            if not is_free[first]:
                continue
            is_free[first] = False
            candidates = np.flatnonzero(is_free)
            largest = places_of_largest(cosines[first, candidates], self.size - 1)
            neighbours = candidates[largest]
            is_free[neighbours] = False
            yield members[[first, *neighbours]]

    def _cosines(self, queries: IntArray, candidates: IntArray) -> NDArray[np.float32]:
        """Compute scores [Q, C] that rank the candidates of each query like cosines."""
        # The products are integers of at most 2^24, so float32 sums are exact in any order.
        query_vectors = self.vectors[queries].astype(np.float32)
        candidate_vectors = self.vectors[candidates].astype(np.float32)
        return query_vectors @ candidate_vectors.T / self.lengths[candidates]

    def _blocks(self, rows: IntArray) -> list[IntArray]:
        step = max(1, NUMBERS_AT_ONCE // max(PIVOTS, self.vectors.shape[1]))
        return [rows[start : start + step] for start in range(0, len(rows), step)]

    def _cells(self, rng: np.random.Generator) -> IntArray:
        """Assign each of N pairs to a cell, and return the cell index of each pair [N]."""
        cells = np.empty(len(self.vectors), dtype=np.int64)
        number = 0
        parts = [np.arange(len(cells))]
        while parts:
            rows = parts.pop()
            if len(rows) > LARGEST_CELL:
                parts += self._split(rows, rng)
            else:
                cells[rows] = number
                number += 1
        return cells

    def _split(self, rows: IntArray, rng: np.random.Generator) -> list[IntArray]:
        """Split pairs by their nearest pivot, or into equal parts if it is the same for all."""
        pivots = rng.choice(rows, min(math.ceil(len(rows) / CELL), PIVOTS), replace=False)
        nearest = np.concatenate(
            [self._cosines(block, pivots).argmax(axis=1) for block in self._blocks(rows)]
        )
        order = np.argsort(nearest, kind="stable")
        bounds = [0, *(np.flatnonzero(np.diff(nearest[order])) + 1).tolist(), len(rows)]
        if len(bounds) == 2:
            return np.array_split(rows, math.ceil(len(rows) / LARGEST_CELL))
        return [rows[order[start:end]] for start, end in pairwise(bounds)]


def places_of_largest(values: NDArray[np.float32], count: int) -> IntArray:
    """Return the indices of the `count` largest values, ascending; of equal values, the first ones.

    numpy's argpartition orders equal values differently on different processors.
    """
    if len(values) <= count:
        return np.arange(len(values))
    least = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)
    return np.sort(np.concatenate((above, equal[: count - len(above)])))


def whole_numbers(source: np.ndarray, target: np.ndarray) -> NDArray[np.int8]:
    """Add the unit embeddings of both sides, and round the sum to integers.

    The integers are so small that the dot product of two rows has at most 24 bits.

    Args:
        source: source embeddings [B, E].
        target: target embeddings [B, E].

    Returns:
        Integers [B, E]. Zero embeddings remain zero.
    """
    # Use float64, so that all machines round to the same integers.
    summed = sum(
        side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12)
        for side in (source.astype(np.float64), target.astype(np.float64))
    )
    steps = min(127, math.isqrt(2**24 // source.shape[1]))
    largest = np.maximum(np.abs(summed).max(axis=1, keepdims=True), 1e-12)
    return np.rint(summed / largest * steps).astype(np.int8)
