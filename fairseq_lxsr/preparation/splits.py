"""Assigns each pair of a corpus to train, valid, test, or nothing, from the keys of the pairs only."""

from pathlib import Path

import numpy as np

from fairseq_lxsr.preparation.deduplicate import KEY, repeated

FATES = TRAIN, VALID, TEST, REPEATED, HELD_OUT = range(5)
DRAWS = 2_000_000  # largest number of candidate pairs for the held-out splits


def decide_fates(keys: Path, repeats: str, valid_size: int, test_size: int, seed: int) -> np.ndarray:
    """Decide the fate of each pair that the filters kept: uint8 [N].

    Held-out pairs are drawn at random; none of their sentences occurs on the same side of another split.

    Args:
        keys: file of `deduplicate.KEY` rows, one per pair.
        repeats: see `deduplicate.repeated`.
        valid_size: number of pairs held out for validation.
        test_size: number of pairs held out for testing.
        seed: seed of the draw.
    """
    marked = repeated(keys, repeats)
    fates = marked.astype(np.uint8) * np.uint8(REPEATED)
    if not len(fates):
        return fates
    rows = np.memmap(keys, dtype=KEY, mode="r")
    held: tuple[set[int], set[int]] = (set(), set())
    free = {TEST: test_size, VALID: valid_size}
    for place in _draws(len(fates), seed):
        fate = next((name for name, size in free.items() if size), None)
        if fate is None:
            break
        key = rows[place].item()
        if fates[place] == TRAIN and not any(side in known for side, known in zip(key, held, strict=True)):
            fates[place] = fate
            free[fate] -= 1
            for side, known in zip(key, held, strict=True):
                known.add(side)
    for side, name in enumerate(KEY.names or ()):
        held_keys = np.fromiter(held[side], dtype=np.uint64, count=len(held[side]))
        for start in range(0, len(fates), DRAWS):
            here = slice(start, start + DRAWS)
            leaks = np.isin(rows[name][here], held_keys) & (fates[here] == TRAIN)
            fates[here][leaks] = HELD_OUT
    return fates


def _draws(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.permutation(count) if count <= DRAWS else rng.permutation(np.unique(rng.integers(count, size=DRAWS)))
