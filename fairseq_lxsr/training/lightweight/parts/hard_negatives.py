"""Hard negatives: sentences that differ little from a translation, but mean something else.

A sentence with two words swapped has the same bag of words, and a sentence with one word added,
removed or replaced has almost the same. Hard negatives teach the model word order and details. Like
masking, they depend only on (seed, epoch, pair index).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lxsr.training.dataset import SIDES, DrawnPairs, padded_pieces
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
    """Adds a hard negative for each pair to a batch: an altered copy of one side.

    Attributes:
        kind: `swap` swaps two words, `edit` removes, replaces or adds a word, and `both` does
            either with equal probability.
        starts_word: whether each piece starts a word [V].
    """

    kind: str
    starts_word: BoolArray

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        batch["net_input"]["negative"], batch["negative_of"] = self.make(pairs)

    def make(self, pairs: DrawnPairs) -> tuple[IntArray, BoolArray]:
        """Create the negatives for a batch.

        Args:
            pairs: the sentence pairs of the batch.

        Returns:
            Token ids [B, T], and a mask [B, 2] that says whether each row is a negative for the
            source (an altered target) and for the target. A row contains only padding if its
            sentence could not be altered.
        """
        data = pairs.dataset
        index = pairs.index
        of_target = uniform(data.seed, data.epoch, index, Draw.NEGATIVE_SIDE) < 0.5
        draws = np.stack(
            [uniform(data.seed, data.epoch, index, draw) for draw in CHANGE_DRAWS], axis=1
        )
        sides = [SIDES[side] for side in of_target.astype(int)]
        if self.kind == "swap":
            ids, lengths = self._swap_all(pairs, sides, draws)
        else:
            ids, lengths = self._change_each(pairs, sides, draws)
        is_changed = lengths > 0
        width = data.padded_width(max(1, lengths.max()))
        tokens = padded_pieces(ids, lengths, data.padding_idx, width)
        return tokens, np.stack((of_target & is_changed, ~of_target & is_changed), axis=1)

    def _swap_all(
        self, pairs: DrawnPairs, sides: list[str], draws: FloatArray
    ) -> tuple[IntArray, IntArray]:
        """Swap two words in each sentence. This is ten times faster than `_change_each`.

        Returns:
            Concatenated ids of all altered sentences [P], and the length of each [B]. A sentence
            that does not change, for example because the two words are equal, has length 0.
        """
        rows = [sample[side] for sample, side in zip(pairs.samples, sides, strict=True)]
        ids = np.concatenate(rows)
        lengths = np.array([len(row) for row in rows])
        places = swapped_places(self.starts_word[ids], lengths, *draws[:, 1:3].T)
        sentence = np.repeat(np.arange(len(rows)), lengths)
        is_changed = np.bincount(sentence[ids[places] != ids], minlength=len(rows)) > 0
        return ids[places][is_changed[sentence]], lengths * is_changed

    def _change_each(
        self, pairs: DrawnPairs, sides: list[str], draws: FloatArray
    ) -> tuple[IntArray, IntArray]:
        """Alter one side of each pair; see `_swap_all`."""
        data = pairs.dataset
        rows = []
        for sample, side, (kind, first, second, donor) in zip(
            pairs.samples, sides, draws, strict=True
        ):
            ids = sample[side]
            words = self._split(ids)
            if self.kind == "both" and kind < 0.5:
                words = swap_words(words, first, second)
            else:
                new_words = self._split(data.other_sentence(sample["id"], donor, side))
                words = edit_words(words, new_words, first, second)
            row = np.concatenate([ids[:0], *words])[: data.max_positions]
            rows.append(ids[:0] if np.array_equal(row, ids) else row)
        return np.concatenate(rows), np.array([len(row) for row in rows])

    def _split(self, ids: IntArray) -> list[IntArray]:
        """Split ids [T] into words. Pieces before the first word start belong to the first word."""
        return np.split(ids, np.flatnonzero(self.starts_word[ids])[1:])


def swap_words(words: list[IntArray], first: float, second: float) -> list[IntArray]:
    """Swap two words in place. A single word remains unchanged.

    Args:
        words: ids of each word; changed by this function.
        first: number in [0, 1) that selects one word.
        second: number in [0, 1) that selects another word.

    Returns:
        The same list.
    """
    if len(words) < 2:
        return words
    i = int(first * len(words))
    j = (i + 1 + int(second * (len(words) - 1))) % len(words)
    words[i], words[j] = words[j], words[i]
    return words


def swapped_places(
    starts_word: BoolArray, lengths: IntArray, first: FloatArray, second: FloatArray
) -> IntArray:
    """Vectorized `swap_words`: swap two words in each sentence.

    Args:
        starts_word: whether each piece of the concatenated sentences starts a word [P].
        lengths: number of pieces in each sentence [N].
        first: numbers in [0, 1) that select one word per sentence [N].
        second: numbers in [0, 1) that select another word [N].

    Returns:
        For each position, the position from which to copy its piece [P].
    """
    ends = lengths.cumsum()
    begins = ends - lengths
    starts = np.flatnonzero(starts_word)
    sentence = np.searchsorted(ends, starts, side="right")
    # Pieces before the first word start belong to the first word.
    later = np.diff(sentence, prepend=-1) == 0
    # Number of words in each sentence [N].
    words = 1 + np.bincount(sentence[later], minlength=len(lengths))
    word_starts = np.sort(np.concatenate([begins, starts[later]]), kind="stable")
    bounds = np.append(word_starts, len(starts_word))
    i = (first * words).astype(np.int64)
    j = (i + 1 + (second * (words - 1)).astype(np.int64)) % words
    before = words.cumsum() - words
    low = before + np.minimum(i, j)
    high = before + np.maximum(i, j)
    # The first word spans a to b, and the second c to d.
    a = bounds[low]
    b = bounds[low + 1]
    # The maximum keeps a single word in place.
    c = np.maximum(b, bounds[high])
    d = bounds[high + 1]
    # Start of each of the five segments of a sentence [N, 5], in the new order.
    parts = np.stack([begins, c, b, a, d], axis=1)
    sizes = np.stack([a - begins, d - c, c - b, b - a, ends - d], axis=1).ravel()
    return np.repeat(parts.ravel() - (sizes.cumsum() - sizes), sizes) + np.arange(len(starts_word))


def edit_words(
    words: list[IntArray], new_words: list[IntArray], first: float, second: float
) -> list[IntArray]:
    """Remove, replace or add a word, each with probability 1/3.

    Args:
        words: ids of each word.
        new_words: words of another sentence, from which the new word is chosen.
        first: number in [0, 1) that selects the position.
        second: number in [0, 1) that selects the action and the new word.

    Returns:
        Ids of each word in the altered sentence.
    """
    place = int(first * len(words))
    action, rest = divmod(second * 3, 1)
    before = words[:place]
    if action == 0:
        return [*before, *words[place + 1 :]]
    new_word = new_words[int(rest * len(new_words))]
    if action == 1:
        return [*before, new_word, *words[place + 1 :]]
    return [*before, new_word, *words[place:]]
