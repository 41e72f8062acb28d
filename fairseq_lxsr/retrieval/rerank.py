"""MaxSim of sentences by their pieces (ColBERT: Khattab and Zaharia 2020, section 3.3), untrained and over one table.

MaxSim from x to y is the sum, over the pieces of x, of the largest cosine of a piece to any piece of y. Here a piece
weighs as much as its vector is long, and both directions count:

    (MaxSim(x, y) + MaxSim(y, x)) / (2 max(|x|, |y|)),    |x| the sum of the weights of x

from -1 to 1, the same for (x, y) and (y, x). The maximum keeps a candidate from winning that is only a part of the
sentence, whose few pieces are all found; means of the two directions lose by it.

Notation: n sentences in a batch, k candidates of each, T and U pieces of the longest sentence and candidate, D width.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairseq_lxsr.retrieval.neighbours import FloatArray, IntArray

ROWS = 1024  # rows of candidates in a batch: 2 MB where D is 512, which the cache of one core holds
SMALLEST = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class Pieces:
    """Pieces of N sentences, one sentence after the other; each has at least one.

    Args:
        ids: rows of a table [P].
        lengths: number of pieces of each sentence [N].
    """

    ids: IntArray
    lengths: IntArray

    @cached_property
    def starts(self) -> IntArray:
        """Index of the first piece of each sentence [N]."""
        return self.lengths.cumsum() - self.lengths

    def padded(self, sentences: IntArray) -> tuple[IntArray, np.ndarray]:
        """Return the ids [..., T] of sentences [...], whose last piece is repeated, and where they are not repeated."""
        lengths = self.lengths[sentences][..., None]
        places = np.arange(lengths.max())
        return self.ids[self.starts[sentences][..., None] + np.minimum(places, lengths - 1)], places < lengths


def piece_scores(table: FloatArray, queries: Pieces, candidates: Pieces, found: IntArray) -> FloatArray:
    """Compute MaxSim of both directions for each query and its candidates, from -1 to 1.

    Memory does not grow with the number of queries, except for the result.

    Args:
        table: vectors of pieces [V, D].
        queries: pieces of N sentences.
        candidates: pieces of M sentences.
        found: candidates of each query [N, k].

    Returns:
        float32 [N, k].
    """
    scores = np.empty(found.shape, dtype=np.float32)
    longest = candidates.lengths[found].max(axis=1, initial=1)
    order = np.argsort(-longest, kind="stable")  # sentences of a batch are padded to its longest
    start = 0
    while start < len(order):
        here = order[start : start + max(1, ROWS // (found.shape[1] * int(longest[order[start]])))]
        scores[here] = _score_batch(table, queries.padded(here), candidates.padded(found[here]))
        start += len(here)
    return scores


def _score_batch(
    table: FloatArray, queries: tuple[IntArray, np.ndarray], candidates: tuple[IntArray, np.ndarray]
) -> FloatArray:
    """Score the padded pieces of queries [n, T] and of their candidates [n, k, U], [n, k]; see `Pieces.padded`."""
    n, k, longest = candidates[0].shape
    left, left_norms = _rows(table, queries[0])
    right, right_norms = _rows(table, candidates[0].reshape(n, -1))
    cosines = left @ right.swapaxes(1, 2)  # [n, T, k * U]
    cosines /= np.maximum(left_norms, SMALLEST)[:, :, None]
    cosines /= np.maximum(right_norms, SMALLEST)[:, None]
    cosines = cosines.reshape(n, -1, k, longest)
    # a repeated piece changes no maximum, and weighs nothing
    left_weights = (left_norms * queries[1])[:, :, None]  # [n, T, 1]
    right_weights = right_norms.reshape(n, k, longest) * candidates[1]  # [n, k, U]
    both = (cosines.max(axis=3) * left_weights).sum(axis=1) + (cosines.max(axis=1) * right_weights).sum(axis=2)
    return both / (2 * np.maximum(left_weights.sum(axis=1), right_weights.sum(axis=2)) + SMALLEST)


def _rows(table: FloatArray, ids: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return rows [n, T, D] and their lengths [n, T]."""
    rows = table[ids]
    return rows, np.sqrt(np.einsum("ntd,ntd->nt", rows, rows))
