"""Batches of near pairs: what a trained model finds alike becomes each other's negatives.

As in Sachidananda, Yang and Zhu 2023 (Global Contrastive Batch Sampling) an order of the whole text
brings hard negatives together, here by cells and groups in place of their sparse graph. Embeddings
are rounded to whole numbers first, whose products are exact: workers on different machines make the
same batches.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.training.lightweight.parts.teacher import TeacherEmbeddings
from fairseq_lxsr.vectors.rows import IntArray

CELL, LARGEST_CELL = (
    1000,
    4096,
)  # pairs of a cell, about and at most; the cosines within a cell are in memory
PIVOTS = 1024  # that a part of the text is split by at once
NUMBERS_AT_ONCE = 1 << 22  # numbers that are read, or cosines with pivots, at a time


class NearPairs:
    """Puts pairs of a corpus into groups of near ones, by the sum of the unit embeddings of their
    sides.

    A cell holds the pairs that are nearest to one of some pairs, which are drawn; a group is a pair
    and its nearest in the cell, `size` pairs in all. There are N = `count` pairs.
    """

    def __init__(self, embeddings: TeacherEmbeddings, count: int, size: int, seed: int):
        self.size = size
        self.vectors = np.empty((count, embeddings.width), dtype=np.int8)  # [N, E]
        self.lengths = np.empty(count, dtype=np.float32)
        for block in self._blocks(np.arange(count)):
            rows = self.vectors[block] = whole_numbers(*embeddings.rows(block))
            self.lengths[block] = np.maximum(np.linalg.norm(rows.astype(np.float64), axis=1), 1)
        self.cells = self._cells(np.random.default_rng(seed))

    def groups(self, rows: IntArray) -> list[IntArray]:
        """Put pairs, in random order, into groups; a pair is the first of its group if no pair
        before it took it.
        """
        order = rows[np.argsort(self.cells[rows], kind="stable")]
        cells = np.split(order, np.flatnonzero(np.diff(self.cells[order])) + 1)
        return [group for members in cells for group in self._groups_of_cell(members)]

    def _groups_of_cell(self, members: IntArray) -> Iterator[IntArray]:
        near = self._cosines(members, members)
        is_left = np.ones(len(members), dtype=bool)
        for first in range(len(members)):
            if not is_left[first]:
                continue
            is_left[first] = False
            others = np.flatnonzero(is_left)
            others = others[places_of_largest(near[first, others], self.size - 1)]
            is_left[others] = False
            yield members[[first, *others]]

    def _cosines(self, queries: IntArray, candidates: IntArray) -> NDArray[np.float32]:
        """Compute what orders the candidates of each query as the cosine does [Q, C]."""
        # the products are whole numbers of at most 2^24: float32 has them exactly, whatever the
        # order of the sum
        products = (
            self.vectors[queries].astype(np.float32) @ self.vectors[candidates].astype(np.float32).T
        )
        return products / self.lengths[candidates]

    def _blocks(self, rows: IntArray) -> list[IntArray]:
        step = max(1, NUMBERS_AT_ONCE // max(PIVOTS, self.vectors.shape[1]))
        return [rows[start : start + step] for start in range(0, len(rows), step)]

    def _cells(self, rng: np.random.Generator) -> IntArray:
        """Number the cells of all pairs [N]."""
        cells, number = np.empty(len(self.vectors), dtype=np.int64), 0
        todo = [np.arange(len(cells))]
        while todo:
            rows = todo.pop()
            if len(rows) > LARGEST_CELL:
                todo += self._split(rows, rng)
            else:
                cells[rows], number = number, number + 1
        return cells

    def _split(self, rows: IntArray, rng: np.random.Generator) -> list[IntArray]:
        """Split pairs by which of some of them, which are drawn, is the nearest; where all are
        alike, anyhow.
        """
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
    """Return the places of the largest values, of equal ones the first, in ascending order.

    numpy's argpartition takes other ones of equal values on other processors.
    """
    if len(values) <= count:
        return np.arange(len(values))
    least = np.partition(values, len(values) - count)[len(values) - count]
    above, equal = np.flatnonzero(values > least), np.flatnonzero(values == least)
    return np.sort(np.concatenate((above, equal[: count - len(above)])))


def whole_numbers(source: np.ndarray, target: np.ndarray) -> NDArray[np.int8]:
    """Add the unit embeddings of both sides [B, E] and round them to so few steps that products
    have 24 bits.

    A pair whose embedding is zero keeps zeros.
    """
    sides = (
        side.astype(np.float64) for side in (source, target)
    )  # so that no two machines round to different steps
    both = sum(
        side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12) for side in sides
    )
    steps = min(127, math.isqrt(2**24 // source.shape[1]))
    largest = np.maximum(np.abs(both).max(axis=1, keepdims=True), 1e-12)
    return np.rint(both / largest * steps).astype(np.int8)
