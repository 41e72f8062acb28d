"""Subword regularization: random pieces are split into the two pieces that formed them.

As with BPE-dropout (Provilkov, Emelianenko and Voita 2020), the model sees a word in several
segmentations. BPE-dropout skips merges while text is segmented; here, merges are undone in
binarised text. Like masking, the result depends only on (seed, epoch, pair index, side).
"""

from collections.abc import Sequence

import numpy as np

from fairseq_lxsr.text.segmentations import SPLIT_ROUNDS, merged_from
from fairseq_lxsr.training.dataset import split_pieces
from fairseq_lxsr.training.draws import Draw, uniform
from fairseq_lxsr.vectors.rows import FloatArray, IntArray


class SubwordDropout:
    """Randomly splits pieces, and then the resulting parts.

    Args:
        symbols: V dictionary symbols, in id order.
        first_piece: id of the first piece after the special symbols.
        probability: probability of splitting a piece: one value for all, or one per symbol [V].
        seed: seed of the training run.
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
        # Ids of the two parts of each piece [V, 2].
        self.halves = merged_from(symbols, first_piece)
        # Whether each symbol can be split [V].
        self.can_split = (self.halves[:, 0] >= 0) & (self.probability > 0)

    def __call__(
        self, sentences: Sequence[IntArray], epoch: int, index: IntArray, side: int
    ) -> list[IntArray]:
        """Randomly split pieces in sentences.

        Args:
            sentences: ids [T] of each of the S sentences.
            epoch: number of the epoch.
            index: pair indices [S].
            side: 0 for the source, 1 for the target.

        Returns:
            Ids [T'] of each sentence, with T' >= T.
        """
        ids = np.concatenate(sentences)
        # Index of the sentence that each piece belongs to.
        row = np.repeat(np.arange(len(sentences)), [len(sentence) for sentence in sentences])
        # Indices in `ids` of pieces that may be split in this iteration.
        new = np.flatnonzero(self.can_split[ids])
        for round_ in range(SPLIT_ROUNDS):
            # Position of each piece within its sentence.
            position = new - np.searchsorted(row, row[new])
            drawn = uniform(
                self.seed, epoch, index[row[new]], Draw.SUBWORD_SPLIT, side, round_, position
            )
            split = new[drawn < self.probability[ids[new]]]
            if not len(split):
                break
            times = np.ones(len(ids), np.int64)
            times[split] = 2
            halves = self.halves[ids[split]]
            ids = np.repeat(ids, times)
            row = np.repeat(row, times)
            first = split + np.arange(len(split))
            ids[first] = halves[:, 0]
            ids[first + 1] = halves[:, 1]
            parts = np.stack((first, first + 1), axis=1).ravel()
            new = parts[self.can_split[ids[parts]]]
        return split_pieces(ids, np.searchsorted(row, np.arange(len(sentences))))
