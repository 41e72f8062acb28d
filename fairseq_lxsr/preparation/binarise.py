"""Writes piece ids for fairseq-train without fairseq-preprocess, byte for byte the same files.

fairseq-preprocess reads pieces as text, splits it and looks up every piece; here SentencePiece's
ids are mapped directly to dictionary ids, in several processes.
"""

import itertools
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import count_file_lines, read_lines
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.preparation.corpus import SOURCES_FILE, SPLITS
from fairseq_lxsr.preparation.stages import run_stage
from fairseq_lxsr.preparation.workers import in_blocks, ordered_map
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
# fairseq.data.indexed_dataset: MMapIndexedDataset.Index
VERSION = 1
DTYPE_CODES = {np.dtype(np.uint16): 8, np.dtype(np.uint32): 9}
UINT16_LIMIT = 65_500  # fairseq's best_fitting_int_dtype
# languages written with Chinese characters alone
CHINESE = ("zh", "yue", "wuu", "nan", "hak", "gan", "lzh")
DESCRIBED_LINES = 200_000
# bytes that this process binarises alone, because another one takes a second to start
SMALL_TEXT = 1 << 20

_tokenizer: Tokenizer


def binarise(
    folder: Path,
    corpora: dict[tuple[str, str], Path],
    subwords: Path,
    workers: int = 2,
    shards: int = 1,
) -> dict:
    """Run the binarise stage: write every split of every language pair as ids.

    With several shards, `folder` has subfolders 0, 1, ... with a part of the training pairs each,
    for `fairseq-train folder/0:folder/1:...`; the first also has the other splits.
    """
    inputs = [
        *(
            corpus / f"{split}.{language}"
            for pair, corpus in corpora.items()
            for split in SPLITS
            for language in pair
        ),
        *(subwords / name for name in SUBWORD_FILES),
    ]
    for path in inputs:
        if not path.is_file():
            raise InputError(
                f"{path}: no such file; expected the text and the subwords that `lxsr prepare` makes"
            )
    inputs += [
        path for path in (corpus / SOURCES_FILE for corpus in corpora.values()) if path.is_file()
    ]
    check_subwords(subwords)

    def build(work: Path) -> dict:
        for pair, corpus in corpora.items():
            check_corpus(corpus, pair, shards)
        dictionaries = {
            f"dict.{language}.txt": DICTIONARY_FILE for pair in corpora for language in pair
        }
        same = {name: name for name in (SENTENCEPIECE_FILE, TEXT_FILE)}
        outputs = make_shard_folders(work, shards)
        for output, (name, source) in itertools.product(outputs, (dictionaries | same).items()):
            shutil.copyfile(subwords / source, output / name)
        texts = []
        for pair, corpus in corpora.items():
            split_sources(corpus, pair, outputs)
            for split, language in itertools.product(nonempty_splits(corpus, pair), pair):
                name = f"{split}.{'-'.join(pair)}.{language}"
                places = [
                    output / name for output in (outputs if split == "train" else outputs[:1])
                ]
                texts.append(SplitText(corpus / f"{split}.{language}", places))
        unknown = binarise_texts(texts, subwords, workers)
        chinese = {
            "-".join(pair): describe_chinese(corpus / f"train.{language}", subwords)
            for pair, corpus in corpora.items()
            for language in pair
            if parse_tag(language).language in CHINESE
        }
        return {
            "pairs": ["-".join(pair) for pair in corpora],
            "unknown per cent": unknown,
            "chinese per cent": chinese,
        }

    options = {"pairs": ["-".join(pair) for pair in corpora], "shards": shards}
    report = run_stage(folder, options, inputs, build)
    parts = f", {shards} shards" if shards > 1 else ""
    print(f"{folder}: fairseq data of {', '.join(report['pairs'])}{parts}")
    for pair, shares in report.get("chinese per cent", {}).items():
        listed = ", ".join(f"{value} % {kind}" for kind, value in shares.items())
        print(f"{folder}: {pair}: Chinese characters: {listed}")
    return report


def describe_chinese(text: Path, subwords: Path) -> dict[str, float]:
    """Describe the Chinese characters of at most `DESCRIBED_LINES` lines, spread over a text."""
    tokenizer = _load_tokenizer(subwords)
    lines = itertools.islice(
        read_lines(text), None, None, 1 + count_file_lines(text) // DESCRIBED_LINES
    )
    return describe_characters(
        lines, lambda letter: bool((tokenizer.encode([letter])[0] == tokenizer.unknown).any())
    )


def make_shard_folders(work: Path, shards: int) -> list[Path]:
    """Return the folders of the shards inside `work`; for one shard, `work` itself."""
    places = [work] if shards == 1 else [work / str(shard) for shard in range(shards)]
    for place in places:
        place.mkdir(exist_ok=True)
    return places


def check_corpus(corpus: Path, pair: tuple[str, str], shards: int) -> None:
    """Check the numbers of lines before anything is written."""
    for split in SPLITS:
        paths = [corpus / f"{split}.{language}" for language in pair]
        counts = [count_file_lines(path) for path in paths]
        if counts[0] != counts[1]:
            (one, other), (here, there) = paths, counts
            raise InputError(
                f"{one} has {here:,} lines and {other} has {there:,}; expected aligned files of the same number of "
                "lines: take the text from one place"
            )
        if not counts[0] and split == "train":
            raise InputError(f"{paths[0]}: empty file; expected one sentence a line")
        if split == "train":
            filled = np.bincount(
                shard_numbers(0, min(counts[0], 1_000_000), shards), minlength=shards
            )
            if not filled.all():
                raise InputError(
                    f"shards {shards}: {'-'.join(pair)} has {counts[0]:,} training pairs, and shard {filled.argmin()} "
                    "would get none of them; ask for fewer shards"
                )


def nonempty_splits(corpus: Path, pair: tuple[str, str]) -> list[str]:
    """Return the splits that have text: nothing may be held out for validation or testing."""
    return [split for split in SPLITS if (corpus / f"{split}.{pair[0]}").stat().st_size]


def split_sources(corpus: Path, pair: tuple[str, str], places: list[Path]) -> None:
    """Write the number of training pairs of each named source, if any, in each shard."""
    if not (corpus / SOURCES_FILE).is_file():
        return
    sources = read_sources(corpus / SOURCES_FILE, count_file_lines(corpus / f"train.{pair[0]}"))
    shard_of = shard_numbers(0, sum(sources.values()), len(places))
    for shard, place in enumerate(places):
        write_sources(
            place / f"train.{'-'.join(pair)}.sources.json",
            count_sources(sources, shard_of == shard),
        )


def check_subwords(subwords: Path) -> None:
    """Check that dictionary, SentencePiece model and text options belong together.

    A dictionary from elsewhere may lack pieces that its text did not have, but all its entries must
    be known pieces.
    """
    tokenizer = _load_tokenizer(subwords)
    known = {*tokenizer.all_pieces(), *SPECIAL, MASK}
    strangers = [
        symbol
        for symbol in tokenizer.symbols
        if symbol not in known and not symbol.startswith(FILLER)
    ]
    if strangers:
        raise InputError(
            f"{subwords / DICTIONARY_FILE}: {len(strangers):,} entries, the first {strangers[0]!r}, are not pieces of "
            f"{subwords / SENTENCEPIECE_FILE}; expected the dictionary of this model: remove {subwords}, and "
            "`lxsr prepare` makes it again"
        )


def shard_numbers(first: int, count: int, shards: int) -> np.ndarray:
    """Return pseudo-random shards of the lines first, first + 1, ..., the same for both sides of a
    pair.
    """
    places = np.arange(first, first + count, dtype=np.uint64)
    mixed = (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hash
    return ((mixed >> np.uint64(32)) % np.uint64(shards)).astype(np.int64)


@dataclass(frozen=True)
class SplitText:
    """A text to binarise: one side of a split."""

    path: Path
    places: Sequence[Path]  # output path of each shard, of the same name
    # from the number of the first line, of lines and of shards, the shard of each line
    shard_of_lines: Callable[[int, int, int], np.ndarray] = shard_numbers


def binarise_texts(texts: Sequence[SplitText], subwords: Path, workers: int) -> dict[str, float]:
    """Write the ids of texts, all by the same processes; return the percent of unknown pieces of
    each, by its name.
    """
    tokenizer = _load_tokenizer(subwords)
    if sum(text.path.stat().st_size for text in texts) < SMALL_TEXT:
        workers = 1
    encoded = ordered_map(_encode_block, _numbered_blocks(texts), workers, _start, (subwords,))
    return {
        texts[number].places[0].name: _write_ids(texts[number], blocks, tokenizer)
        for number, blocks in itertools.groupby(encoded, key=itemgetter(0))
    }


def _numbered_blocks(texts: Sequence[SplitText]) -> Iterator[tuple[int, list[str]]]:
    """Yield blocks of lines with the number of their text; the first one is empty, because a text
    may be.
    """
    for number, text in enumerate(texts):
        lines = read_lines(text.path)
        yield from ((number, block) for block in itertools.chain([[]], in_blocks(lines)))


def _write_ids(
    text: SplitText, blocks: Iterable[tuple[int, FlatIds]], tokenizer: Tokenizer
) -> float:
    """Write the ids of a text to its shards; return the percent of unknown pieces."""
    writers = [MMapWriter(place, len(tokenizer.symbols)) for place in text.places]
    total = unknown = first = 0
    with Progress(desc=text.places[0].name, unit=" lines", disable=None) as bar:
        for _, (ids, lengths) in blocks:
            total, unknown = total + len(ids), unknown + int((ids == tokenizer.unknown).sum())
            shard_of = text.shard_of_lines(first, len(lengths), len(writers))
            first += len(lengths)
            of_line = np.repeat(shard_of, lengths)
            for shard, writer in enumerate(writers):
                writer.add(ids[of_line == shard], lengths[shard_of == shard])
            bar.update(len(lengths))
    for writer in writers:
        writer.close()
    return round(100 * unknown / max(1, total), 3)


def _load_tokenizer(subwords: Path) -> Tokenizer:
    symbols = read_dictionary(subwords / DICTIONARY_FILE)
    return Tokenizer(subwords / SENTENCEPIECE_FILE, TextOptions.load(subwords / TEXT_FILE), symbols)


def _start(subwords: Path) -> None:
    global _tokenizer
    _tokenizer = _load_tokenizer(subwords)


def _encode_block(block: tuple[int, list[str]]) -> tuple[int, FlatIds]:
    """Return the number of a text, the ids of its lines, each line ended by EOS, and how many each
    line has.
    """
    number, lines = block
    ids, lengths = _tokenizer.encode_flat(lines)
    ends = np.insert(ids, lengths.cumsum(), _tokenizer.symbols.index(EOS))
    return number, (ends.astype(np.int32), lengths + 1)


class MMapWriter:
    """Writes a memory-mapped dataset of fairseq, PLACE.bin and PLACE.idx.

    The number of dictionary entries decides between 2 and 4 bytes per id.
    """

    def __init__(self, place: Path, vocabulary: int):
        self.place = place
        self.dtype = np.dtype(np.uint16 if vocabulary < UINT16_LIMIT else np.uint32)
        self.stream = open(place.with_name(f"{place.name}.bin"), "wb")  # noqa: SIM115 (close() is below)
        self.lengths: list[np.ndarray] = []

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        self.stream.write(ids.astype(self.dtype).tobytes())
        self.lengths.append(lengths.astype(np.int32))

    def close(self) -> None:
        self.stream.close()
        count = sum(map(len, self.lengths))
        with open(self.place.with_name(f"{self.place.name}.idx"), "wb") as stream:
            stream.write(INDEX_MAGIC + struct.pack("<QBQ", VERSION, DTYPE_CODES[self.dtype], count))
            stream.writelines(lengths.tobytes() for lengths in self.lengths)
            end = 0
            for lengths in self.lengths:
                ends = end + lengths.cumsum(dtype=np.int64) * self.dtype.itemsize
                stream.write((ends - lengths * self.dtype.itemsize).tobytes())
                end = int(ends[-1]) if len(ends) else end


def shard_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders that fairseq-train takes, joined by colons: the folder itself, or its
    shards.
    """
    parts = sorted(
        (path for path in folder.iterdir() if path.name.isdecimal()),
        key=lambda path: int(path.name),
    )
    yield from parts or [folder]
