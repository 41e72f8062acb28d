"""Sentences that differ a little from a translation and mean something else: negatives that teach order and detail.

Two words exchanged is the same bag of words, another sentence; one word more, less or another is nearly the same bag.
Deterministic as `masking`: a function of (seed, epoch, pair index) alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lxsr.datasets.batch import SIDES, DrawnPairs, padded
from fairseq_lxsr.datasets.masking import BoolArray, IntArray, uniform

HARD_NEGATIVES = ("swap", "edit", "both")
SIDE, KIND, FIRST, SECOND, OTHER = range(10, 15)  # separate draws of one pair, beside those of masking


@dataclass(frozen=True)
class HardNegatives:
    """Part of a batch: one more negative for each pair, one of its sides, drawn, a little changed.

    Args:
        kind: `swap`: two words exchanged; `edit`: a word left out, replaced or added; `both`: half of each.
        starts_word: [V] pieces that a word begins with.
    """

    kind: str
    starts_word: BoolArray

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        batch["net_input"]["negative"], batch["negative_of"] = self.make(pairs)

    def make(self, pairs: DrawnPairs) -> tuple[IntArray, BoolArray]:
        """The negatives of a batch.

        Returns:
            [B, T] ids, only padding where nothing changed; [B, 2] bool, whether the row is a negative of the source (it
                is a changed target), or of the target.
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
        """ids [T] of a sentence, word by word; what stands before the first word belongs to it."""
        return np.split(ids, np.flatnonzero(self.starts_word[ids])[1:])


def swap_words(words: list[IntArray], first: float, second: float) -> list[IntArray]:
    """Two words, drawn by two numbers in [0, 1), change places; one word alone stays."""
    if len(words) < 2:
        return words
    i = int(first * len(words))
    j = (i + 1 + int(second * (len(words) - 1))) % len(words)
    words[i], words[j] = words[j], words[i]
    return words


def edit_words(words: list[IntArray], others: list[IntArray], first: float, second: float) -> list[IntArray]:
    """A word is left out, replaced by one of another sentence, or one of that is added; each a third of the time."""
    place = int(first * len(words))
    action, rest = divmod(second * 3, 1)
    new = [] if action == 0 else [others[int(rest * len(others))]]
    return [*words[:place], *new, *words[place + (action < 2) :]]
