"""Random numbers that depend only on (seed, epoch, sample, draw), and the list of all draws.

The numbers come from a stateless, counter-based generator (splitmix64; Steele, Lea and Flood 2014),
so they do not depend on workers, batch order, padding or resuming.
"""

from enum import IntEnum, unique

import numpy as np
from numpy.typing import ArrayLike

from fairseq_lxsr.vectors.rows import FloatArray


# Each draw needs a different number. Changing a number changes the result of every training run.
@unique
class Draw(IntEnum):
    """Identifies each random decision about a sentence pair."""

    MASKED_SIDE = 0
    MASKED_PIECE = 1
    MASKED_COUNT = 2
    MASKED_POSITIONS = 3
    MASK_ACTION = 4
    MASK_REPLACEMENT = 5
    SUBWORD_SPLIT = 6
    WORD_DROPOUT = 7
    NEGATIVE_SIDE = 10
    NEGATIVE_KIND = 11
    NEGATIVE_FIRST_WORD = 12
    NEGATIVE_SECOND_WORD = 13
    NEGATIVE_SENTENCE = 14
    TEACHER_FILE = 15
    TEACHER_TEXT = 16


@unique
class ContextDraw(IntEnum):
    """Identifies each random decision about a sentence in its context.

    Numbers may coincide with those in `Draw`, because the two kinds never occur in the same batch.
    """

    STAYS = 0
    REPLACEMENT = 1


def uniform(seed: int, epoch: int, *counters: ArrayLike) -> FloatArray:
    """Compute random numbers in [0, 1).

    Args:
        seed: seed of the training run.
        epoch: number of the epoch.
        *counters: arrays or integers that are broadcast, such as sample and draw.

    Returns:
        One number for each element of the broadcast counters.
    """
    with np.errstate(over="ignore"):
        state = _mix(_mix(np.asarray(seed).astype(np.uint64)) + np.asarray(epoch).astype(np.uint64))
        for counter in counters:
            state = _mix(state + np.asarray(counter).astype(np.uint64))
    return (state >> np.uint64(11)) * 2.0**-53


def _mix(state):
    """Return the splitmix64 output for a state."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
