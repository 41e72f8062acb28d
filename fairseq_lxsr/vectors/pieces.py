"""Ordered MaxSim between sentences, computed from word piece vectors without training.

MaxSim from x to y (ColBERT: Khattab and Zaharia 2020, section 3.3) is the sum, over the pieces of
x, of the largest similarity of a piece to any piece of y. Here it is computed in both directions,
each piece is weighted by the length of its vector, and the similarity of piece t of x (T pieces)
and piece u of y (U pieces), counted from 0, is

    cos(x[t] + (x[t-1] + x[t+1]) / 5, y[u] + (y[u-1] + y[u+1]) / 5)
        (1 - |(t + 1/2) / T - (u + 1/2) / U| / 2)

with zeros before the first and after the last piece. A piece is compared together with its adjacent
pieces, and the second factor prefers pieces at similar relative positions (fast_align uses this
distance too: Dyer, Chahuneau and Smith 2013). So a sentence with swapped words scores lower. With
|x|, the sum of the weights of x, ordered MaxSim is

    (MaxSim(x, y) + MaxSim(y, x)) / (2 M),    M = ((|x|^8 + |y|^8) / 2)^(1/8)

It is symmetric and lies between -1 and 1. M is close to the larger weight. With a smaller M, a
candidate that is only part of the sentence would win, because all its few pieces have a match. With
exactly the larger weight, adding *not* to the lighter sentence would not be penalized.

Notation: N queries, k candidates per query, width D; P pieces of consecutive sentences, with a row
of zeros after each sentence.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# For results with other values of these three constants, see benchmarks/notebook/study.md.
# Weight of adjacent pieces: their vectors are multiplied by it and added to the vector of a piece.
ADJACENT_WEIGHT = 0.2
# Fraction by which a similarity is reduced between pieces at opposite ends of the sentences.
DISTANCE_PENALTY = 0.5
# Exponent of the power mean that combines weights.
EXPONENT = 8
# Number of queries to process at a time.
QUERY_BLOCK = 256
SMALLEST = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class Pieces:
    """Word pieces of N sentences, concatenated; each sentence has at least one piece.

    Attributes:
        ids: row indices of the pieces in a table.
        lengths: number of pieces of each sentence [N].
    """

    ids: IntArray
    lengths: IntArray

    @cached_property
    def starts(self) -> IntArray:
        """Index of the first piece of each sentence [N]."""
        return self.lengths.cumsum() - self.lengths

    def part(self, first: int, end: int) -> "Pieces":
        """Return the pieces of the sentences from `first` to `end` (exclusive).

        Args:
            first: index of the first sentence.
            end: index after the last sentence.

        Returns:
            The pieces of `end - first` sentences.
        """
        bounds = np.append(self.starts, len(self.ids))
        return Pieces(self.ids[bounds[first] : bounds[end]], self.lengths[first:end])


def piece_scores(
    table: FloatArray,
    queries: Pieces,
    candidates: Pieces,
    ids: IntArray,
    query_block: int = QUERY_BLOCK,
) -> FloatArray:
    """Compute the ordered MaxSim of each query with its candidates.

    Memory does not grow with the number of queries, except for the result.

    Args:
        table: vectors of all pieces [V, D].
        queries: pieces of N queries.
        candidates: pieces of all candidates.
        ids: candidate ids of each query [N, k]; -1 marks a missing candidate.
        query_block: number of queries whose candidates are prepared at a time.

    Returns:
        Scores, float32 [N, k]; 0 for a missing candidate.
    """
    scores = np.zeros(ids.shape, dtype=np.float32)
    for start in range(0, len(ids), query_block):
        block = ids[start : start + query_block]
        is_candidate = block >= 0
        rows = np.unique(block[is_candidate])
        if not len(rows):
            continue
        query_pieces = _Compared(table, queries, np.arange(start, start + len(block)))
        candidate_pieces = _Compared(table, candidates, rows)
        positions = np.searchsorted(rows, block)
        scores[start : start + query_block][is_candidate] = _score_block(
            query_pieces, candidate_pieces, positions, is_candidate
        )
    return scores


class _Compared:
    """Vectors for comparing the pieces of a block of sentences.

    Attributes:
        sizes: number of rows per sentence: its pieces and the row of zeros [N].
        starts: first row of each sentence [N].
        positions: relative position of each piece in its sentence [P].
        vectors: piece vectors, including the weighted vectors of adjacent pieces [P, D].
        weights: lengths of the original vectors [P].
        totals: sum of the weights of each sentence [N].
        norms: lengths of the vectors [P].
    """

    def __init__(self, table: FloatArray, pieces: Pieces, sentences: IntArray):
        lengths = pieces.lengths[sentences]
        self.sizes = lengths + 1
        self.starts = self.sizes.cumsum() - self.sizes
        sentence_of_row = np.repeat(np.arange(len(lengths)), self.sizes)
        places = np.arange(len(sentence_of_row)) - self.starts[sentence_of_row]
        # The row of zeros temporarily holds the last piece.
        rows = np.minimum(places, lengths[sentence_of_row] - 1)
        rows += pieces.starts[sentences][sentence_of_row]
        self.positions = ((places + 0.5) / lengths[sentence_of_row]).astype(np.float32)
        self.vectors = table[pieces.ids[rows]]
        self.vectors[self.starts + lengths] = 0
        self.weights = _norms(self.vectors)
        self.totals = np.add.reduceat(self.weights, self.starts)
        adjacent = ADJACENT_WEIGHT * self.vectors
        self.vectors[1:] += adjacent[:-1]
        self.vectors[:-1] += adjacent[1:]
        self.norms = np.maximum(_norms(self.vectors), SMALLEST)


def _score_block(
    queries: _Compared,
    candidates: _Compared,
    positions: IntArray,
    is_candidate: NDArray[np.bool_],
) -> FloatArray:
    """Score the candidates of a block of queries, one query at a time.

    Args:
        queries: pieces of n queries.
        candidates: pieces of all their candidates.
        positions: position of each candidate of a query in `candidates` [n, k].
        is_candidate: mask of the candidates to score [n, k].

    Returns:
        Scores of these candidates, row by row.
    """
    chosen = positions[is_candidate]
    sizes = candidates.sizes[chosen]
    starts = sizes.cumsum() - sizes
    ends = starts + sizes
    rows = np.arange(sizes.sum()) + np.repeat(candidates.starts[chosen] - starts, sizes)
    relative = candidates.positions[rows]
    weights = candidates.weights[rows]
    norms = candidates.norms[rows]
    sums = np.empty(len(chosen), dtype=np.float32)
    counts = is_candidate.sum(axis=1)
    bounds = (0, *np.cumsum(counts).tolist())
    # The candidates of a query range from `first` to `last` (exclusive).
    for query, (first, last) in enumerate(pairwise(bounds)):
        if first == last:
            continue
        begin = starts[first]
        end = ends[last - 1]
        query_start = queries.starts[query]
        query_rows = slice(query_start, query_start + queries.sizes[query])
        similarities = queries.vectors[query_rows] @ candidates.vectors[rows[begin:end]].T
        similarities /= queries.norms[query_rows, None]
        similarities /= norms[begin:end]
        distances = np.abs(queries.positions[query_rows, None] - relative[begin:end])
        similarities *= 1 - DISTANCE_PENALTY * distances
        # No piece matches a row of zeros.
        similarities[-1] = similarities[:, ends[first:last] - 1 - begin] = -1
        offsets = starts[first:last] - begin
        best_of_query = np.maximum.reduceat(similarities, offsets, axis=1)
        sums[first:last] = queries.weights[query_rows] @ best_of_query
        best_of_candidates = similarities.max(axis=0) * weights[begin:end]
        sums[first:last] += np.add.reduceat(best_of_candidates, offsets)
    query_totals = np.repeat(queries.totals, counts)
    return sums / (2 * _power_mean(query_totals, candidates.totals[chosen]) + SMALLEST)


def _norms(rows: FloatArray) -> FloatArray:
    """Return the lengths [P] of vectors [P, D]."""
    return np.sqrt(np.einsum("pd,pd->p", rows, rows))


def _power_mean(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the power mean of two non-negative numbers, which is close to the larger one."""
    larger = np.maximum(x, y)
    # Divide by the larger number, because powers of the numbers themselves may overflow.
    share = np.minimum(x, y) / np.maximum(larger, SMALLEST)
    return larger * ((1 + share**EXPONENT) / 2) ** (1 / EXPONENT)
