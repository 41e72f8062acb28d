"""Sentences with two words exchanged: the same pieces, another sentence. As negatives they teach the order of words.

Deterministic as `masking`: a function of (seed, epoch, pair index) alone.
"""

from collections.abc import Sequence

import numpy as np

from fairseq_lxsr.datasets.masking import BoolArray, IntArray, uniform
from fairseq_lxsr.datasets.pairs import SIDES, padded

SIDE, FIRST, SECOND = range(10, 13)  # separate draws of one pair, beside those of masking


def swap_negatives(
    samples: Sequence[dict], starts_word: BoolArray, seed: int, epoch: int, padding_idx: int
) -> tuple[IntArray, BoolArray]:
    """For each pair one of its sides, drawn, with two of its words exchanged.

    Args:
        samples: B pairs with `id`, `source`, `target`.
        starts_word: [V] pieces that a word begins with.
    Returns: [B, T] ids, only padding where a side has no two different words; [B, 2] bool, whether the row is a
        negative of the source (it is a changed target), or of the target.
    """
    index = np.array([sample["id"] for sample in samples])
    of_target = uniform(seed, epoch, index, SIDE) < 0.5
    draws = np.stack([uniform(seed, epoch, index, draw) for draw in (FIRST, SECOND)], axis=1)
    rows = []
    for sample, side, places in zip(samples, of_target.astype(int), draws, strict=True):
        ids = sample[SIDES[side]]
        rows.append(swap_words(ids, np.flatnonzero(starts_word[ids]), places))
    there = np.array([len(row) > 0 for row in rows])
    tokens = padded([row if len(row) else np.array([padding_idx]) for row in rows], padding_idx)
    return tokens, np.stack((of_target & there, ~of_target & there), axis=1)


def swap_words(ids: IntArray, starts: IntArray, draws: np.ndarray) -> IntArray:
    """ids [T] with the words drawn by two numbers in [0, 1) exchanged; none where they are equal or there is one."""
    if len(starts) < 2:
        return ids[:0]
    words = np.split(ids, starts[1:])  # what stands before the first word belongs to it
    first = int(draws[0] * len(words))
    second = (first + 1 + int(draws[1] * (len(words) - 1))) % len(words)
    if np.array_equal(words[first], words[second]):
        return ids[:0]
    words[first], words[second] = words[second], words[first]
    return np.concatenate(words)
