"""Which pairs an epoch sees, and how they fall into batches: pure functions of arrays, sizes and a seed."""

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.errors import InputError

IntArray = NDArray[np.int64]


def samples_per_corpus(sizes: list[int], temperature: float) -> IntArray:
    """How many pairs of each corpus an epoch has: proportional to size^(1 / temperature), as many in all as there are.

    Temperature 1 keeps the sizes; larger values even them out (Arivazhagan et al. 2019).
    """
    if temperature <= 0:
        raise InputError(f"--sampling-temperature: temperature is {temperature}; expected more than 0")
    counts = np.asarray(sizes, dtype=np.float64)
    shares = np.where(counts > 0, (counts / counts.sum()) ** (1 / temperature), 0)
    return np.round(counts.sum() * shares / shares.sum()).astype(np.int64)


def passes(indices: IntArray, count: int, rng: np.random.Generator) -> list[IntArray]:
    """`count` of the indices in random order: passes over all of them, as many as fit in, then over a random part."""
    starts = range(0, count, max(1, len(indices)))
    return [rng.permutation(indices)[: count - start] for start in starts]


def sort_by_length(indices: IntArray, source_sizes: IntArray, target_sizes: IntArray) -> IntArray:
    """Short pairs first, by the longer side, then the source; equal lengths keep their (random) order.

    The longer side first pads least: 3 to 6 % of the places, against 4 to 10 % by source then target.
    """
    source, target = source_sizes[indices], target_sizes[indices]
    return indices[np.lexsort((source, np.maximum(source, target)))]


def cut_into_batches(
    indices: IntArray, lengths: IntArray, max_sentences: int | None, max_tokens: int | None
) -> list[IntArray]:
    """Cut an ordered list into batches of exactly `max_sentences`, fewer where `max_tokens` is reached first.

    Args:
        indices: [N] in the order of the batches; lengths: [N] pieces of each, the longer side counts.
        max_tokens: limit on (sentences x longest sentence) of a batch, padding included.
    """
    if max_tokens is None:
        step = max_sentences or len(indices)
        return [indices[start : start + step] for start in range(0, len(indices), step)]
    batches, start, longest = [], 0, 0
    for position, length in enumerate(lengths.tolist()):
        grown = max(longest, length)
        count = position - start
        if count and (count == max_sentences or grown * (count + 1) > max_tokens):
            batches.append(indices[start:position])
            start, grown = position, length
        longest = grown
    return [*batches, indices[start:]] if len(indices) else []
