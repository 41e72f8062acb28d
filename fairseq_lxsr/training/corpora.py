"""Reads the output of fairseq-preprocess: language pairs, the joined dictionary, the aligned
text.
"""

import functools
import struct
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary, FairseqDataset, data_utils
from fairseq.data.indexed_dataset import infer_dataset_impl

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.text.data_folder import INDEX_MAGIC, check_data_folder, read_sources
from fairseq_lxsr.text.tokenizer import SPECIAL, read_dictionary
from fairseq_lxsr.training.pairs import PairCorpus


def language_pairs(folder: Path, wanted: str | None) -> list[tuple[str, str]]:
    """Find the language pairs, from the value of `--lang-pairs` or from the names of the training
    files.
    """
    check_data_folder(folder)
    if wanted is None:
        names = sorted({path.name.split(".")[1] for path in folder.glob("train.*-*.*.idx")})
        if not names:
            raise InputError(
                f"{folder}: has no train.SRC-TGT.SRC.idx; expected the output of fairseq-preprocess"
            )
    else:
        names = [name.strip() for name in wanted.split(",")]
    pairs = []
    for name in names:
        source, dash, target = name.partition("-")
        if not (source and dash and target):
            raise InputError(f"--lang-pairs: {name!r}; expected SRC-TGT, for example en-fr")
        for language in (source, target):
            if not (folder / f"dict.{language}.txt").is_file():
                known = (
                    ", ".join(sorted(path.name.split(".")[1] for path in folder.glob("dict.*.txt")))
                    or "none"
                )
                raise InputError(
                    f"--lang-pairs {name}: {folder} has no dict.{language}.txt; it has {known}"
                )
        pairs.append((source, target))
    return pairs


def joined_dictionary(folder: Path, pairs: list[tuple[str, str]]) -> Dictionary:
    """Read the dictionary, which all languages share."""
    languages = list(dict.fromkeys(language for pair in pairs for language in pair))
    first = folder / f"dict.{languages[0]}.txt"
    dictionary = load_dictionary(first)
    for language in languages[1:]:
        other = folder / f"dict.{language}.txt"
        if load_dictionary(other).symbols != dictionary.symbols:
            raise InputError(
                f"{other}: differs from {first}; all languages share one dictionary, run fairseq-preprocess with "
                "--joined-dictionary (and the same --srcdict for every pair)"
            )
    return dictionary


def load_dictionary(path: Path) -> Dictionary:
    """Read a dict.LANG.txt."""
    if len(read_dictionary(path)) == len(SPECIAL):
        raise InputError(
            f"{path}: empty file; expected `symbol count` in every line, a fairseq dictionary"
        )
    return Dictionary.load(str(path))


def read_corpus(
    folder: Path, split: str, source: str, target: str, num_symbols: int
) -> PairCorpus | None:
    """Read one split of one language pair, in whichever order fairseq-preprocess was given its
    languages.

    `num_symbols` is the number of entries of the dictionary. Without such a split the answer is
    None.
    """
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        prefix = folder / f"{split}.{pair}"
        if not Path(f"{prefix}.{source}.idx").is_file():
            continue
        sides = [
            read_sentences(Path(f"{prefix}.{language}"), num_symbols)
            for language in (source, target)
        ]
        if len(sides[0]) != len(sides[1]):
            raise InputError(
                f"{prefix}: {len(sides[0]):,} sentences in {source} and {len(sides[1]):,} in {target}; expected "
                "aligned text, run fairseq-preprocess on files of equal length"
            )
        if not len(sides[0]):
            raise InputError(f"{prefix}: no sentences; look at the text it was made from")
        sources = read_sources(Path(f"{prefix}.sources.json"), len(sides[0]))
        return PairCorpus(f"{source}-{target}", sides[0], sides[1], sources)
    return None


HEADER = struct.Struct(
    "<9sQBQ"
)  # name, version, type of the ids, number of sentences; lengths and offsets follow
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
OLDER = (
    "cached",
    "huffman",
)  # formats that fairseq-preprocess writes on request; they are read, but not checked
CHECKED_AT_ONCE = 1 << 22  # ids or sentences checked at a time
AGAIN = "run fairseq-preprocess or `lxsr prepare` again"


def read_sentences(prefix: Path, num_symbols: int) -> FairseqDataset:
    """Read the sentences of PREFIX.bin and PREFIX.idx, whose ids are below `num_symbols`."""
    index, data = (Path(f"{prefix}.{ending}") for ending in ("idx", "bin"))
    for path in (index, data):
        if not path.is_file():
            raise InputError(f"{path}: no such file; {AGAIN}")
    kind = infer_dataset_impl(str(prefix))
    if kind not in OLDER:
        kind, stats = "mmap", [path.stat() for path in (index, data)]
        _check_files(
            index,
            data,
            num_symbols,
            *(stat.st_size for stat in stats),
            *(stat.st_mtime_ns for stat in stats),
        )
    return data_utils.load_indexed_dataset(str(prefix), dataset_impl=kind)


@functools.cache
def _check_files(index: Path, data: Path, num_symbols: int, *sizes_and_times: int) -> None:
    """Check the files, once per process: shards are opened again every few epochs."""
    dtype, count = _read_header(index)
    expected, found = _check_index(index, dtype, count), data.stat().st_size
    if found != expected:
        what = "cut off" if found < expected else "of another index"
        raise InputError(
            f"{data}: {what}, {found:,} bytes where {index.name} says {expected:,}; {AGAIN}"
        )
    ids = np.memmap(data, dtype, "r") if expected else np.empty(0, dtype)
    for start in range(0, len(ids), CHECKED_AT_ONCE):
        block = ids[start : start + CHECKED_AT_ONCE]
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
    if head[: len(INDEX_MAGIC)] != INDEX_MAGIC[: len(head)]:
        raise InputError(
            f"{index}: no index of fairseq-preprocess, it begins with {head[:8].hex(' ')}; {AGAIN}"
        )
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
    """Check that sentences follow each other without a gap, and return the number of their
    bytes.
    """
    end = 0
    for first in range(0, count, CHECKED_AT_ONCE):
        number = min(CHECKED_AT_ONCE, count - first)
        sizes = (
            np.fromfile(index, "<i4", number, offset=HEADER.size + 4 * first).astype(np.int64)
            * dtype.itemsize
        )
        starts = np.fromfile(index, "<i8", number, offset=HEADER.size + 4 * count + 8 * first)
        ends = end + sizes.cumsum()
        if sizes.min() < 0 or not np.array_equal(starts, ends - sizes):
            raise InputError(f"{index}: damaged, its sentences do not follow each other; {AGAIN}")
        end = int(ends[-1])
    return end
