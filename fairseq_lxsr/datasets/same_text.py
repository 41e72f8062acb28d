"""Which sentences of a batch have the same text."""

from typing import Any

import numpy as np

from fairseq_lxsr.datasets.batch import DrawnPairs
from fairseq_lxsr.datasets.masking import IntArray

MULTIPLIER = np.int64(6364136223846793005)  # of Knuth's MMIX generator


class TextNumbers:
    """Part of a batch: a number for each sentence, equal where the texts of a side are."""

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        # of the text as it lies on disk: subword dropout hides what is equal
        batch["text_number"] = np.stack([text_numbers(side) for side in pairs.padded(pairs.whole)])


def text_numbers(tokens: IntArray) -> IntArray:
    """tokens [B, T] -> [B], equal for equal rows and, but for one case in 2^64, for no others."""
    with np.errstate(over="ignore"):
        return (tokens * MULTIPLIER ** np.arange(tokens.shape[1])).sum(axis=1)
