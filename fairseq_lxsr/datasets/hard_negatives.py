"""Sentences that differ a little from a translation and mean something else: negatives that teach order and detail.

Two words exchanged is the same bag of words, another sentence; one word more, less or another is nearly the same bag.
Deterministic as `masking`: a function of (seed, epoch, pair index) alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fairseq_lxsr.datasets.masking import BoolArray, IntArray, uniform
from fairseq_lxsr.datasets.pairs import SIDES, padded

HARD_NEGATIVES = ("swap", "edit", "both")
SIDE, KIND, FIRST, SECOND, OTHER = range(10, 15)  # separate draws of one pair, beside those of masking


@dataclass(frozen=True)
class HardNegatives:
    """Makes one more negative for each pair: one of its sides, drawn, a little changed.

    Args:
        kind: `swap`: two words exchanged; `edit`: a word left out, replaced or added; `both`: half of each.
        starts_word: [V] pieces that a word begins with.
    """

    kind: str
    starts_word: BoolArray

    def __call__(
        self,
        samples: Sequence[dict],
        other_sentence: Callable[[int, float, str], IntArray],
        seed: int,
        epoch: int,
        padding_idx: int,
        max_positions: int,
    ) -> tuple[IntArray, BoolArray]:
        """Negatives of a batch.

        Args:
            samples: B pairs with `id`, `source`, `target`.
            other_sentence: pair index, number in [0, 1), side -> ids of a sentence of the same language.
        Returns: [B, T] ids, only padding where nothing changed; [B, 2] bool, whether the row is a negative of the
            source (it is a changed target), or of the target.
        """
        index = np.array([sample["id"] for sample in samples])
        of_target = uniform(seed, epoch, index, SIDE) < 0.5
        draws = np.stack([uniform(seed, epoch, index, draw) for draw in (KIND, FIRST, SECOND, OTHER)], axis=1)
        rows = []
        for sample, side, (kind, first, second, other) in zip(samples, of_target.astype(int), draws, strict=True):
            ids = sample[SIDES[side]]
            words = self._split(ids)
            if self.kind == "swap" or (self.kind == "both" and kind < 0.5):
                words = swap_words(words, first, second)
            else:
                words = edit_words(words, self._split(other_sentence(sample["id"], other, SIDES[side])), first, second)
            row = np.concatenate([ids[:0], *words])[:max_positions]
            rows.append(ids[:0] if np.array_equal(row, ids) else row)
        there = np.array([len(row) > 0 for row in rows])
        tokens = padded([row if len(row) else np.array([padding_idx]) for row in rows], padding_idx)
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
