"""Reads language pairs, the joined dictionary and aligned text from fairseq-preprocess output."""

import functools
import itertools
import struct
from collections.abc import Collection
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary, FairseqDataset, data_utils
from fairseq.data.indexed_dataset import infer_dataset_impl

from fairseq_lxsr.errors import InputError, listed
from fairseq_lxsr.text.data_folder import INDEX_MAGIC, check_data_folder, read_sources
from fairseq_lxsr.text.tokenizer import SPECIAL, read_dictionary
from fairseq_lxsr.training.pairs import PairCorpus

# Header of an index file: magic name, version, id data type, number of sentences.
HEADER = struct.Struct("<9sQBQ")
# Maps the code in the header to the NumPy data type of the ids.
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
# A fairseq-preprocess format that is read without the checks in this module.
UNCHECKED_FORMAT = "huffman"
# Number of ids or sentences to check at once.
CHECK_BLOCK = 1 << 22
REMEDY = "run fairseq-preprocess or `lxsr prepare` again"


def language_pairs(folder: Path, lang_pairs: str | None) -> list[tuple[str, str]]:
    """Return the language pairs to train on.

    Args:
        folder: a data folder.
        lang_pairs: value of `--lang-pairs`; None for all pairs with training text in the folder.

    Returns:
        Language pairs as (source, target).

    Raises:
        InputError: if a pair is not SRC-TGT, or lacks a dictionary or training text.
    """
    check_data_folder(folder)
    if lang_pairs is None:
        names = sorted({path.name.split(".")[1] for path in folder.glob("train.*-*.*.idx")})
        if not names:
            raise InputError(
                f"{folder}: no train.SRC-TGT.SRC.idx; expected a fairseq-preprocess output folder"
            )
    else:
        names = [name.strip() for name in lang_pairs.split(",")]
    return [_parse_pair(folder, name) for name in names]


def refuse_further_parts(folder: Path, split: str, names: Collection[str]) -> None:
    """Reject additional files of a split (train1, valid1, ...).

    fairseq's translation task would append these files to the split.

    Args:
        folder: a data folder.
        split: train or valid.
        names: language pairs or languages to read.

    Raises:
        InputError: if the folder contains such a file for one of the names.
    """
    for path in sorted(folder.glob(f"{split}1.*.idx")):
        name = path.name.split(".")[1]
        if name in names:
            raise InputError(
                f"{path}: {split}1 is not supported; merge it into {split}, or split the data into "
                f"shards FOLDER/0 and FOLDER/1 ({name})"
            )


def _parse_pair(folder: Path, name: str) -> tuple[str, str]:
    source, dash, target = name.partition("-")
    if not (source and dash and target):
        raise InputError(
            f"--lang-pairs: invalid pair {name!r}; expected SRC-TGT, for example en-fr"
        )
    for language in (source, target):
        if not (folder / f"dict.{language}.txt").is_file():
            languages = sorted(path.name.split(".")[1] for path in folder.glob("dict.*.txt"))
            raise InputError(
                f"--lang-pairs {name}: {folder} has no dict.{language}.txt; available languages: "
                f"{listed(languages) or 'none'}"
            )
    return source, target


def joined_dictionary(folder: Path, pairs: list[tuple[str, str]]) -> Dictionary:
    """Read the dictionary that all languages share.

    Raises:
        InputError: if the dictionaries of two languages differ.
    """
    languages = dict.fromkeys(itertools.chain.from_iterable(pairs))
    first_path, *paths = (folder / f"dict.{language}.txt" for language in languages)
    dictionary = load_dictionary(first_path)
    for path in paths:
        if load_dictionary(path).symbols != dictionary.symbols:
            raise InputError(
                f"{path}: differs from {first_path}, but all languages must share one dictionary; "
                "run fairseq-preprocess with --joined-dictionary (and the same --srcdict for "
                "every pair)"
            )
    return dictionary


def load_dictionary(path: Path) -> Dictionary:
    """Read a dictionary file, dict.LANG.txt.

    Raises:
        InputError: if the file is missing, damaged or empty.
    """
    if len(read_dictionary(path)) == len(SPECIAL):
        raise InputError(
            f"{path}: empty file; expected a fairseq dictionary with `symbol count` on every line"
        )
    return Dictionary.load(str(path))


def read_corpus(
    folder: Path, split: str, source: str, target: str, num_symbols: int
) -> PairCorpus | None:
    """Read one split of a language pair.

    The pair may have been preprocessed in either order.

    Args:
        folder: a data folder.
        split: train, valid or test.
        source: source language.
        target: target language.
        num_symbols: number of dictionary entries.

    Returns:
        The corpus, or None if the folder has no such split.

    Raises:
        InputError: if the files are damaged, empty or not aligned.
    """
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        prefix = folder / f"{split}.{pair}"
        if Path(f"{prefix}.{source}.idx").is_file():
            return _read_aligned(prefix, source, target, num_symbols)
    return None


def _read_aligned(prefix: Path, source: str, target: str, num_symbols: int) -> PairCorpus:
    source_text = read_sentences(Path(f"{prefix}.{source}"), num_symbols)
    target_text = read_sentences(Path(f"{prefix}.{target}"), num_symbols)
    if len(source_text) != len(target_text):
        raise InputError(
            f"{prefix}: {len(source_text):,} sentences in {source} and {len(target_text):,} in "
            f"{target} are not aligned; run fairseq-preprocess on files with the same "
            "number of lines, and without \\r, which fairseq-preprocess treats as the end of a line"
        )
    if not len(source_text):
        raise InputError(f"{prefix} contains no sentences; check the text it was built from")
    sources = read_sources(Path(f"{prefix}.sources.json"), len(source_text))
    return PairCorpus(f"{source}-{target}", source_text, target_text, sources)


def read_sentences(prefix: Path, num_symbols: int) -> FairseqDataset:
    """Read the sentences in PREFIX.bin and PREFIX.idx.

    Args:
        prefix: path of the two files without their extensions.
        num_symbols: number of dictionary entries; all ids must be below it.

    Raises:
        InputError: if a file is missing or damaged, or an id is too large.
    """
    index = Path(f"{prefix}.idx")
    data = Path(f"{prefix}.bin")
    for path in (index, data):
        if not path.is_file():
            raise InputError(f"{path}: no such file; {REMEDY}")
    implementation = infer_dataset_impl(str(prefix))
    if implementation == "cached":
        raise InputError(
            f"{index}: unsupported --dataset-impl cached or lazy; run fairseq-preprocess "
            "again without the option (mmap)"
        )
    if implementation != UNCHECKED_FORMAT:
        implementation = "mmap"
        sizes = [path.stat().st_size for path in (index, data)]
        times = [path.stat().st_mtime_ns for path in (index, data)]
        _check_files(index, data, num_symbols, *sizes, *times)
    return data_utils.load_indexed_dataset(str(prefix), dataset_impl=implementation)


@functools.cache
def _check_files(index: Path, data: Path, num_symbols: int, *sizes_and_times: int) -> None:
    """Check the files once per process, because shards are opened again every few epochs.

    A changed file has a different size or time, and is checked again.
    """
    dtype, count = _read_header(index)
    expected = _check_index(index, dtype, count)
    size = data.stat().st_size
    if size != expected:
        problem = "cut off" if size < expected else "too long"
        raise InputError(
            f"{data}: {problem}, {size:,} bytes; expected {expected:,} according to {index.name}: "
            f"{REMEDY}"
        )
    # An empty file cannot be memory-mapped.
    if not expected:
        return
    ids = np.memmap(data, dtype, "r")
    for start in range(0, len(ids), CHECK_BLOCK):
        block = ids[start : start + CHECK_BLOCK]
        if block.max() >= num_symbols or block.min() < 0:
            place = start + int(np.flatnonzero((block >= num_symbols) | (block < 0))[0])
            offsets = np.memmap(index, "<i8", "r", HEADER.size + 4 * count, (count,))
            sentence = int(np.searchsorted(offsets, place * dtype.itemsize, side="right"))
            raise InputError(
                f"{data}: sentence {sentence:,} contains token id {ids[place]:,}, but the "
                f"dictionary has only {num_symbols:,} entries, so text and dictionary do not "
                f"match; {REMEDY}"
            )


def _read_header(index: Path) -> tuple[np.dtype, int]:
    """Read the id data type and the number of sentences from an index header."""
    with index.open("rb") as stream:
        header = stream.read(HEADER.size)
    if header[: len(INDEX_MAGIC)] != INDEX_MAGIC[: len(header)]:
        raise InputError(
            f"{index}: not a fairseq-preprocess index file, because it begins with "
            f"{header[:8].hex(' ')}; {REMEDY}"
        )
    if len(header) < HEADER.size:
        raise InputError(f"{index}: cut off, {len(header)} bytes; {REMEDY}")
    _, version, code, count = HEADER.unpack(header)
    size = index.stat().st_size
    expected = HEADER.size + 12 * count
    if version != 1 or code not in TYPES or size != expected:
        raise InputError(
            f"{index}: cut off or damaged, version {version}, type {code}, {size:,} bytes; "
            f"expected {expected:,} bytes for {count:,} sentences: {REMEDY}"
        )
    return np.dtype(TYPES[code]), count


def _check_index(index: Path, dtype: np.dtype, count: int) -> int:
    """Check that the sentences are stored contiguously.

    Returns:
        Total number of bytes of all sentences.
    """
    end = 0
    for first in range(0, count, CHECK_BLOCK):
        number = min(CHECK_BLOCK, count - first)
        lengths = np.fromfile(index, "<i4", number, offset=HEADER.size + 4 * first)
        sizes = lengths.astype(np.int64) * dtype.itemsize
        starts = np.fromfile(index, "<i8", number, offset=HEADER.size + 4 * count + 8 * first)
        ends = end + sizes.cumsum()
        if sizes.min() < 0 or not np.array_equal(starts, ends - sizes):
            raise InputError(
                f"{index}: damaged, because its sentences are not contiguous; {REMEDY}"
            )
        end = int(ends[-1])
    return end
