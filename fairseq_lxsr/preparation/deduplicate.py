"""Finds duplicate pairs of a corpus; keys are on disk, and a part of them is in memory at a time."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

PART = 8_000_000  # keys compared at a time, 300 MB
ROWS = 1_000_000  # keys read at a time
KEY = np.dtype([("source", "<u8"), ("target", "<u8")])


def repeated(keys: Path, what: str) -> np.ndarray:
    """Mark the pairs that are duplicates of earlier pairs.

    Args:
        keys: file of `KEY` rows, one per pair.
        what: `pair`: an earlier pair has the same keys; `side`: an earlier pair has the same source or the same target
            (whether or not it is kept); `keep`: nothing is a duplicate.

    Returns:
        bool [N].
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
    count = -(-len(rows) // PART)
    if count <= 1:
        yield np.asarray(key_of(rows[:])), np.arange(len(rows))
        return
    pair = np.dtype([("key", "<u8"), ("position", "<i8")])
    with tempfile.TemporaryDirectory(dir=folder, prefix=".parts.") as temporary:
        names = [Path(temporary) / str(part) for part in range(count)]
        for start in range(0, len(rows), ROWS):
            block = np.empty(min(ROWS, len(rows) - start), dtype=pair)
            block["key"] = key_of(rows[start : start + ROWS])
            block["position"] = np.arange(start, start + len(block))
            part_of = block["key"] % np.uint64(count)
            for part, name in enumerate(names):
                with open(name, "ab") as stream:
                    stream.write(block[part_of == part].tobytes())
        for name in names:
            found = np.fromfile(name, dtype=pair)
            yield found["key"].copy(), found["position"].copy()
            name.unlink()
