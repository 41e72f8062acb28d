"""Ordered MaxSim of sentences by their pieces, untrained and over one table.

MaxSim from x to y (ColBERT: Khattab and Zaharia 2020, section 3.3) is the sum, over the pieces of
x, of the largest similarity of a piece to any piece of y. Here it is computed in both directions,
each piece weighs as much as its vector is long, and the similarity of piece t of the T of x and
piece u of the U of y, counted from 0, is

    cos(x[t] + (x[t-1] + x[t+1]) / 5, y[u] + (y[u-1] + y[u+1]) / 5) (1 - |(t + 1/2) / T - (u + 1/2) / U| / 2)

with zeros beside the first and the last piece. A piece is compared together with the adjacent ones,
and the second factor prefers pieces at like relative positions (whose distance fast_align reads
too: Dyer, Chahuneau and Smith 2013), so a sentence with exchanged words scores less. With |x|, the
sum of the weights of x, ordered MaxSim is

    (MaxSim(x, y) + MaxSim(y, x)) / (2 M),    M = ((|x|^8 + |y|^8) / 2)^(1/8)

from -1 to 1, the same for (x, y) and (y, x). M is nearly the larger weight, which keeps a candidate
from winning that is only a part of the sentence, whose few pieces are all found. With the larger
weight itself, adding *not* to the lighter sentence would cost nothing.

Notation: N queries, k candidates of each; P pieces, of a query or of its candidates, one sentence
after the other and a row of zeros after each; D width.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.vectors.rows import FloatArray, IntArray

ADJACENT = 0.2  # share of the adjacent pieces in what a piece is compared by
DISTANCE = 0.5  # of a similarity is lost from one end of a sentence to the other
EXPONENT = 8  # of the power mean of the weights; benchmarks/notebook/study.md has what other values of the three find
TOGETHER = 256  # whose candidates are prepared at a time
SMALLEST = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class Pieces:
    """Pieces of N sentences, one sentence after the other; each has at least one."""

    ids: IntArray  # rows of a table
    lengths: IntArray  # number of pieces of each sentence [N]

    @cached_property
    def starts(self) -> IntArray:
        """Index of the first piece of each sentence [N]."""
        return self.lengths.cumsum() - self.lengths


def piece_scores(
    table: FloatArray, queries: Pieces, candidates: Pieces, found: IntArray
) -> FloatArray:
    """Compute the ordered MaxSim of N queries and the candidates `found` for each, [N, k], by a
    table of pieces [V, D].

    A candidate of number -1, for none, has score 0.
    Memory does not grow with the number of queries, except for the result.
    """
    scores = np.zeros(found.shape, dtype=np.float32)
    for start in range(0, len(found), TOGETHER):
        block = found[start : start + TOGETHER]
        rows = np.unique(block[block >= 0])
        if len(rows):
            ours = _Compared(table, queries, np.arange(start, start + len(block)))
            theirs = _Compared(table, candidates, rows)
            places, is_there = np.searchsorted(rows, block), block >= 0
            scores[start : start + TOGETHER][is_there] = _score_block(
                ours, theirs, places, is_there
            )
    return scores


class _Compared:
    """What the pieces of some sentences are compared by, a row of zeros after each sentence."""

    def __init__(self, table: FloatArray, pieces: Pieces, sentences: IntArray):
        lengths = pieces.lengths[sentences]
        self.sizes = lengths + 1  # with the row of zeros
        self.starts = self.sizes.cumsum() - self.sizes
        of_sentence = np.repeat(np.arange(len(lengths)), self.sizes)
        places = np.arange(len(of_sentence)) - self.starts[of_sentence]
        rows = np.minimum(places, lengths[of_sentence] - 1) + pieces.starts[sentences][of_sentence]
        self.positions = ((places + 0.5) / lengths[of_sentence]).astype(np.float32)  # [P]
        self.vectors = table[pieces.ids[rows]]  # [P, D]
        self.vectors[self.starts + lengths] = 0
        self.weights = _norms(self.vectors)  # [P]
        self.totals = np.add.reduceat(self.weights, self.starts)  # of each sentence [N]
        adjacent = ADJACENT * self.vectors
        self.vectors[1:] += adjacent[:-1]
        self.vectors[:-1] += adjacent[1:]
        self.norms = np.maximum(_norms(self.vectors), SMALLEST)  # of the vectors [P]


def _score_block(
    queries: _Compared, candidates: _Compared, places: IntArray, there: NDArray[np.bool_]
) -> FloatArray:
    """Score the candidates at some places [N, k] which are `there`, one after the other."""
    chosen = places[there]
    sizes = candidates.sizes[chosen]
    starts = sizes.cumsum() - sizes
    rows = np.arange(sizes.sum()) + np.repeat(candidates.starts[chosen] - starts, sizes)
    ends = starts + sizes
    positions, weights, norms = (
        candidates.positions[rows],
        candidates.weights[rows],
        candidates.norms[rows],
    )
    sums = np.empty(len(chosen), dtype=np.float32)
    last = np.cumsum(there.sum(axis=1))
    for query, (one, other) in enumerate(pairwise((0, *last.tolist()))):
        if one == other:
            continue
        begin, end = starts[one], ends[other - 1]
        own = slice(queries.starts[query], queries.starts[query] + queries.sizes[query])
        similarities = queries.vectors[own] @ candidates.vectors[rows[begin:end]].T
        similarities /= queries.norms[own, None]
        similarities /= norms[begin:end]
        similarities *= 1 - DISTANCE * np.abs(queries.positions[own, None] - positions[begin:end])
        # the largest are those of pieces
        similarities[-1] = similarities[:, ends[one:other] - 1 - begin] = -1
        firsts = starts[one:other] - begin
        sums[one:other] = queries.weights[own] @ np.maximum.reduceat(similarities, firsts, axis=1)
        sums[one:other] += np.add.reduceat(similarities.max(axis=0) * weights[begin:end], firsts)
    of_query = np.repeat(queries.totals, there.sum(axis=1))
    return sums / (2 * _mean(of_query, candidates.totals[chosen]) + SMALLEST)


def _norms(rows: FloatArray) -> FloatArray:
    """Norms of vectors [P, D], [P]."""
    return np.sqrt(np.einsum("pd,pd->p", rows, rows))


def _mean(x: FloatArray, y: FloatArray) -> FloatArray:
    """Power mean of numbers that are not negative, which lies near the larger."""
    larger = np.maximum(x, y)
    # powers of the numbers themselves overflow
    share = np.minimum(x, y) / np.maximum(larger, SMALLEST)
    return larger * ((1 + share**EXPONENT) / 2) ** (1 / EXPONENT)
