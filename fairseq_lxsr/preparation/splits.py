"""Assigns each pair of a corpus to train, valid, test or no split, based on its sentence keys."""

import hashlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fairseq_lxsr.preparation.clean import comparable

ASSIGNMENTS = TRAIN, VALID, TEST, REPEATED, HELD_OUT = range(5)
# Marks a drawn pair that may go into either held-out split.
ANY_SPLIT = 0
# Maximum number of candidate pairs for the held-out splits.
MAX_CANDIDATES = 2_000_000
# Number of keys to compare at a time, which takes 300 MB.
KEYS_AT_ONCE = 8_000_000
# Number of keys to read at a time.
KEYS_READ = 1_000_000
# The keys of a pair, computed by `sentence_key`.
KEY = np.dtype([("source", "<u8"), ("target", "<u8")])
# No letters that the model reads as others.
NO_LETTERS: Mapping[int, str] = {}
# 2**64 divided by the golden ratio, rounded to odd; multiples are evenly spread modulo 2**64.
GOLDEN_RATIO = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class HeldOut:
    """How many pairs to hold out, and how to choose them.

    Attributes:
        valid_size: number of pairs for validation; None means 1,000, or 5 % of the pairs in a small
            text.
        test_size: number of pairs for testing; None means 2,000, or 10 % of the pairs in a small
            text.
        seed: random seed for choosing pairs.
        shared_side: side whose language also occurs in other language pairs. All these pairs hold
            out the same sentences in that language, if they contain them, so that they lose few
            training pairs to each other. None chooses pairs at random.
    """

    valid_size: int | None = None
    test_size: int | None = None
    seed: int = 1
    shared_side: Literal["source", "target"] | None = None

    def sizes(self, pairs: int) -> tuple[int, int]:
        """Return the validation and test sizes for a text with this many pairs."""
        valid_size = self.valid_size
        if valid_size is None:
            valid_size = max(1, min(1000, pairs // 20))
        test_size = self.test_size
        if test_size is None:
            test_size = max(1, min(2000, pairs // 10))
        return valid_size, test_size


def assign_splits(keys: Path, repeats: str, held_out: HeldOut) -> np.ndarray:
    """Assign the pairs that the filters kept to splits.

    No sentence in a held-out split occurs on the same side of another split.

    Args:
        keys: file of `KEY` rows, one per pair.
        repeats: what counts as a duplicate (see `repeated`).
        held_out: sizes of the held-out splits, and how to choose them.

    Returns:
        Assignment of each pair, one of `ASSIGNMENTS`, uint8 [pairs].
    """
    is_repeated = repeated(keys, repeats)
    assigned = is_repeated.astype(np.uint8) * np.uint8(REPEATED)
    if not len(assigned):
        return assigned
    rows = np.memmap(keys, dtype=KEY, mode="r")
    held_keys = _hold_out(rows, assigned, held_out)
    for side, name in enumerate(KEY.names or ()):
        _drop_held_out(rows[name], held_keys[side], assigned)
    return assigned


def _hold_out(
    rows: np.ndarray, assigned: np.ndarray, held_out: HeldOut
) -> tuple[set[int], set[int]]:
    """Assign pairs to the splits TEST and VALID.

    Args:
        rows: keys of the pairs, `KEY` [pairs].
        assigned: assignment of each pair; changed in place.
        held_out: sizes of the splits, and how to choose pairs.

    Returns:
        Keys of the held-out sentences on each side.
    """
    sources: set[int] = set()
    targets: set[int] = set()
    valid_size, test_size = held_out.sizes(int(np.count_nonzero(assigned == TRAIN)))
    missing = {TEST: test_size, VALID: valid_size}
    for position, preferred_split in _draws(rows, held_out):
        unfilled = [split for split, size in missing.items() if size]
        if not unfilled:
            break
        split = preferred_split or unfilled[0]
        if split not in unfilled or assigned[position] != TRAIN:
            continue
        source, target = rows[position].item()
        if source in sources or target in targets:
            continue
        assigned[position] = split
        missing[split] -= 1
        sources.add(source)
        targets.add(target)
    return sources, targets


def _drop_held_out(keys: np.ndarray, held_keys: set[int], assigned: np.ndarray) -> None:
    """Assign training pairs that have a held-out sentence on one side to HELD_OUT.

    Args:
        keys: sentence keys on this side [pairs].
        held_keys: keys of the held-out sentences on this side.
        assigned: assignment of each pair; changed in place.
    """
    held = np.fromiter(held_keys, dtype=np.uint64, count=len(held_keys))
    for start in range(0, len(assigned), MAX_CANDIDATES):
        part = slice(start, start + MAX_CANDIDATES)
        is_leak = np.isin(keys[part], held) & (assigned[part] == TRAIN)
        assigned[part][is_leak] = HELD_OUT


def _draws(rows: np.ndarray, held_out: HeldOut) -> Iterator[tuple[int, int]]:
    """Yield the indices of the chosen pairs in drawing order, each with its split.

    The split is ANY_SPLIT if the pair may go into either held-out split.
    """
    if held_out.shared_side is None:
        positions = _random_positions(len(rows), held_out.seed)
        yield from zip(positions, itertools.repeat(ANY_SPLIT))
    else:
        yield from _draws_by_hash(rows[held_out.shared_side], held_out)


def _random_positions(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    candidates = np.arange(count)
    if count > MAX_CANDIDATES:
        candidates = np.unique(rng.integers(count, size=MAX_CANDIDATES))
    return rng.permutation(candidates)


def _draws_by_hash(keys: np.ndarray, held_out: HeldOut) -> Iterator[tuple[int, int]]:
    """Yield pairs in an order that depends only on the sentence keys on the shared side.

    The sentences with the smallest hashes come first, so every text holds out the same sentences,
    for the same split.
    """
    count = len(keys)
    limit = np.uint64(min(1.0, MAX_CANDIDATES / count) * (2**64 - 2048))
    parts = []
    for start in range(0, count, MAX_CANDIDATES):
        hashes = _hash_keys(keys[start : start + MAX_CANDIDATES], held_out.seed)
        parts.append(np.flatnonzero(hashes <= limit) + start)
    positions = np.concatenate(parts)
    hashes = _hash_keys(keys[positions], held_out.seed)
    positions = positions[np.argsort(hashes, kind="stable")]
    hashes = np.sort(hashes)
    valid_size, test_size = held_out.sizes(count)
    test_share = test_size / max(1, test_size + valid_size)
    splits = np.where((hashes & np.uint64(2**32 - 1)) < test_share * 2**32, TEST, VALID)
    yield from zip(positions, splits, strict=True)
    # A small text may have too few sentences for one of the splits.
    yield from zip(positions, itertools.repeat(ANY_SPLIT))


def _hash_keys(keys: np.ndarray, seed: int) -> np.ndarray:
    """Hash keys with SplitMix64 (Steele et al. 2014), so that each seed yields another order."""
    hashes = keys + np.uint64(seed * GOLDEN_RATIO % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * np.uint64(factor)
    return hashes ^ (hashes >> np.uint64(31))


def repeated(keys: Path, repeats: str) -> np.ndarray:
    """Return whether each pair is a duplicate of an earlier pair.

    Args:
        keys: file of `KEY` rows, one per pair.
        repeats: definition of a duplicate. `pair`: an earlier pair has the same keys. `side`: an
            earlier pair has the same source or the same target, even if that pair is itself a
            duplicate. `keep`: nothing is a duplicate.

    Returns:
        Whether each pair is a duplicate, bool [pairs].
    """
    count = keys.stat().st_size // KEY.itemsize
    is_repeated = np.zeros(count, dtype=bool)
    if repeats == "keep" or not count:
        return is_repeated
    rows = np.memmap(keys, dtype=KEY, mode="r")
    functions = {
        "pair": [_pair_key],
        "side": [lambda block: block["source"], lambda block: block["target"]],
    }
    for key_of in functions[repeats]:
        for values, positions in _parts(rows, key_of, keys.parent):
            order = np.argsort(values, kind="stable")
            is_equal = values[order[1:]] == values[order[:-1]]
            is_repeated[positions[order[1:][is_equal]]] = True
    return is_repeated


def _pair_key(block: np.ndarray) -> np.ndarray:
    # The odd factor makes source and target distinguishable. The product wraps around.
    return block["source"] * np.uint64(GOLDEN_RATIO) + block["target"]


def _parts(
    rows: np.ndarray, key_of: Callable[[np.ndarray], np.ndarray], folder: Path
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield keys and their positions in parts that fit into memory.

    Equal keys are in the same part, ordered by position. If there are several parts, they are
    stored in temporary files in `folder`.
    """
    count = -(-len(rows) // KEYS_AT_ONCE)
    if count <= 1:
        yield np.asarray(key_of(rows[:])), np.arange(len(rows))
        return
    row_type = np.dtype([("key", "<u8"), ("position", "<i8")])
    with tempfile.TemporaryDirectory(dir=folder, prefix=".parts.") as temporary:
        files = [Path(temporary) / str(part) for part in range(count)]
        for start in range(0, len(rows), KEYS_READ):
            block = np.empty(min(KEYS_READ, len(rows) - start), dtype=row_type)
            block["key"] = key_of(rows[start : start + KEYS_READ])
            block["position"] = np.arange(start, start + len(block))
            part_of_key = block["key"] % np.uint64(count)
            for part, file in enumerate(files):
                with open(file, "ab") as stream:
                    stream.write(block[part_of_key == part].tobytes())
        for file in files:
            part_rows = np.fromfile(file, dtype=row_type)
            yield part_rows["key"].copy(), part_rows["position"].copy()
            file.unlink()


def sentence_key(text: str, letters: Mapping[int, str] = NO_LETTERS) -> int:
    """Hash a sentence to 64 bits. Sentences with equal `comparable` forms have equal keys.

    Args:
        text: the sentence.
        letters: letters that the model reads as others; see `TextOptions.table`.
    """
    content = comparable(text.translate(letters) if letters else text).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def keys_of(
    files: Iterable[Iterable[str]], letters: Mapping[int, str] = NO_LETTERS
) -> frozenset[int]:
    """Return the keys of all non-empty sentences in the files; see `sentence_key`."""
    sentences = itertools.chain.from_iterable(files)
    return frozenset(sentence_key(sentence, letters) for sentence in sentences if sentence.strip())
