"""Writes word piece ids for fairseq-train, in the same files as fairseq-preprocess.

fairseq-preprocess reads word pieces as text, splits the text and looks up every piece. Here,
SentencePiece ids are mapped directly to dictionary ids, in several processes.
"""

import itertools
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.blocks import in_blocks
from fairseq_lxsr.files.lines import count_file_lines, read_lines
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.preparation.corpus import SOURCES_FILE, SPLITS
from fairseq_lxsr.preparation.stages import run_stage
from fairseq_lxsr.preparation.workers import ordered_map
from fairseq_lxsr.text.chinese import describe_characters
from fairseq_lxsr.text.data_folder import INDEX_MAGIC, count_sources, read_sources, write_sources
from fairseq_lxsr.text.languages import parse_tag
from fairseq_lxsr.text.tokenizer import (
    DICTIONARY_FILE,
    EOS,
    FILLER,
    MASK,
    SENTENCEPIECE_FILE,
    SPECIAL,
    TEXT_FILE,
    TextOptions,
    Tokenizer,
    read_dictionary,
)
from fairseq_lxsr.text.words import FlatIds

SUBWORD_FILES = (SENTENCEPIECE_FILE, DICTIONARY_FILE, TEXT_FILE)
# File format of fairseq.data.indexed_dataset.MMapIndexedDataset.Index.
VERSION = 1
DTYPE_CODES = {np.dtype(np.uint16): 8, np.dtype(np.uint32): 9}
# Dictionary size below which fairseq's best_fitting_int_dtype selects uint16.
UINT16_LIMIT = 65_500
# Languages written only in Chinese characters.
CHINESE = ("zh", "yue", "wuu", "nan", "hak", "gan", "lzh")
# Approximate maximum number of lines in which Chinese characters are counted.
DESCRIBED_LINES = 200_000
# Size in bytes below which a text is binarised in this process, because starting another process
# takes a second.
SMALL_TEXT = 1 << 20
# Number of training pairs that are checked; with more pairs, no shard is empty.
CHECKED_PAIRS = 1_000_000

# The tokenizer, loaded once by each worker.
_tokenizer: Tokenizer


def binarise(
    folder: Path,
    corpora: dict[tuple[str, str], Path],
    subwords: Path,
    workers: int = 2,
    shards: int = 1,
) -> dict:
    """Run the binarise stage: convert every split of every language pair to ids.

    Args:
        folder: output data folder. With several shards, it has subfolders 0, 1, ... that each
            contain some of the training pairs, for `fairseq-train folder/0:folder/1:...`; the first
            shard also contains the other splits.
        corpora: corpus folder of each language pair.
        subwords: folder of the SentencePiece model, the dictionary and the text options.
        workers: number of processes; the result does not depend on it.
        shards: number of shards.

    Returns:
        The report: language pairs, percentage of unknown pieces in each text, and percentage of
        each kind of Chinese character in each Chinese training text.

    Raises:
        InputError: if a file is missing, the two sides of a corpus are not aligned, the subword
            files do not belong together, or a shard would be empty.
    """
    pairs = ["-".join(pair) for pair in corpora]
    inputs = _input_files(corpora, subwords)
    check_subwords(subwords)

    def build(work: Path) -> dict:
        for pair, corpus in corpora.items():
            check_corpus(corpus, pair, shards)
        outputs = make_shard_folders(work, shards)
        _copy_subwords(subwords, corpora, outputs)
        texts: list[SplitText] = []
        for pair, corpus in corpora.items():
            split_sources(corpus, pair, outputs)
            texts += _texts_of_pair(corpus, pair, outputs)
        return {
            "pairs": pairs,
            "unknown per cent": binarise_texts(texts, subwords, workers),
            "chinese per cent": _describe_chinese_sides(corpora, subwords),
        }

    report = run_stage(folder, {"pairs": pairs, "shards": shards}, inputs, build)
    _print_data_folder(folder, report, shards)
    return report


def _input_files(corpora: Mapping[tuple[str, str], Path], subwords: Path) -> list[Path]:
    """Return the corpus and subword files to binarise.

    Raises:
        InputError: if a file is missing.
    """
    files: list[Path] = []
    for pair, corpus in corpora.items():
        for split in SPLITS:
            files += [corpus / f"{split}.{language}" for language in pair]
    files += [subwords / name for name in SUBWORD_FILES]
    for path in files:
        if not path.is_file():
            raise InputError(f"{path}: no such file; run `lxsr prepare`")
    for corpus in corpora.values():
        # Only corpora with several named sources have this file.
        if (corpus / SOURCES_FILE).is_file():
            files.append(corpus / SOURCES_FILE)
    return files


def _copy_subwords(
    subwords: Path, corpora: Iterable[tuple[str, str]], outputs: Sequence[Path]
) -> None:
    """Copy the subword files to every shard, under the file names that fairseq expects."""
    for output in outputs:
        for language in dict.fromkeys(itertools.chain.from_iterable(corpora)):
            shutil.copyfile(subwords / DICTIONARY_FILE, output / f"dict.{language}.txt")
        for name in (SENTENCEPIECE_FILE, TEXT_FILE):
            shutil.copyfile(subwords / name, output / name)


def _texts_of_pair(
    corpus: Path, pair: tuple[str, str], outputs: Sequence[Path]
) -> list["SplitText"]:
    """Return the texts of a language pair. Only training text is distributed over shards."""
    texts = []
    for split in nonempty_splits(corpus, pair):
        folders = outputs if split == "train" else outputs[:1]
        for language in pair:
            name = f"{split}.{'-'.join(pair)}.{language}"
            prefixes = [output / name for output in folders]
            texts.append(SplitText(corpus / f"{split}.{language}", prefixes))
    return texts


def _print_data_folder(folder: Path, report: dict, shards: int) -> None:
    """Print a one-line summary of a data folder."""
    size = f", {shards} shards" if shards > 1 else ""
    print(f"{folder}: fairseq data for {', '.join(report['pairs'])}{size}")
    for pair, shares in report["chinese per cent"].items():
        kinds = ", ".join(f"{value} % {kind}" for kind, value in shares.items())
        print(f"{folder}: {pair}: Chinese characters: {kinds}")


def _describe_chinese_sides(
    corpora: Mapping[tuple[str, str], Path], subwords: Path
) -> dict[str, dict[str, float]]:
    """Compute the percentage of each kind of Chinese character, by language pair."""
    descriptions = {}
    for pair, corpus in corpora.items():
        for language in pair:
            if parse_tag(language).language in CHINESE:
                text = corpus / f"train.{language}"
                descriptions["-".join(pair)] = describe_chinese(text, subwords)
    return descriptions


def describe_chinese(text: Path, subwords: Path) -> dict[str, float]:
    """Compute the percentage of each kind of Chinese character in a text.

    At most about `DESCRIBED_LINES` lines are read, spread evenly over the text.
    """
    tokenizer = _load_tokenizer(subwords)

    def is_unknown(character: str) -> bool:
        return bool((tokenizer.encode([character])[0] == tokenizer.unknown).any())

    step = 1 + count_file_lines(text) // DESCRIBED_LINES
    lines = itertools.islice(read_lines(text), None, None, step)
    return describe_characters(lines, is_unknown)


def make_shard_folders(work: Path, shards: int) -> list[Path]:
    """Create and return the shard folders in `work`. A single shard is `work` itself."""
    folders = [work]
    if shards > 1:
        folders = [work / str(shard) for shard in range(shards)]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    return folders


def check_corpus(corpus: Path, pair: tuple[str, str], shards: int) -> None:
    """Check the line counts of a corpus before anything is written.

    Raises:
        InputError: if the two sides differ in length, there is no training text, or there are too
            few training pairs for the shards.
    """
    for split in SPLITS:
        source, target = (corpus / f"{split}.{language}" for language in pair)
        count = count_file_lines(source)
        target_count = count_file_lines(target)
        if count != target_count:
            raise InputError(
                f"{source}: {count:,} lines, but {target} has {target_count:,}; expected aligned "
                "files with one sentence per line"
            )
        if split != "train":
            continue
        if not count:
            raise InputError(f"{source}: empty file; expected one sentence per line")
        shard_of_pair = shard_numbers(0, min(count, CHECKED_PAIRS), shards)
        sizes = np.bincount(shard_of_pair, minlength=shards)
        if not sizes.all():
            raise InputError(
                f"shards {shards}: {'-'.join(pair)} has only {count:,} training pairs, so shard "
                f"{sizes.argmin()} would be empty; use fewer shards"
            )


def nonempty_splits(corpus: Path, pair: tuple[str, str]) -> list[str]:
    """Return the names of the non-empty splits. Validation and test text may be empty."""
    return [split for split in SPLITS if (corpus / f"{split}.{pair[0]}").stat().st_size]


def split_sources(corpus: Path, pair: tuple[str, str], outputs: list[Path]) -> None:
    """Write the number of training pairs per named source, if any, to each shard."""
    if not (corpus / SOURCES_FILE).is_file():
        return
    sources = read_sources(corpus / SOURCES_FILE, count_file_lines(corpus / f"train.{pair[0]}"))
    shard_of_pair = shard_numbers(0, sum(sources.values()), len(outputs))
    for shard, output in enumerate(outputs):
        write_sources(
            output / f"train.{'-'.join(pair)}.sources.json",
            count_sources(sources, shard_of_pair == shard),
        )


def check_subwords(subwords: Path) -> None:
    """Check that dictionary, SentencePiece model and text options belong together.

    An external dictionary may lack pieces that do not occur in its text, but all of its entries
    must be pieces of the model.

    Raises:
        InputError: if the dictionary has entries that are not pieces of the model.
    """
    tokenizer = _load_tokenizer(subwords)
    pieces = {*tokenizer.all_pieces(), *SPECIAL, MASK}
    unexpected = []
    for symbol in tokenizer.symbols:
        if symbol not in pieces and not symbol.startswith(FILLER):
            unexpected.append(symbol)
    if unexpected:
        raise InputError(
            f"{subwords / DICTIONARY_FILE}: {len(unexpected):,} entries, such as "
            f"{unexpected[0]!r}, are not pieces of {subwords / SENTENCEPIECE_FILE}, so the files "
            f"do not belong together; delete {subwords} and run `lxsr prepare` again"
        )


def shard_numbers(first: int, count: int, shards: int) -> np.ndarray:
    """Assign lines to shards pseudo-randomly, in the same way for both sides of a pair.

    Args:
        first: zero-based number of the first line.
        count: number of lines.
        shards: number of shards.

    Returns:
        Index of the shard of each line, int64 [count].
    """
    line_numbers = np.arange(first, first + count, dtype=np.uint64)
    # Knuth's multiplicative hash.
    hashes = (line_numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return ((hashes >> np.uint64(32)) % np.uint64(shards)).astype(np.int64)


@dataclass(frozen=True)
class SplitText:
    """A text to convert to ids: one side of a split.

    Attributes:
        path: text file with one sentence per line.
        prefixes: for each shard, the path of its two output files without their suffixes; the file
            name is the same in all shards.
        shard_of_lines: function that assigns lines to shards; see `shard_numbers` for its arguments
            and result.
    """

    path: Path
    prefixes: Sequence[Path]
    shard_of_lines: Callable[[int, int, int], np.ndarray] = shard_numbers

    @property
    def name(self) -> str:
        return self.prefixes[0].name


def binarise_texts(texts: Sequence[SplitText], subwords: Path, workers: int) -> dict[str, float]:
    """Write the ids of several texts, sharing one pool of worker processes.

    Returns:
        Percentage of unknown pieces in each text, keyed by text name.
    """
    tokenizer = _load_tokenizer(subwords)
    if sum(text.path.stat().st_size for text in texts) < SMALL_TEXT:
        workers = 1
    encoded = ordered_map(
        _encode_block, _numbered_blocks(texts), workers, _start_worker, (subwords,)
    )
    unknown = {}
    for number, blocks in itertools.groupby(encoded, key=itemgetter(0)):
        text = texts[number]
        unknown[text.name] = _write_ids(text, blocks, tokenizer)
    return unknown


def _numbered_blocks(texts: Sequence[SplitText]) -> Iterator[tuple[int, list[str]]]:
    """Yield blocks of lines, each with the index of its text."""
    for number, text in enumerate(texts):
        # Start with an empty block, so that output files are written even for an empty text.
        yield number, []
        for block in in_blocks(read_lines(text.path)):
            yield number, block


def _write_ids(
    text: SplitText, blocks: Iterable[tuple[int, FlatIds]], tokenizer: Tokenizer
) -> float:
    """Write the ids of a text to its shards, and return the percentage of unknown pieces."""
    writers = [MMapWriter(prefix, len(tokenizer.symbols)) for prefix in text.prefixes]
    lines = pieces = unknown = 0
    with Progress(total=count_file_lines(text.path), desc=text.name, unit=" lines") as bar:
        for _, (ids, lengths) in blocks:
            pieces += len(ids)
            unknown += int((ids == tokenizer.unknown).sum())
            shard_of_line = text.shard_of_lines(lines, len(lengths), len(writers))
            lines += len(lengths)
            shard_of_id = np.repeat(shard_of_line, lengths)
            for shard, writer in enumerate(writers):
                writer.add(ids[shard_of_id == shard], lengths[shard_of_line == shard])
            bar.update(len(lengths))
    for writer in writers:
        writer.close()
    return round(100 * unknown / max(1, pieces), 3)


def _load_tokenizer(subwords: Path) -> Tokenizer:
    symbols = read_dictionary(subwords / DICTIONARY_FILE)
    return Tokenizer(subwords / SENTENCEPIECE_FILE, TextOptions.load(subwords / TEXT_FILE), symbols)


def _start_worker(subwords: Path) -> None:
    global _tokenizer
    _tokenizer = _load_tokenizer(subwords)


def _encode_block(block: tuple[int, list[str]]) -> tuple[int, FlatIds]:
    """Encode a block of lines, and append EOS to each line.

    Returns:
        Index of the text, ids of all lines, and number of ids in each line.
    """
    number, lines = block
    ids, lengths = _tokenizer.encode_flat(lines)
    ids = np.insert(ids, lengths.cumsum(), _tokenizer.symbols.index(EOS))
    return number, (ids.astype(np.int32), lengths + 1)


class MMapWriter:
    """Writes a memory-mapped fairseq dataset, PREFIX.bin and PREFIX.idx.

    Args:
        prefix: path of the two files without their suffixes.
        vocabulary: number of dictionary entries, which determines whether an id takes 2 or 4 bytes.
    """

    def __init__(self, prefix: Path, vocabulary: int):
        self.prefix = prefix
        self.dtype = np.dtype(np.uint16 if vocabulary < UINT16_LIMIT else np.uint32)
        # The file stays open between calls of add(); close() closes it.
        self.stream = open(self._path(".bin"), "wb")  # noqa: SIM115
        self.lengths: list[np.ndarray] = []

    def _path(self, suffix: str) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}{suffix}")

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Add sentences, given as concatenated ids and the number of ids in each sentence."""
        self.stream.write(ids.astype(self.dtype).tobytes())
        self.lengths.append(lengths.astype(np.int32))

    def close(self) -> None:
        """Close the .bin file, and write the sentence index to the .idx file."""
        self.stream.close()
        count = sum(map(len, self.lengths))
        with open(self._path(".idx"), "wb") as stream:
            stream.write(INDEX_MAGIC + struct.pack("<QBQ", VERSION, DTYPE_CODES[self.dtype], count))
            stream.writelines(lengths.tobytes() for lengths in self.lengths)
            # The index ends with the byte offset of each sentence.
            end = 0
            for lengths in self.lengths:
                ends = end + lengths.cumsum(dtype=np.int64) * self.dtype.itemsize
                starts = ends - lengths * self.dtype.itemsize
                stream.write(starts.tobytes())
                if len(ends):
                    end = int(ends[-1])


def shard_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders to pass to fairseq-train: all shards, or the data folder itself."""
    shards = [path for path in folder.iterdir() if path.name.isdecimal()]
    shards.sort(key=lambda path: int(path.name))
    yield from shards or [folder]
