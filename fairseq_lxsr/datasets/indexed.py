"""The .bin and .idx files of fairseq-preprocess, checked before fairseq trusts them."""

import functools
import struct
from pathlib import Path

import numpy as np
from fairseq.data import FairseqDataset, data_utils
from fairseq.data.indexed_dataset import infer_dataset_impl

from fairseq_lxsr.data_folder import INDEX_NAME
from fairseq_lxsr.errors import InputError

HEADER = struct.Struct("<9sQBQ")  # name, version, type of the ids, number of sentences; lengths and offsets follow
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
OLDER = ("cached", "huffman")  # formats that fairseq-preprocess writes on request; they are read, but not checked
BLOCK = 1 << 22  # ids or sentences checked at a time
AGAIN = "run fairseq-preprocess or `lxsr prepare` again"


def read_sentences(prefix: Path, num_symbols: int) -> FairseqDataset:
    """Read the sentences of PREFIX.bin and PREFIX.idx.

    Args:
        prefix: path of the two files without their endings.
        num_symbols: number of entries of the dictionary of the ids.

    Raises:
        InputError: for a file that is missing, truncated or of another kind, and for an id that is not in the
            dictionary; it names the file.
    """
    index, data = (Path(f"{prefix}.{ending}") for ending in ("idx", "bin"))
    for path in (index, data):
        if not path.is_file():
            raise InputError(f"{path}: no such file; {AGAIN}")
    kind = infer_dataset_impl(str(prefix))
    if kind not in OLDER:
        kind, stats = "mmap", [path.stat() for path in (index, data)]
        _check_files(index, data, num_symbols, *(stat.st_size for stat in stats), *(stat.st_mtime_ns for stat in stats))
    return data_utils.load_indexed_dataset(str(prefix), dataset_impl=kind)


@functools.cache
def _check_files(index: Path, data: Path, num_symbols: int, *sizes_and_times: int) -> None:
    """Check the files, once per process: shards are opened again every few epochs."""
    dtype, count = _read_header(index)
    expected, found = _check_index(index, dtype, count), data.stat().st_size
    if found != expected:
        what = "cut off" if found < expected else "of another index"
        raise InputError(f"{data}: {what}, {found:,} bytes where {index.name} says {expected:,}; {AGAIN}")
    ids = np.memmap(data, dtype, "r") if expected else np.empty(0, dtype)
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        if block.max() >= num_symbols or block.min() < 0:
            place = start + int(np.flatnonzero((block >= num_symbols) | (block < 0))[0])
            starts = np.memmap(index, "<i8", "r", HEADER.size + 4 * count, (count,))
            sentence = int(np.searchsorted(starts, place * dtype.itemsize, side="right"))
            raise InputError(
                f"{data}: sentence {sentence:,} has the id {ids[place]:,}, the dictionary {num_symbols:,} entries; "
                f"they do not go together, {AGAIN}"
            )


def _read_header(index: Path) -> tuple[np.dtype, int]:
    """Read the type of the ids and the number of sentences."""
    with index.open("rb") as stream:
        head = stream.read(HEADER.size)
    if head[: len(INDEX_NAME)] != INDEX_NAME[: len(head)]:
        raise InputError(f"{index}: no index of fairseq-preprocess, it begins with {head[:8].hex(' ')}; {AGAIN}")
    if len(head) < HEADER.size:
        raise InputError(f"{index}: cut off, {len(head)} bytes; {AGAIN}")
    _, version, code, count = HEADER.unpack(head)
    size, expected = index.stat().st_size, HEADER.size + 12 * count
    if version != 1 or code not in TYPES or size != expected:
        raise InputError(
            f"{index}: cut off or damaged, version {version}, type {code}, {size:,} bytes, and {expected:,} are needed "
            f"for {count:,} sentences; {AGAIN}"
        )
    return np.dtype(TYPES[code]), count


def _check_index(index: Path, dtype: np.dtype, count: int) -> int:
    """Check that sentences follow each other without a gap, and return the number of their bytes."""
    end = 0
    for first in range(0, count, BLOCK):
        number = min(BLOCK, count - first)
        sizes = np.fromfile(index, "<i4", number, offset=HEADER.size + 4 * first).astype(np.int64) * dtype.itemsize
        starts = np.fromfile(index, "<i8", number, offset=HEADER.size + 4 * count + 8 * first)
        ends = end + sizes.cumsum()
        if sizes.min() < 0 or not np.array_equal(starts, ends - sizes):
            raise InputError(f"{index}: damaged, its sentences do not follow each other; {AGAIN}")
        end = int(ends[-1])
    return end
