"""Assigns each pair of a corpus to train, valid, test, or nothing, from the keys of the pairs only."""

import hashlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.open import PACKED
from fairseq_lxsr.preparation.clean import comparable

ASSIGNMENTS = TRAIN, VALID, TEST, REPEATED, HELD_OUT = range(5)
MAX_CANDIDATES = 2_000_000  # largest number of candidate pairs for the held-out splits


def assign_splits(keys: Path, repeats: str, valid_size: int, test_size: int, seed: int) -> np.ndarray:
    """Decide the split of each pair that the filters kept, from its row of `KEY` in a file: uint8 [N].

    Held-out pairs are drawn at random; none of their sentences occurs on the same side of another split.
    """
    marked = repeated(keys, repeats)
    assigned = marked.astype(np.uint8) * np.uint8(REPEATED)
    if not len(assigned):
        return assigned
    rows = np.memmap(keys, dtype=KEY, mode="r")
    held: tuple[set[int], set[int]] = (set(), set())
    free = {TEST: test_size, VALID: valid_size}
    for place in _draws(len(assigned), seed):
        split = next((name for name, size in free.items() if size), None)
        if split is None:
            break
        key = rows[place].item()
        if assigned[place] == TRAIN and not any(side in known for side, known in zip(key, held, strict=True)):
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


def _draws(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (
        rng.permutation(count)
        if count <= MAX_CANDIDATES
        else rng.permutation(np.unique(rng.integers(count, size=MAX_CANDIDATES)))
    )


KEYS_AT_ONCE = 8_000_000  # keys compared at a time, 300 MB
KEYS_READ = 1_000_000  # keys read at a time
KEY = np.dtype([("source", "<u8"), ("target", "<u8")])


def repeated(keys: Path, what: str) -> np.ndarray:
    """Mark the pairs that are duplicates of earlier pairs: bool [N], from a file of `KEY` rows.

    What is a duplicate: `pair`, an earlier pair has the same keys; `side`, an earlier pair has the same source or the
    same target (whether or not it is kept); `keep`, nothing.
    """
    count = keys.stat().st_size // KEY.itemsize
    marked = np.zeros(count, dtype=bool)
    if what == "keep":
        return marked
    rows = np.memmap(keys, dtype=KEY, mode="r") if count else np.zeros(0, KEY)
    combine = {"pair": [_pair_key], "side": [lambda block: block["source"], lambda block: block["target"]]}[what]
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
    return int.from_bytes(
        hashlib.blake2b(comparable(text).encode("utf-8", "replace"), digest_size=8).digest(), "little"
    )


def excluded_keys(paths: Sequence[str]) -> frozenset[int]:
    """Return the keys of the lines of text files, and of their columns where lines have tabs."""
    for path in paths:
        plain = Path(path).with_suffix("") if Path(path).suffix in PACKED else Path(path)
        if plain.suffix.lower() in (".tmx", ".po", ".mo"):
            raise InputError(f"{path}: cannot be excluded; expected text, one sentence a line, or columns with tabs")
    lines = itertools.chain.from_iterable(read_lines(path) for path in paths)
    texts = itertools.chain.from_iterable({line, *line.split("\t")} for line in lines)
    return frozenset(sentence_key(text) for text in texts if text.strip())
