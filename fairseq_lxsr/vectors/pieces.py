"""Ordered MaxSim of sentences by their pieces, untrained and over one table.

MaxSim from x to y (ColBERT: Khattab and Zaharia 2020, section 3.3) is the sum, over the pieces of x, of the largest
similarity of a piece to any piece of y. Here it is computed in both directions, each piece weighs as much as its vector
is long, and the similarity of piece t of the T of x and piece u of the U of y, counted from 0, is

    cos(x[t] + (x[t-1] + x[t+1]) / 5, y[u] + (y[u-1] + y[u+1]) / 5) (1 - |(t + 1/2) / T - (u + 1/2) / U| / 2)

with zeros beside the first and the last piece. A piece is compared together with the adjacent ones, and the second
factor prefers pieces at like relative positions (whose distance fast_align reads too: Dyer, Chahuneau and Smith 2013),
so a sentence with exchanged words scores less. With |x|, the sum of the weights of x, ordered MaxSim is

    (MaxSim(x, y) + MaxSim(y, x)) / (2 M),    M = ((|x|^8 + |y|^8) / 2)^(1/8)

from -1 to 1, the same for (x, y) and (y, x). M is nearly the larger weight, which keeps a candidate from winning that
is only a part of the sentence, whose few pieces are all found. With the larger weight itself, adding *not* to the
lighter sentence would cost nothing.

Notation: N queries, k candidates of each; P pieces, of a query or of its candidates, one sentence after the other and a
row of zeros after each; D width.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairseq_lxsr.vectors.rows import FloatArray, IntArray

ADJACENT = 0.2  # share of the adjacent pieces in what a piece is compared by
DISTANCE = 0.5  # of a similarity is lost from one end of a sentence to the other
EXPONENT = 8  # of the power mean of the weights; benchmarks/notebook/study.md has what other values of the three find
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


def piece_scores(table: FloatArray, queries: Pieces, candidates: Pieces, found: IntArray) -> FloatArray:
    """Compute the ordered MaxSim of N queries and the candidates `found` for each, [N, k], by a table of pieces [V, D].

    Memory does not grow with the number of queries, except for the result.
    """
    scores = np.empty(found.shape, dtype=np.float32)
    for row, near in enumerate(found):
        scores[row] = _score(_Compared(table, queries, np.array([row])), _Compared(table, candidates, near))
    return scores


class _Compared:
    """What the pieces of some sentences are compared by: vectors [P, D], weights and positions [P]."""

    def __init__(self, table: FloatArray, pieces: Pieces, sentences: IntArray):
        lengths = pieces.lengths[sentences]
        self.ends = np.cumsum(lengths + 1) - 1  # the rows of zeros
        self.starts = self.ends - lengths
        of_sentence = np.repeat(np.arange(len(lengths)), lengths + 1)
        places = np.arange(len(of_sentence)) - self.starts[of_sentence]
        rows = np.minimum(places, lengths[of_sentence] - 1) + pieces.starts[sentences][of_sentence]
        self.positions = ((places + 0.5) / lengths[of_sentence]).astype(np.float32)
        self.vectors = table[pieces.ids[rows]]
        self.vectors[self.ends] = 0
        self.weights = _norms(self.vectors)
        adjacent = ADJACENT * self.vectors
        self.vectors[1:] += adjacent[:-1]
        self.vectors[:-1] += adjacent[1:]

    @property
    def totals(self) -> FloatArray:
        """Weights of the sentences, sums over their pieces."""
        return np.add.reduceat(self.weights, self.starts)


def _score(query: _Compared, candidates: _Compared) -> FloatArray:
    """Score the candidates of one query [k]."""
    similarities = query.vectors @ candidates.vectors.T
    similarities /= np.maximum(_norms(query.vectors), SMALLEST)[:, None]
    similarities /= np.maximum(_norms(candidates.vectors), SMALLEST)
    similarities *= 1 - DISTANCE * np.abs(query.positions[:, None] - candidates.positions)
    similarities[query.ends] = similarities[:, candidates.ends] = -1  # the largest are those of pieces
    there = query.weights @ np.maximum.reduceat(similarities, candidates.starts, axis=1)
    back = np.add.reduceat(similarities.max(axis=0) * candidates.weights, candidates.starts)
    return (there + back) / (2 * _mean(query.totals, candidates.totals) + SMALLEST)


def _norms(rows: FloatArray) -> FloatArray:
    """Norms of vectors [P, D], [P]."""
    return np.sqrt(np.einsum("pd,pd->p", rows, rows))


def _mean(x: FloatArray, y: FloatArray) -> FloatArray:
    """Power mean of numbers that are not negative, which lies near the larger."""
    larger = np.maximum(x, y)
    share = np.minimum(x, y) / np.maximum(larger, SMALLEST)  # powers of the numbers themselves overflow
    return larger * ((1 + share**EXPONENT) / 2) ** (1 / EXPONENT)
