"""Numbers that identify sentences with the same text, within a batch and over the batches of all workers."""

from typing import Any

import numpy as np

from fairseq_lxsr.training.dataset import DrawnPairs
from fairseq_lxsr.vectors.rows import IntArray

MULTIPLIER = np.int64(6364136223846793005)  # of Knuth's MMIX generator


class TextNumbers:
    """Part of a batch: a number for each sentence, equal for equal texts of a side."""

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        # from the text as stored on disk: subword dropout segments equal texts differently
        sides = pairs.padded(pairs.whole)
        batch["text_number"] = np.stack([text_numbers(side, pairs.dataset.padding_idx) for side in sides])


class PairNumbers:
    """Part of a batch: the same field, equal only for the same pair, which an epoch may draw more than once."""

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        batch["text_number"] = np.stack((pairs.index,) * 2) % len(pairs.dataset)


def text_numbers(tokens: IntArray, padding_idx: int) -> IntArray:
    """Hash the rows of tokens [B, T] to numbers [B]; different rows have equal numbers with probability 2^-64.

    Padding does not count: batches of two workers are padded to different lengths.
    """
    with np.errstate(over="ignore"):
        terms = tokens * MULTIPLIER ** np.arange(tokens.shape[1])
        return np.where(tokens == padding_idx, 0, terms).sum(axis=1)
