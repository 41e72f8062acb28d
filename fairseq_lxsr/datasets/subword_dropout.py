"""Subword regularisation on numbers: a piece is now and then replaced by the two pieces that it was merged from.

The effect of BPE-dropout (Provilkov, Emelianenko and Voita 2020): the model meets a word in several segmentations.
There, merges are left out while text is segmented; here they are undone afterwards, so that no text is needed, and what
is undone is a function of (seed, epoch, pair index, side) alone, as masking is.
"""

from collections.abc import Sequence

import numpy as np

from fairseq_lxsr.datasets.masking import IntArray, uniform

SPLIT = 6  # a draw of its own, next to those of `masking`
ROUNDS = 16  # a piece of 2^16 characters would need more


class SubwordDropout:
    """Splits pieces with a probability, and what they are split into again.

    Args:
        symbols: the dictionary in the order of its ids.
        first_piece: number of special symbols at its beginning.
        probability: of splitting a piece that can be split.
    """

    def __init__(self, symbols: Sequence[str], first_piece: int, probability: float, seed: int = 1):
        self.probability, self.seed = probability, seed
        self.halves = merged_from(symbols, first_piece)  # [V, 2]

    def __call__(self, sentences: Sequence[IntArray], epoch: int, index: IntArray, side: int) -> list[IntArray]:
        """ids [T] of each of S sentences -> [T'], T' >= T, which spell the same text; index: [S] of their pairs."""
        ids, row = np.concatenate(sentences), np.repeat(np.arange(len(sentences)), [len(ids) for ids in sentences])
        is_new = np.ones(len(ids), dtype=bool)
        for round_ in range(ROUNDS if self.probability else 0):
            place = np.arange(len(row)) - np.searchsorted(row, row)
            drawn = uniform(self.seed, epoch, index[row], SPLIT, side, round_, place)
            splits = is_new & (drawn < self.probability) & (self.halves[ids, 0] >= 0)
            if not splits.any():
                break
            longer, is_new, row = (np.repeat(values, 1 + splits) for values in (ids, splits, row))
            first = np.flatnonzero(splits) + np.arange(splits.sum())
            longer[first], longer[first + 1] = self.halves[ids[splits]].T
            ids = longer
        return np.split(ids, np.searchsorted(row, np.arange(1, len(sentences))))


def merged_from(symbols: Sequence[str], first_piece: int) -> IntArray:
    """The two pieces that make up each piece, [V, 2], -1 where there are none.

    Of several, those that BPE merged first: SentencePiece's order is that of the merges, characters come before all.
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
