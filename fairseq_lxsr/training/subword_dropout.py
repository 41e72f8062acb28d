"""Subword regularization on ids: a piece is replaced, with some probability, by the two pieces it
was merged from.

It has the effect of BPE-dropout (Provilkov, Emelianenko and Voita 2020): the model sees a word in
several segmentations. BPE-dropout omits merges while text is segmented; here merges are undone
afterwards, so that no text is needed. Like masking, the result is a function of (seed, epoch, pair
index, side) alone.
"""

from collections.abc import Sequence

import numpy as np

from fairseq_lxsr.text.segmentations import SPLIT_ROUNDS, merged_from
from fairseq_lxsr.training.draws import Draw, uniform
from fairseq_lxsr.vectors.rows import FloatArray, IntArray


class SubwordDropout:
    """Splits pieces with some probability, one for all or [V] of each, and then their parts again.

    The dictionary has `symbols` in the order of its ids, and pieces from `first_piece` on.
    """

    def __init__(
        self,
        symbols: Sequence[str],
        first_piece: int,
        probability: float | FloatArray,
        seed: int = 1,
    ):
        self.probability = np.broadcast_to(np.asarray(probability, np.float32), len(symbols))
        self.seed = seed
        self.halves = merged_from(symbols, first_piece)  # [V, 2]
        self.can_split = (self.halves[:, 0] >= 0) & (self.probability > 0)  # [V]

    def __call__(
        self, sentences: Sequence[IntArray], epoch: int, index: IntArray, side: int
    ) -> list[IntArray]:
        """Split pieces of S sentences, ids [T] each, of pairs `index` [S], into ids [T'] of the
        same text, T' >= T.

        `side` is 0 for the source, 1 for the target.
        """
        ids, row = (
            np.concatenate(sentences),
            np.repeat(np.arange(len(sentences)), [len(ids) for ids in sentences]),
        )
        # positions of the text so far that may be split now
        new = np.flatnonzero(self.can_split[ids])
        for round_ in range(SPLIT_ROUNDS):
            position = new - np.searchsorted(row, row[new])  # in the sentence
            drawn = uniform(
                self.seed, epoch, index[row[new]], Draw.SUBWORD_SPLIT, side, round_, position
            )
            split = new[drawn < self.probability[ids[new]]]
            if not len(split):
                break
            times = np.ones(len(ids), np.int64)
            times[split] = 2
            halves = self.halves[ids[split]]
            ids, row = np.repeat(ids, times), np.repeat(row, times)
            first = split + np.arange(len(split))
            ids[first], ids[first + 1] = halves.T
            parts = np.stack((first, first + 1), axis=1).ravel()
            new = parts[self.can_split[ids[parts]]]
        return np.split(ids, np.searchsorted(row, np.arange(1, len(sentences))))
