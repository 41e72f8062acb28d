"""Batches of pairs that share a word: sentences that are harder to tell apart than any others of the same length."""

from collections.abc import Sequence

import numpy as np

from fairseq_lxsr.datasets.masking import IntArray, uniform

RAREST = 2  # pieces of each side that a pair may be put together by
SHARED = 16  # a draw of its own, next to those of masking and hard negatives


def rare_pieces(sentences: Sequence[IntArray], counts: IntArray) -> IntArray:
    """The rarest pieces of each sentence, [N, RAREST]; repeated where it has fewer, 0 where it has none.

    Args:
        sentences: N sentences, ids [T] each.
        counts: [V] how often each piece occurs in the text.
    """
    found = np.zeros((len(sentences), RAREST), dtype=np.int64)
    for number, ids in enumerate(sentences):
        if len(ids):
            found[number] = np.resize(ids[np.argsort(counts[ids], kind="stable")[:RAREST]], RAREST)
    return found


def order_by_shared_word(indices: IntArray, lengths: IntArray, rare: IntArray, seed: int, epoch: int) -> IntArray:
    """Pairs whose length has the same power of two, and of these the ones that share a word, next to each other.

    The word is drawn anew every epoch; what is equal keeps its (random) order.

    Args:
        indices: [n] pairs in random order.
        lengths: [N] pieces of the longer side of every pair; rare: [N, K] pieces of every pair to draw from.
    """
    drawn = uniform(seed, epoch, indices, SHARED) * rare.shape[1]  # [n]
    word = rare[indices, drawn.astype(np.int64)]
    return indices[np.lexsort((word, np.ceil(np.log2(lengths[indices]))))]
