"""Hard negatives: sentences that differ slightly from a translation and mean something else.

A sentence with two words exchanged has the same bag of words; one with a word added, removed or
replaced has nearly the same. They teach word order and detail. Like masking, they are a function of
(seed, epoch, pair index) alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lxsr.training.dataset import SIDES, DrawnPairs, padded
from fairseq_lxsr.training.draws import Draw, uniform
from fairseq_lxsr.training.lightweight.parts.masking import BoolArray
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

HARD_NEGATIVES = ("swap", "edit", "both")
CHANGE_DRAWS = (
    Draw.NEGATIVE_KIND,
    Draw.NEGATIVE_FIRST_WORD,
    Draw.NEGATIVE_SECOND_WORD,
    Draw.NEGATIVE_SENTENCE,
)


@dataclass(frozen=True)
class HardNegatives:
    """Part of a batch: one additional negative for each pair, a changed copy of one of its sides,
    which is drawn.
    """

    kind: str  # `swap`: two words are exchanged; `edit`: a word is removed, replaced or added; `both`: half of each
    starts_word: BoolArray  # [V] True for pieces that begin a word

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        batch["net_input"]["negative"], batch["negative_of"] = self.make(pairs)

    def make(self, pairs: DrawnPairs) -> tuple[IntArray, BoolArray]:
        """Make the negatives of a batch [B, T], only padding where nothing changed.

        The second array [B, 2] says whether a row is a negative of the source, a changed target,
        and of the target.
        """
        data, index = pairs.dataset, pairs.index
        of_target = uniform(data.seed, data.epoch, index, Draw.NEGATIVE_SIDE) < 0.5
        draws = np.stack(
            [uniform(data.seed, data.epoch, index, draw) for draw in CHANGE_DRAWS], axis=1
        )
        sides = [SIDES[side] for side in of_target.astype(int)]
        changed = self._swapped if self.kind == "swap" else self._changed
        rows = changed(pairs, sides, draws)
        there = np.array([len(row) > 0 for row in rows])
        padding = data.padding_idx
        rows = [row if len(row) else np.array([padding]) for row in rows]
        tokens = padded(rows, padding, data.padded_width(max(map(len, rows))))
        return tokens, np.stack((of_target & there, ~of_target & there), axis=1)

    def _swapped(self, pairs: DrawnPairs, sides: list[str], draws: FloatArray) -> list[IntArray]:
        """Do what `_changed` does for `swap`, all sentences together: one by one takes ten times as
        long.
        """
        rows = [sample[side] for sample, side in zip(pairs.samples, sides, strict=True)]
        ids, lengths = np.concatenate(rows), np.array([len(row) for row in rows])
        ends = lengths.cumsum()
        places = swapped_places(self.starts_word[ids], lengths, *draws[:, 1:3].T)
        sentence = np.repeat(np.arange(len(rows)), lengths)
        differ = np.bincount(sentence[ids[places] != ids], minlength=len(rows)) > 0
        return [
            row[: len(row) * there]
            for row, there in zip(np.split(ids[places], ends[:-1]), differ, strict=True)
        ]

    def _changed(self, pairs: DrawnPairs, sides: list[str], draws: FloatArray) -> list[IntArray]:
        """Change sides of pairs by four draws each, [B, 4]; a row is empty where nothing
        changes.
        """
        data, rows = pairs.dataset, []
        for sample, side, (kind, first, second, other) in zip(
            pairs.samples, sides, draws, strict=True
        ):
            ids = sample[side]
            words = self._split(ids)
            if self.kind == "both" and kind < 0.5:
                words = swap_words(words, first, second)
            else:
                others = self._split(data.other_sentence(sample["id"], other, side))
                words = edit_words(words, others, first, second)
            row = np.concatenate([ids[:0], *words])[: data.max_positions]
            rows.append(ids[:0] if np.array_equal(row, ids) else row)
        return rows

    def _split(self, ids: IntArray) -> list[IntArray]:
        """Split ids [T] of a sentence into words; pieces before the first word start belong to the
        first word.
        """
        return np.split(ids, np.flatnonzero(self.starts_word[ids])[1:])


def swap_words(words: list[IntArray], first: float, second: float) -> list[IntArray]:
    """Exchange two words, drawn by two numbers in [0, 1); a single word stays as it is."""
    if len(words) < 2:
        return words
    i = int(first * len(words))
    j = (i + 1 + int(second * (len(words) - 1))) % len(words)
    words[i], words[j] = words[j], words[i]
    return words


def swapped_places(
    starts_word: BoolArray, lengths: IntArray, first: FloatArray, second: FloatArray
) -> IntArray:
    """Exchange two words in each of many sentences, as `swap_words` does: where the piece at each
    place comes from [P].

    The sentences, of `lengths` [N], follow each other; `starts_word` [P] is True for pieces that
    begin a word. `first` and `second` [N] draw the words.
    """
    ends = lengths.cumsum()
    begins = ends - lengths
    starts = np.flatnonzero(starts_word)
    sentence = np.searchsorted(ends, starts, side="right")
    later = np.diff(sentence, prepend=-1) == 0  # what stands before the first word belongs to it
    words = 1 + np.bincount(sentence[later], minlength=len(lengths))  # [N]
    bounds = np.append(
        np.sort(np.concatenate([begins, starts[later]]), kind="stable"), len(starts_word)
    )
    i = (first * words).astype(np.int64)
    j = (i + 1 + (second * (words - 1)).astype(np.int64)) % words
    before = words.cumsum() - words
    low, high = before + np.minimum(i, j), before + np.maximum(i, j)
    a, b, c, d = bounds[low], bounds[low + 1], bounds[high], bounds[high + 1]
    c = np.maximum(b, c)  # a single word stays where it is
    parts = np.stack([begins, c, b, a, d], axis=1)  # [N, 5] in their new order
    sizes = np.stack([a - begins, d - c, c - b, b - a, ends - d], axis=1).ravel()
    return np.repeat(parts.ravel() - (sizes.cumsum() - sizes), sizes) + np.arange(len(starts_word))


def edit_words(
    words: list[IntArray], others: list[IntArray], first: float, second: float
) -> list[IntArray]:
    """Remove a word, replace it by a word of another sentence, or add such a word, each with
    probability 1/3.

    `first` in [0, 1) draws the position, `second` the action and the other word.
    """
    place = int(first * len(words))
    action, rest = divmod(second * 3, 1)
    new = [] if action == 0 else [others[int(rest * len(others))]]
    return [*words[:place], *new, *words[place + (action < 2) :]]
