"""Hard negatives: sentences that differ slightly from a translation and mean something else.

A sentence with two words exchanged has the same bag of words; one with a word added, removed or replaced has nearly the
same. They teach word order and detail. Like masking, they are a function of (seed, epoch, pair index) alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lxsr.datasets.batch import SIDES, DrawnPairs, padded
from fairseq_lxsr.datasets.masking import BoolArray, IntArray, uniform

HARD_NEGATIVES = ("swap", "edit", "both")
SIDE, KIND, FIRST, SECOND, OTHER = range(10, 15)  # separate draws of one pair, distinct from those of masking


@dataclass(frozen=True)
class HardNegatives:
    """Part of a batch: one additional negative for each pair, a changed copy of one of its sides, which is drawn.

    Args:
        kind: `swap`: two words are exchanged; `edit`: a word is removed, replaced or added; `both`: half of each.
        starts_word: [V] bool, True for pieces that begin a word.
    """

    kind: str
    starts_word: BoolArray

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        batch["net_input"]["negative"], batch["negative_of"] = self.make(pairs)

    def make(self, pairs: DrawnPairs) -> tuple[IntArray, BoolArray]:
        """Make the negatives of a batch.

        Returns:
            [B, T] ids, only padding where nothing changed; and [B, 2] bool, whether the row is a negative of the source
                (then it is a changed target), of the target.
        """
        data, index = pairs.dataset, pairs.index
        of_target = uniform(data.seed, data.epoch, index, SIDE) < 0.5
        draws = np.stack([uniform(data.seed, data.epoch, index, draw) for draw in (KIND, FIRST, SECOND, OTHER)], axis=1)
        rows = []
        for sample, side, (kind, first, second, other) in zip(pairs.samples, of_target.astype(int), draws, strict=True):
            ids = sample[SIDES[side]]
            words = self._split(ids)
            if self.kind == "swap" or (self.kind == "both" and kind < 0.5):
                words = swap_words(words, first, second)
            else:
                others = self._split(data.other_sentence(sample["id"], other, SIDES[side]))
                words = edit_words(words, others, first, second)
            row = np.concatenate([ids[:0], *words])[: data.max_positions]
            rows.append(ids[:0] if np.array_equal(row, ids) else row)
        there = np.array([len(row) > 0 for row in rows])
        padding = data.padding_idx
        tokens = padded([row if len(row) else np.array([padding]) for row in rows], padding)
        return tokens, np.stack((of_target & there, ~of_target & there), axis=1)

    def _split(self, ids: IntArray) -> list[IntArray]:
        """Split ids [T] of a sentence into words; pieces before the first word start belong to the first word."""
        return np.split(ids, np.flatnonzero(self.starts_word[ids])[1:])


def swap_words(words: list[IntArray], first: float, second: float) -> list[IntArray]:
    """Exchange two words, drawn by two numbers in [0, 1); a single word stays as it is."""
    if len(words) < 2:
        return words
    i = int(first * len(words))
    j = (i + 1 + int(second * (len(words) - 1))) % len(words)
    words[i], words[j] = words[j], words[i]
    return words


def edit_words(words: list[IntArray], others: list[IntArray], first: float, second: float) -> list[IntArray]:
    """Remove a word, replace it by a word of another sentence, or add such a word, each with probability 1/3.

    Args:
        words: words of the sentence.
        others: words of the other sentence.
        first: number in [0, 1) that draws the position.
        second: number in [0, 1) that draws the action and the other word.
    """
    place = int(first * len(words))
    action, rest = divmod(second * 3, 1)
    new = [] if action == 0 else [others[int(rest * len(others))]]
    return [*words[:place], *new, *words[place + (action < 2) :]]
