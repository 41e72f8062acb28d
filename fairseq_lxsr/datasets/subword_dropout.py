"""Subword regularization on ids: a piece is replaced, with some probability, by the two pieces it was merged from.

It has the effect of BPE-dropout (Provilkov, Emelianenko and Voita 2020): the model sees a word in several
segmentations. BPE-dropout omits merges while text is segmented; here merges are undone afterwards, so that no text is
needed. Like masking, the result is a function of (seed, epoch, pair index, side) alone.
"""

from collections.abc import Sequence

import numpy as np

from fairseq_lxsr.datasets.masking import IntArray, uniform

SPLIT = 6  # a separate draw, distinct from those of `masking`
ROUNDS = 16  # only a piece of more than 2^16 characters could need more


class SubwordDropout:
    """Splits pieces with some probability, and then their parts again.

    Args:
        symbols: the dictionary in the order of its ids.
        first_piece: number of special symbols at its beginning.
        probability: probability of splitting a piece that can be split.
        seed: seed of all draws.
    """

    def __init__(self, symbols: Sequence[str], first_piece: int, probability: float, seed: int = 1):
        self.probability, self.seed = probability, seed
        self.halves = merged_from(symbols, first_piece)  # [V, 2]

    def __call__(self, sentences: Sequence[IntArray], epoch: int, index: IntArray, side: int) -> list[IntArray]:
        """Split pieces of sentences.

        Args:
            sentences: S sentences, each ids [T].
            epoch: number of the epoch.
            index: [S] pair indices.
            side: 0 for the source, 1 for the target.

        Returns:
            S sentences of the same text, each ids [T'], T' >= T.
        """
        ids, row = np.concatenate(sentences), np.repeat(np.arange(len(sentences)), [len(ids) for ids in sentences])
        is_new = np.ones(len(ids), dtype=bool)
        for round_ in range(ROUNDS if self.probability else 0):
            position = np.arange(len(row)) - np.searchsorted(row, row)
            drawn = uniform(self.seed, epoch, index[row], SPLIT, side, round_, position)
            splits = is_new & (drawn < self.probability) & (self.halves[ids, 0] >= 0)
            if not splits.any():
                break
            longer, is_new, row = (np.repeat(values, 1 + splits) for values in (ids, splits, row))
            first = np.flatnonzero(splits) + np.arange(splits.sum())
            longer[first], longer[first + 1] = self.halves[ids[splits]].T
            ids = longer
        return np.split(ids, np.searchsorted(row, np.arange(1, len(sentences))))


def merged_from(symbols: Sequence[str], first_piece: int) -> IntArray:
    """Find the two pieces that each piece was merged from, as ids [V, 2], -1 where there are none.

    Where several pairs spell a piece, the one that BPE could merge first is taken: SentencePiece orders pieces by their
    merges, and single characters precede all of them.
    """
    rank = {piece: 0 if len(piece) == 1 else number for number, piece in enumerate(symbols) if number >= first_piece}
    ids = {piece: number for number, piece in enumerate(symbols) if number >= first_piece}
    halves = np.full((len(symbols), 2), -1, dtype=np.int64)
    for piece, number in ids.items():
        ways = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [way for way in ways if way[0] in ids and way[1] in ids]
        if known:
            best = min(known, key=lambda way: max(rank[way[0]], rank[way[1]]))
            halves[number] = ids[best[0]], ids[best[1]]
    return halves
