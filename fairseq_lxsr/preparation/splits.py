"""Assigns each pair of a corpus to train, valid, test, or nothing, from the keys of the pairs
only.
"""

import hashlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fairseq_lxsr.preparation.clean import comparable

ASSIGNMENTS = TRAIN, VALID, TEST, REPEATED, HELD_OUT = range(5)
MAX_CANDIDATES = 2_000_000  # largest number of candidate pairs for the held-out splits


@dataclass(frozen=True)
class HeldOut:
    """How many pairs are held out, and how they are drawn.

    `shared_side` is the side that language pairs share: they hold out the same sentences of it, as far as
    each has them, so that few are lost to what others hold out. None draws pairs at random.
    """

    valid_size: int | None = None  # of text that has enough: 1,000, and at most 5 % of the pairs
    test_size: int | None = None  # 2,000, and at most 10 %
    seed: int = 1
    shared_side: Literal["source", "target"] | None = None

    def sizes(self, pairs: int) -> tuple[int, int]:
        """Return the number of pairs for validation and for testing, of so many."""
        valid = max(1, min(1000, pairs // 20)) if self.valid_size is None else self.valid_size
        return valid, max(1, min(2000, pairs // 10)) if self.test_size is None else self.test_size


def assign_splits(keys: Path, repeats: str, held_out: HeldOut) -> np.ndarray:
    """Decide the split of each pair that the filters kept, from its row of `KEY` in a file: uint8
    [N].

    None of the held-out sentences occurs on the same side of another split.
    """
    marked = repeated(keys, repeats)
    assigned = marked.astype(np.uint8) * np.uint8(REPEATED)
    if not len(assigned):
        return assigned
    rows = np.memmap(keys, dtype=KEY, mode="r")
    held: tuple[set[int], set[int]] = (set(), set())
    valid_size, test_size = held_out.sizes(int(np.count_nonzero(~marked)))
    free = {TEST: test_size, VALID: valid_size}
    for place, preferred in _draws(rows, held_out):
        left = [split for split, size in free.items() if size]
        if not left:
            break
        split, key = preferred or left[0], rows[place].item()
        if (
            split in left
            and assigned[place] == TRAIN
            and not any(side in known for side, known in zip(key, held, strict=True))
        ):
            assigned[place] = split
            free[split] -= 1
            for side, known in zip(key, held, strict=True):
                known.add(side)
    for side, name in enumerate(KEY.names or ()):
        held_keys = np.fromiter(held[side], dtype=np.uint64, count=len(held[side]))
        for start in range(0, len(assigned), MAX_CANDIDATES):
            here = slice(start, start + MAX_CANDIDATES)
            leaks = np.isin(rows[name][here], held_keys) & (assigned[here] == TRAIN)
            assigned[here][leaks] = HELD_OUT
    return assigned


def _draws(rows: np.ndarray, held_out: HeldOut) -> Iterator[tuple[int, int]]:
    """Yield the numbers of pairs in the order in which they are drawn, each with its split; 0 is
    any.
    """
    count = len(rows)
    if held_out.shared_side is None:
        rng = np.random.default_rng(held_out.seed)
        some = (
            np.arange(count)
            if count <= MAX_CANDIDATES
            else np.unique(rng.integers(count, size=MAX_CANDIDATES))
        )
        yield from zip(rng.permutation(some), itertools.repeat(0))
        return
    # those of the smallest hashes: the same sentences, and for the same split, in whatever text
    # they stand
    most = np.uint64(min(1.0, MAX_CANDIDATES / count) * (2**64 - 2048))
    keys = rows[held_out.shared_side]
    parts = [
        np.flatnonzero(_mixed(keys[start : start + MAX_CANDIDATES], held_out.seed) <= most) + start
        for start in range(0, count, MAX_CANDIDATES)
    ]
    places = np.concatenate(parts)
    order = _mixed(keys[places], held_out.seed)
    places, order = places[np.argsort(order, kind="stable")], np.sort(order)
    valid_size, test_size = held_out.sizes(count)
    share = test_size / max(1, test_size + valid_size)
    splits = np.where((order & np.uint64(2**32 - 1)) < share * 2**32, TEST, VALID)
    yield from zip(places, splits, strict=True)
    yield from zip(places, itertools.repeat(0))  # where too few of one split were among them


def _mixed(keys: np.ndarray, seed: int) -> np.ndarray:
    """Hash keys again, by SplitMix64 (Steele et al. 2014), so that another seed gives another
    order.
    """
    mixed = keys + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


KEYS_AT_ONCE = 8_000_000  # keys compared at a time, 300 MB
KEYS_READ = 1_000_000  # keys read at a time
KEY = np.dtype([("source", "<u8"), ("target", "<u8")])


def repeated(keys: Path, what: str) -> np.ndarray:
    """Mark the pairs that are duplicates of earlier pairs: bool [N], from a file of `KEY` rows.

    What is a duplicate: `pair`, an earlier pair has the same keys; `side`, an earlier pair has the
    same source or the same target (whether or not it is kept); `keep`, nothing.
    """
    count = keys.stat().st_size // KEY.itemsize
    marked = np.zeros(count, dtype=bool)
    if what == "keep":
        return marked
    rows = np.memmap(keys, dtype=KEY, mode="r") if count else np.zeros(0, KEY)
    combine = {
        "pair": [_pair_key],
        "side": [lambda block: block["source"], lambda block: block["target"]],
    }[what]
    for key_of in combine:
        for values, positions in _parts(rows, key_of, keys.parent):
            order = np.argsort(values, kind="stable")
            again = values[order[1:]] == values[order[:-1]]
            marked[positions[order[1:][again]]] = True
    return marked


def _pair_key(block: np.ndarray) -> np.ndarray:
    # the odd factor makes the two sides count differently; the product wraps around
    return block["source"] * np.uint64(0x9E3779B97F4A7C15) + block["target"]


def _parts(rows: np.ndarray, key_of, folder: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield parts of keys and their positions; equal keys are in the same part, in order."""
    count = -(-len(rows) // KEYS_AT_ONCE)
    if count <= 1:
        yield np.asarray(key_of(rows[:])), np.arange(len(rows))
        return
    pair = np.dtype([("key", "<u8"), ("position", "<i8")])
    with tempfile.TemporaryDirectory(dir=folder, prefix=".parts.") as temporary:
        names = [Path(temporary) / str(part) for part in range(count)]
        for start in range(0, len(rows), KEYS_READ):
            block = np.empty(min(KEYS_READ, len(rows) - start), dtype=pair)
            block["key"] = key_of(rows[start : start + KEYS_READ])
            block["position"] = np.arange(start, start + len(block))
            part_of = block["key"] % np.uint64(count)
            for part, name in enumerate(names):
                with open(name, "ab") as stream:
                    stream.write(block[part_of == part].tobytes())
        for name in names:
            found = np.fromfile(name, dtype=pair)
            yield found["key"].copy(), found["position"].copy()
            name.unlink()


def sentence_key(text: str) -> int:
    """Hash a sentence to 64 bits; sentences that are equal by `comparable` have equal keys."""
    content = comparable(text).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def keys_of(files: Iterable[Iterable[str]]) -> frozenset[int]:
    """Return the keys of the sentences of files."""
    return frozenset(
        sentence_key(text) for text in itertools.chain.from_iterable(files) if text.strip()
    )
