"""Writes, opens, checks and reads the folder of an index.

`index.json` describes the index, and holds the SHA-256 of the other files: the vectors, the
sentences, and for each sentence its first byte in the file and its line number in the corpus.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import is_blank, single_line
from fairseq_lxsr.files.open import open_file, read_unreplaced, sha256, stamp
from fairseq_lxsr.files.records import open_array, parse_json, sealed
from fairseq_lxsr.files.write import atomic_folder, restore_folder
from fairseq_lxsr.search.resumable import ENCODE_ROWS
from fairseq_lxsr.vectors import (
    build_index,
    check_directions,
    read_index,
    search_index,
    write_index,
)
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

INDEX_CONFIG = "index.json"
VECTORS_FILE = "index.faiss"
SENTENCES_FILE = "sentences.txt"
# Byte offset of each sentence in the sentence file, followed by the size of that file.
OFFSETS_FILE = "offsets.npy"
# The line number of each sentence in the corpus, from 0.
LINES_FILE = "lines.npy"
FILES = (VECTORS_FILE, SENTENCES_FILE, OFFSETS_FILE, LINES_FILE)
# Vectors that have not been indexed yet; the file is removed at the end.
RAW_VECTORS_FILE = "vectors.raw"
INDEX_FORMAT = 2
# Key of the file sizes and modification times when the files were hashed; indexes built by earlier
# versions do not have it.
STAMPS = "stamps"
# Expected types of the index.json fields that are read.
FIELD_TYPES: dict[str, type] = {
    "files": dict,
    "model": str,
    "model_folder": str,
    "sentences": int,
    "width": int,
}

EmbedText = Callable[[Text], np.ndarray]


# -- writing


@dataclass(frozen=True)
class IndexSettings:
    """Index settings, and the model that computes the embeddings.

    Attributes:
        model: fingerprint of the model that computes the embeddings.
        kind: kind of the index, see `vectors.build_index`.
        lists: number of inverted lists, see `vectors.build_index`.
        model_folder: path of the model; empty if it is not known.
    """

    model: str
    kind: str = "flat"
    lists: int | None = None
    model_folder: str = ""


def write_index_folder(
    folder: str | Path,
    sentences: Iterable[str],
    embed: EmbedText,
    settings: IndexSettings,
    first: int = 0,
    block_rows: int = ENCODE_ROWS,
) -> None:
    """Write an index folder, which appears under its name only when it is complete.

    Args:
        folder: folder to write.
        sentences: any number of sentences. Empty ones and those without a known word are skipped.
        embed: computes the embeddings of sentences, [n, D].
        settings: kind and model of the index.
        first: line number of the first sentence in the corpus, from 0.
        block_rows: number of sentences that are embedded and written together.

    Raises:
        InputError: if no sentence has a known word.
    """
    with atomic_folder(folder, INDEX_CONFIG, sign='"model_folder"') as work:
        sizes = _write_sentences(work, _blocks(sentences, first, block_rows), embed, first)
        raw_file = work / RAW_VECTORS_FILE
        vectors = np.memmap(
            raw_file, dtype=np.float32, mode="r", shape=(sizes.sentences, sizes.width)
        )
        write_index(build_index(vectors, settings.kind, settings.lists), work / VECTORS_FILE)
        # Some systems do not remove a file that is still mapped.
        del vectors
        raw_file.unlink()
        config = {
            "format_version": INDEX_FORMAT,
            "kind": settings.kind,
            "sentences": sizes.sentences,
            "lines": sizes.lines,
            "width": sizes.width,
            "model": settings.model,
            "model_folder": settings.model_folder,
            "files": {name: sha256(work / name) for name in FILES},
            STAMPS: {name: stamp(work / name) for name in FILES},
        }
        content = json.dumps(sealed(config), indent=2)
        (work / INDEX_CONFIG).write_text(f"{content}\n", encoding="utf-8")


@dataclass(frozen=True)
class _Sizes:
    """Number of sentences and lines written, and the width of the vectors."""

    sentences: int
    lines: int
    width: int


@dataclass(frozen=True)
class _Block:
    """Non-empty corpus lines, and the number of the line after the block."""

    numbers: list[int]
    sentences: list[str]
    next_number: int


def _blocks(sentences: Iterable[str], first: int, block_rows: int) -> Iterator[_Block]:
    """Cut a corpus into blocks.

    Empty lines count in the size of a block. So if a part of a corpus starts at the first line of
    a block, its blocks are those of the complete corpus, and so are its embeddings.
    """
    remaining = iter(sentences)
    start = first
    while lines := list(islice(remaining, block_rows)):
        numbers = []
        texts = []
        for number, line in enumerate(lines, start):
            if not is_blank(line):
                numbers.append(number)
                texts.append(single_line(line))
        start += len(lines)
        yield _Block(numbers, texts, start)


def _write_sentences(
    work: Path, blocks: Iterable[_Block], embed: EmbedText, next_line: int
) -> _Sizes:
    """Write the sentences with their vectors, byte offsets and line numbers."""
    # One array per block: every full garbage collection would have to walk through a list of all
    # numbers.
    numbers: list[IntArray] = []
    lengths: list[IntArray] = [np.zeros(1, dtype=np.int64)]
    width = 0
    # First block in which no sentence has a known word.
    unknown: tuple[FloatArray, Text] | None = None
    with ExitStack() as stack:
        text_stream = stack.enter_context(open(work / SENTENCES_FILE, "wb"))
        vector_stream = stack.enter_context(open(work / RAW_VECTORS_FILE, "wb"))
        for block in blocks:
            next_line = block.next_number
            if not block.sentences:
                continue
            text = Text(block.sentences, rows=np.array(block.numbers))
            embeddings = np.ascontiguousarray(embed(text), dtype=np.float32)
            check_directions(embeddings, text.where, zeros=True)
            width = embeddings.shape[1]
            is_known = np.asarray(embeddings.any(axis=1))
            if not is_known.any():
                unknown = unknown or (embeddings, text)
                continue
            vector_stream.write(embeddings[is_known].tobytes())
            numbers.append(np.array(block.numbers, dtype=np.int64)[is_known])
            known_sentences = compress(block.sentences, is_known)
            sizes = [text_stream.write(f"{sentence}\n".encode()) for sentence in known_sentences]
            lengths.append(np.array(sizes, dtype=np.int64))
    if not numbers:
        if unknown is not None:
            embeddings, text = unknown
            # This call raises an error that names the first sentence.
            check_directions(embeddings, text.where)
        raise InputError("no text to index; expected one sentence per line")
    lines = np.concatenate(numbers)
    np.save(work / OFFSETS_FILE, np.concatenate(lengths).cumsum())
    np.save(work / LINES_FILE, lines)
    return _Sizes(len(lines), next_line, width)


# -- reading


class IndexFolder:
    """An open index folder.

    All files are opened at once. So if the folder is replaced while it is open, this object still
    reads the old files.

        opened = IndexFolder.open(Path("index"))
        cosines, rows = opened.neighbours(embeddings, k=5)
        sentences = opened.sentences(np.unique(rows))

    Attributes:
        path: path of the folder.
        config: content of index.json.
        vectors: index of the vectors, of faiss or `vectors.index.FlatIndex`.
    """

    def __init__(
        self, path: Path, config: dict[str, Any], vectors: Any, streams: dict[str, BinaryIO]
    ):
        """Map open files whose checksums were verified; the streams are not needed afterwards."""
        count = config["sentences"]
        self.path = path
        self.config = config
        self.vectors = vectors
        self._offsets = _map_numbers(streams[OFFSETS_FILE], count + 1)
        self._lines = _map_numbers(streams[LINES_FILE], count)
        self._opened = {name: os.fstat(stream.fileno()) for name, stream in streams.items()}
        size = self._opened[SENTENCES_FILE].st_size
        covers_text = self._offsets[0] == 0 and self._offsets[-1] == size
        # Every sentence has at least one byte, its line end.
        if not covers_text or (np.diff(self._offsets) < 1).any():
            raise InputError(
                f"{path / OFFSETS_FILE}: not the offsets of the sentences in {SENTENCES_FILE}; "
                "build the index again"
            )
        self._text = np.memmap(streams[SENTENCES_FILE], np.uint8, "r").view(np.ndarray)

    @classmethod
    def open(cls, path: Path) -> "IndexFolder":
        """Open and check an index folder, even if it is replaced at the same time.

        Raises:
            InputError: if a file is missing, changed or of another format.
        """
        return read_unreplaced(path / INDEX_CONFIG, lambda: cls._open(path))

    @classmethod
    def _open(cls, path: Path) -> "IndexFolder":
        restore_folder(path)
        with ExitStack() as stack:
            config = read_config(path)
            # Open each file only once, so that the checked file is the one that is read later.
            streams = {}
            for name in FILES:
                streams[name] = stack.enter_context(_open_unchanged(path / name, config))
            count = config["sentences"]
            width = config["width"]
            vectors = read_index(streams[VECTORS_FILE])
            if (vectors.ntotal, vectors.d) != (count, width):
                raise InputError(
                    f"{path / VECTORS_FILE}: {vectors.ntotal:,} vectors of width {vectors.d}; "
                    f"expected {count:,} of width {width}: build the index again"
                )
            return cls(path, config, vectors, streams)

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self._offsets) - 1

    @property
    def files(self) -> list[Path]:
        """Paths of all files of the folder."""
        return [self.path / name for name in (INDEX_CONFIG, *FILES)]

    def neighbours(
        self, embeddings: FloatArray, k: int, probes: int
    ) -> tuple[FloatArray, IntArray]:
        """Return cosines and rows of the nearest sentences, [N, k] each; see `search_index`.

        Args:
            embeddings: query embeddings [N, D].
            k: number of neighbours.
            probes: number of inverted lists to search.

        Raises:
            InputError: if the embeddings do not have the width of the index.
        """
        width = self.config["width"]
        if embeddings.shape[-1] != width:
            raise InputError(
                f"{self.path}: vectors of {width} dimensions, but the queries have "
                f"{embeddings.shape[-1]}; use the same model and the same --truncate-dim"
            )
        cosines, rows = search_index(self.vectors, embeddings, k, probes)
        self._check_not_overwritten(VECTORS_FILE)
        largest = rows.max(initial=-1)
        if largest >= len(self):
            raise InputError(
                f"{self.path / VECTORS_FILE}: contains row {largest:,}, but the index has only "
                f"{len(self):,} sentences; build the index again"
            )
        return cosines, rows

    def sentences(self, rows: IntArray) -> dict[int, tuple[int, str]]:
        """Read the line number in the corpus and the text of each of these rows [n]."""
        sentences = {}
        for row in rows.tolist():
            encoded = self._text[self._offsets[row] : self._offsets[row + 1]].tobytes()
            sentence = encoded.decode("utf-8", "replace").rstrip("\n")
            sentences[row] = (int(self._lines[row]), sentence)
        self._check_not_overwritten(SENTENCES_FILE, OFFSETS_FILE, LINES_FILE)
        return sentences

    def _check_not_overwritten(self, *names: str) -> None:
        """Refuse files into which bytes were written while they were open, as `cp` does.

        Files that were replaced do no harm: the old ones are still open.
        """
        for name in names:
            path = self.path / name
            before = self._opened[name]
            try:
                now = os.stat(path)
            except OSError:
                # For example, the folder may have been removed.
                continue
            if os.path.samestat(before, now) and _size_and_time(before) != _size_and_time(now):
                raise InputError(
                    f"{path}: was overwritten while the index was open; load it again, and let "
                    "`lxsr index` or a rename replace the folder"
                )


def _size_and_time(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def read_config(path: Path) -> dict[str, Any]:
    """Read and check the description of an index folder, index.json."""
    if not path.is_dir():
        raise InputError(f"{path}: not an index, no such folder; build one with `lxsr index`")
    if not (path / INDEX_CONFIG).is_file():
        raise InputError(
            f"{path}: not an index, without {INDEX_CONFIG}; build one with `lxsr index`"
        )
    try:
        with open_file(path / INDEX_CONFIG) as stream:
            config = parse_json(stream.read().decode("utf-8"))
        version = config["format_version"]
        if version == INDEX_FORMAT:
            _check_types(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not an index ({error!r}); build one with `lxsr index`") from None
    if version != INDEX_FORMAT:
        raise InputError(
            f"{path}: index of format {version!r:.40}; this version reads format {INDEX_FORMAT}"
        )
    return config


def _check_types(config: dict[str, Any]) -> None:
    for name, expected in FIELD_TYPES.items():
        # Not isinstance, because True is an int.
        if type(config[name]) is not expected:
            raise TypeError(f"{name} {config[name]!r:.40}")


def _open_unchanged(path: Path, config: dict[str, Any]) -> BinaryIO:
    """Open a file, and check its SHA-256 against index.json.

    Hashing takes longer than a search. So a file is not hashed again if its size and time are still
    those of when it was hashed.
    """
    stamps = config.get(STAMPS)
    stored_stamp = stamps.get(path.name) if isinstance(stamps, dict) else None
    with suppress(FileNotFoundError, IsADirectoryError):
        stream = open_file(path)
        if stamp(stream) == stored_stamp:
            return stream
        if sha256(stream) == config["files"].get(path.name):
            return stream
        stream.close()
    raise InputError(f"{path}: missing or changed since the index was built; build it again")


def _map_numbers(stream: BinaryIO, count: int) -> np.ndarray:
    """Map a stored array of `count` integers."""
    try:
        array = open_array(stream)
    except ValueError as error:
        raise InputError(
            f"{stream.name}: not a .npy file of numbers ({error}); build the index again"
        ) from None
    if array.shape != (count,) or array.dtype != np.int64:
        raise InputError(
            f"{stream.name}: {array.dtype} of shape {array.shape}; expected int64 of shape "
            f"({count},): build the index again"
        )
    return array
