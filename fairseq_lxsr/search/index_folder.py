"""Writes, opens and checks the folder of an index, which consists of segments.

`index.json` describes the index, and contains the SHA-256 of all other files. It is the only file
that is ever replaced; the segments that it lists never change.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import model_of
from fairseq_lxsr.errors import InputError, check_strings, shown
from fairseq_lxsr.files.lines import is_blank, single_line
from fairseq_lxsr.files.open import open_file, read_unreplaced, sha256, stamp
from fairseq_lxsr.files.records import is_count, parse_json, sealed
from fairseq_lxsr.files.write import atomic_folder, restore_folder
from fairseq_lxsr.search.lexical import LexicalIndex, prefixes
from fairseq_lxsr.search.resumable import ENCODE_ROWS
from fairseq_lxsr.search.segment import (
    CANDIDATES_PER_WINDOW,
    FILES,
    OPTIONAL_FILES,
    SPLITTERS,
    Block,
    EmbedText,
    Mask,
    Segment,
    SegmentWriter,
    check_description,
    file_name,
    map_numbers,
    open_unchanged,
)
from fairseq_lxsr.search.window_pieces import WindowPieces, join_windows
from fairseq_lxsr.vectors import merge_neighbours
from fairseq_lxsr.vectors.neighbours import fill_neighbours, shift_ids
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, check_count

INDEX_CONFIG = "index.json"
INDEX_FORMAT = 3
# An index in this format is a single segment without ids.
ONE_SEGMENT_FORMAT = 2
# Names of segment folders, and of the file that lists the deleted documents. The files of the first
# segment are next to index.json.
SEGMENT_NAME = re.compile(r"segment-\d+")
DELETED_NAME = re.compile(r"deleted-\d+\.npy")
# Key of each file's size and change time when it was hashed. Indexes of early versions lack this
# key.
STAMPS = "stamps"
# Key that tells whether a model without layers has embedded whole texts. Earlier versions, which
# lack the key, embedded only the first `max_positions` word pieces.
WHOLE_TEXTS = "whole_texts"
# Expected types of the index.json fields that are read.
FIELD_TYPES: dict[str, type] = {
    "files": dict,
    "kind": str,
    "model": str,
    "model_folder": str,
}
# Seconds that a writer waits for another writer.
PATIENCE = 600.0
# An id must not contain a control character, because tables have one hit per line.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# Ids of documents, or a function that returns whether a document with an id may be found.
Where = Collection[str | int] | Callable[[str], bool]
# A validated condition, with ids converted to text.
Condition = frozenset[str] | Callable[[str], bool]


class IdError(InputError):
    """An error in a list of ids. The message contains the one-based position of the id."""


# -- writing


@dataclass(frozen=True)
class IndexSettings:
    """Index settings, and the model that computes the embeddings.

    Attributes:
        model: fingerprint of the model that computes the embeddings.
        kind: index kind; see `vectors.build_index`.
        lists: number of inverted lists; see `vectors.build_index`.
        model_folder: path of the model; empty if unknown.
        split: name of the function that splits documents into rows; see `segment.SPLITTERS`. None
            for one row per document.
        hybrid: whether the terms of the documents are stored for BM25.
    """

    model: str
    kind: str = "flat"
    lists: int | None = None
    model_folder: str = ""
    split: str | None = None
    hybrid: bool = False


def write_index_folder(
    folder: str | Path,
    sentences: Iterable[str],
    embed: EmbedText,
    settings: IndexSettings,
    first: int = 0,
    block_rows: int = ENCODE_ROWS,
    ids: Iterable[str | int] | None = None,
) -> None:
    """Write an index folder atomically.

    Args:
        folder: output folder.
        sentences: any number of sentences. Empty ones and those without a known word are skipped.
        embed: computes the embeddings of sentences, [n, D].
        settings: kind and model of the index.
        first: zero-based line index of the first sentence in the corpus.
        block_rows: number of sentences that are embedded and written together.
        ids: id of each sentence; None to use line numbers.

    Raises:
        InputError: if no sentence has a known word, or the ids do not match the sentences.
    """
    with atomic_folder(folder, INDEX_CONFIG, sign='"model_folder"', patience=PATIENCE) as work:
        next_line = first
        with SegmentWriter(work, settings.split, settings.hybrid) as writer:
            for block in blocks(sentences, ids, first, block_rows, first_place=first):
                writer.embed(block, embed)
                next_line = block.next_line
            writer.refuse_empty()
            segment = {"folder": "", **writer.finish(settings.kind, settings.lists)}
        config = {
            "format_version": INDEX_FORMAT,
            "kind": settings.kind,
            "lists": settings.lists,
            "sentences": writer.num_documents,
            "lines": next_line,
            "width": writer.width,
            "model": settings.model,
            "model_folder": settings.model_folder,
            WHOLE_TEXTS: True,
            "ids": ids is not None,
            "split": settings.split,
            "hybrid": settings.hybrid,
            "segments": [segment],
            "next": 1,
            "deleted": None,
        }
        add_checksums(config, work)
        (work / INDEX_CONFIG).write_text(config_text(config), encoding="utf-8")


def add_checksums(config: dict[str, Any], folder: Path) -> None:
    """Add the SHA-256 of all files, and their sizes and change times for a quick check.

    Existing entries of `config` are kept, except for entries of files that the index no longer has.
    """
    names = []
    for segment in config["segments"]:
        for name in (*FILES, *OPTIONAL_FILES):
            if (folder / file_name(segment, name)).exists():
                names.append(file_name(segment, name))
    if config["deleted"]:
        names.append(config["deleted"])
    hashes = config.get("files", {})
    stamps = config.get(STAMPS) or {}
    config["files"] = {name: hashes.get(name) or sha256(folder / name) for name in names}
    config[STAMPS] = {}
    for name in names:
        if name in stamps or name not in hashes:
            config[STAMPS][name] = stamps.get(name) or stamp(folder / name)


def config_text(config: dict[str, Any]) -> str:
    """Return the content of index.json."""
    return f"{json.dumps(sealed(config), indent=2)}\n"


def blocks(
    sentences: Iterable[str],
    ids: Iterable[str | int] | None,
    first_line: int,
    block_rows: int = ENCODE_ROWS,
    first_place: int = 0,
) -> Iterator[Block]:
    """Split documents into blocks, without empty documents.

    Empty lines count towards the size of a block. So if a part of a corpus starts at the first line
    of a block, its blocks and embeddings are the same as in the whole corpus.

    Args:
        sentences: texts of the documents.
        ids: ids of the documents; None to use line numbers.
        first_line: zero-based line index of the first document in the corpus.
        block_rows: number of documents per block.
        first_place: zero-based index of the first document in the input, for messages.

    Raises:
        InputError: if there is not one id for each sentence, if an id is invalid or appears twice,
            or if a sentence is not a string.
    """
    remaining = iter(sentences)
    remaining_ids = None if ids is None else checked_ids(ids)
    start = 0
    while texts := list(islice(remaining, block_rows)):
        check_strings("sentences", texts, start)
        names = None
        if remaining_ids is not None:
            names = list(islice(remaining_ids, len(texts)))
            if len(names) < len(texts):
                raise IdError(
                    f"{start + len(names):,} ids for more sentences; expected one id for each "
                    "sentence"
                )
        yield _block(texts, names, start, first_line, first_place)
        start += len(texts)
    if remaining_ids is not None and next(remaining_ids, None) is not None:
        raise IdError(f"more ids than the {start:,} sentences; expected one id for each sentence")


def _block(
    texts: list[str], names: list[str] | None, start: int, first_line: int, first_place: int
) -> Block:
    """Return the block that starts at index `start` of the input."""
    numbers = []
    sentences = []
    for number, text in enumerate(texts):
        if not is_blank(text):
            numbers.append(number)
            sentences.append(single_line(text))
    ids = None
    if names is not None:
        ids = [names[number] for number in numbers]
    return Block(
        sentences,
        [first_line + start + number for number in numbers],
        [first_place + start + number for number in numbers],
        ids,
        first_line + start + len(texts),
    )


def checked_ids(ids: Iterable[str | int]) -> Iterator[str]:
    """Yield ids as text, after checking that each is valid and appears only once.

    Raises:
        InputError: for an invalid id; the message contains its one-based position.
    """
    first_numbers: dict[str, int] = {}
    for number, value in enumerate(ids, start=1):
        name = id_text(value, f"id {number:,}")
        first = first_numbers.setdefault(name, number)
        if first != number:
            raise IdError(
                f"id {number:,}: {shown(name)} repeats id {first:,}; each id must appear once"
            )
        yield name


def id_text(value: Any, place: str) -> str:
    """Return an id as text; integers are converted.

    Raises:
        InputError: if the id is invalid; the message begins with `place`.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip() or CONTROL.search(value):
        raise IdError(
            f"{place}: {shown(value)} is invalid; expected an integer, or text without tabs, "
            "newlines and other control characters"
        )
    return value


def checked_where(where: Where) -> Condition:
    """Validate the condition of a search, and return a set of ids as text, or a function of an id.

    Raises:
        InputError: if `where` is a single string, or neither a collection nor a function.
    """
    if callable(where):
        return where
    if isinstance(where, str | bytes) or not isinstance(where, Iterable):
        raise InputError(
            f"where is {shown(where)}; expected a collection of ids, or a function of an id"
        )
    return frozenset(id_text(value, "where") for value in where)


# -- reading


class IndexFolder:
    """An open index folder.

    All files are opened at once, so this object still reads the old files if the folder is
    replaced or edited meanwhile.

        opened = IndexFolder.open(Path("index"))
        cosines, rows = opened.neighbours(embeddings, k=5)
        sentences = opened.sentences(np.unique(opened.documents(rows)))

    Documents and rows are numbered across all segments, including deleted documents.

    Attributes:
        path: path of the folder.
        config: content of index.json.
        segments: the open segments.
        deleted: numbers of the deleted documents, ascending.
    """

    def __init__(
        self, path: Path, config: dict[str, Any], segments: list[Segment], deleted: IntArray
    ):
        self.path = path
        self.config = config
        self.segments = segments
        self.deleted = deleted
        # Indices of the first document and the first row of each segment, and the totals.
        self._document_starts = _starts(segment.num_documents for segment in segments)
        self._row_starts = _starts(segment.num_rows for segment in segments)

    @classmethod
    def open(cls, path: Path) -> "IndexFolder":
        """Open and check an index folder, even if it is being replaced at the same time.

        Raises:
            InputError: if a file is missing, changed or of another format.
        """
        return read_unreplaced(path / INDEX_CONFIG, lambda: cls._open(path))

    @classmethod
    def _open(cls, path: Path) -> "IndexFolder":
        restore_folder(path)
        config = read_config(path)
        segments = [Segment(path, description, config) for description in config["segments"]]
        deleted = np.empty(0, dtype=np.int64)
        total = sum(segment.num_documents for segment in segments)
        if config["deleted"]:
            with open_unchanged(path, config["deleted"], config) as stream:
                deleted = map_numbers(stream, (total - config["sentences"],))
            if not _is_ascending(deleted, total):
                raise InputError(
                    f"{path / config['deleted']} does not match {total:,} documents; build the "
                    "index again"
                )
        elif total != config["sentences"]:
            raise InputError(
                f"{path / INDEX_CONFIG}: {config['sentences']:,} sentences, but {total:,} in the "
                "segments; build the index again"
            )
        return cls(path, config, segments, deleted)

    def __len__(self) -> int:
        """Return the number of documents that are not deleted."""
        return self._document_starts[-1] - len(self.deleted)

    @property
    def model(self) -> str:
        """Fingerprint of the model, without options that truncated or rounded the vectors."""
        return model_of(self.config["model"])

    @property
    def num_rows(self) -> int:
        """Number of rows, including rows of deleted documents."""
        return self._row_starts[-1]

    @property
    def files(self) -> list[Path]:
        """Paths of all files of the folder."""
        files = [self.path / INDEX_CONFIG]
        if self.config["deleted"]:
            files.append(self.path / self.config["deleted"])
        for segment in self.segments:
            files += segment.files
        return files

    # -- searching

    def neighbours(
        self, embeddings: FloatArray, k: int, probes: int, allowed: Mask | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Find the nearest rows of the index; see `search_index`.

        Rows of deleted documents are not found.

        Args:
            embeddings: query embeddings [N, D].
            k: number of neighbours.
            probes: number of inverted lists to search.
            allowed: mask of the documents that may be found, from the method `allowed`; None for
                all.

        Returns:
            Cosines and rows, [N, k] each.

        Raises:
            InputError: if the embeddings do not have the width of the index.
        """
        check_count("k", k, self.num_rows, "vectors in the index")

        def search(segment: Segment, is_allowed: Mask | None) -> tuple[FloatArray, IntArray]:
            return segment.neighbours(embeddings, min(k, segment.num_rows), probes, is_allowed)

        return self._search_segments(search, embeddings, k, allowed)

    def nearest_windows(
        self, embeddings: FloatArray, k: int, probes: int, allowed: Mask | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Return cosines and rows of windows near each query; see `Segment.nearest_windows`.

        Args:
            embeddings: query embeddings [N, D].
            k: number of windows.
            probes: number of inverted lists to search.
            allowed: as for `neighbours`.

        Returns:
            Cosines in descending order, and rows, [N, 4 k] each; -1 marks a missing row.
        """

        def search(segment: Segment, is_allowed: Mask | None) -> tuple[FloatArray, IntArray]:
            return segment.nearest_windows(embeddings, k, probes, is_allowed)

        return self._search_segments(search, embeddings, CANDIDATES_PER_WINDOW * k, allowed)

    def _search_segments(
        self,
        search: Callable[[Segment, Mask | None], tuple[FloatArray, IntArray]],
        embeddings: FloatArray,
        k: int,
        allowed: Mask | None,
    ) -> tuple[FloatArray, IntArray]:
        """Search all segments, and merge the k best results [N, k]."""
        width = self.config["width"]
        if embeddings.shape[-1] != width:
            raise InputError(
                f"{self.path}: vectors of {width} dimensions, but the queries have "
                f"{embeddings.shape[-1]}; use the same model and the same --truncate-dim"
            )
        if allowed is None and len(self.deleted):
            allowed = self._is_alive
        parts = []
        for number, segment in enumerate(self.segments):
            is_allowed = None
            if allowed is not None:
                start, stop = self._document_starts[number : number + 2]
                is_allowed = allowed[start:stop]
                if not is_allowed.any():
                    continue
                if is_allowed.all():
                    is_allowed = None
            part = search(segment, is_allowed)
            parts.append(shift_ids(part, self._row_starts[number]))
        if not parts:
            empty = np.empty((len(embeddings), 0))
            return fill_neighbours(empty, empty, k)
        return fill_neighbours(*merge_neighbours(parts, k), k)

    @cached_property
    def _is_alive(self) -> Mask:
        """Mask of the documents that are not deleted."""
        is_alive = np.ones(self._document_starts[-1], dtype=bool)
        is_alive[self.deleted] = False
        return is_alive

    def allowed(self, where: Condition) -> Mask:
        """Return a mask of the undeleted documents that satisfy a `checked_where` condition."""
        if isinstance(where, frozenset):
            is_allowed = np.zeros(self._document_starts[-1], dtype=bool)
            for name in where:
                number = self.numbers.get(name)
                if number is not None:
                    is_allowed[number] = True
            return is_allowed
        ids = chain.from_iterable(segment.ids for segment in self.segments)
        is_allowed = np.array([bool(where(name)) for name in ids], dtype=bool)
        return is_allowed & self._is_alive

    @property
    def all_ids(self) -> list[str]:
        """Ids of the documents that are not deleted."""
        ids = chain.from_iterable(segment.ids for segment in self.segments)
        return list(compress(ids, self._is_alive.tolist()))

    # -- documents

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of each document, keyed by its id; deleted documents are left out."""
        numbers = {}
        is_alive = self._is_alive.tolist()
        ids = chain.from_iterable(segment.ids for segment in self.segments)
        for number, name in enumerate(ids):
            if is_alive[number]:
                numbers[name] = number
        return numbers

    def documents(self, rows: IntArray) -> IntArray:
        """Return the number of the document that contains each row [n].

        In an index with one row per document, these are the row numbers themselves.
        """
        if not self.config["split"]:
            return rows
        documents = np.empty_like(rows)
        for number, is_inside in self._parts(rows, self._row_starts):
            inside = self.segments[number].documents(rows[is_inside] - self._row_starts[number])
            documents[is_inside] = inside + self._document_starts[number]
        return documents

    def spans(self, rows: IntArray) -> IntArray:
        """Return the start and end byte of each row in the text of its document [n, 2]."""
        spans = np.empty((len(rows), 2), dtype=np.int64)
        for number, is_inside in self._parts(rows, self._row_starts):
            inside = rows[is_inside] - self._row_starts[number]
            spans[is_inside] = self.segments[number].spans(inside)
        return spans

    def window_pieces(
        self, windows: IntArray, split: Callable[[IntArray], WindowPieces]
    ) -> WindowPieces:
        """Return the word pieces of windows.

        Args:
            windows: numbers of the windows [W].
            split: called for windows of a segment that does not store pieces.
        """
        parts = []
        positions = []
        for number, is_inside in self._parts(windows, self._segment_windows):
            inside = windows[is_inside]
            pieces = self.segments[number].window_pieces(inside - self._segment_windows[number])
            parts.append(pieces or split(inside))
            positions.append(np.flatnonzero(is_inside))
        return join_windows(parts, positions)

    @cached_property
    def _segment_windows(self) -> list[int]:
        """Number of the first window of each segment, and the number of windows."""
        return _starts(len(segment.window_starts) for segment in self.segments)

    @cached_property
    def window_starts(self) -> IntArray:
        """First row of each window of a passage, ascending, and the number of rows [W + 1]."""
        parts = []
        for segment, start in zip(self.segments, self._row_starts[:-1], strict=True):
            parts.append(segment.window_starts + start)
        return np.append(np.concatenate(parts), self.num_rows)

    @cached_property
    def window_documents(self) -> IntArray:
        """Document of each window, ascending [W]."""
        return self.documents(self.window_starts[:-1])

    def sentences(self, documents: IntArray) -> dict[int, tuple[int, str]]:
        """Map documents to their zero-based line index in the corpus and their text."""
        sentences = {}
        for number, is_inside in self._parts(documents, self._document_starts):
            inside = documents[is_inside]
            contents = self.segments[number].sentences(inside - self._document_starts[number])
            for document, (line, text) in zip(inside.tolist(), contents, strict=True):
                sentences[document] = (line, text.decode("utf-8", "replace").rstrip("\n"))
        return sentences

    def ids(self, documents: IntArray) -> dict[int, str]:
        """Map documents to their ids."""
        ids: dict[int, str] = {}
        for number, is_inside in self._parts(documents, self._document_starts):
            inside = documents[is_inside]
            names = self.segments[number].ids_of(inside - self._document_starts[number])
            ids.update(zip(inside.tolist(), names, strict=True))
        return ids

    @cached_property
    def lexical(self) -> LexicalIndex:
        """BM25 index of all documents, including deleted documents."""
        return LexicalIndex([segment.postings for segment in self.segments], prefixes)

    @property
    def alive(self) -> Mask:
        """Mask of the documents that are not deleted."""
        return self._is_alive

    @staticmethod
    def _parts(numbers: IntArray, starts: list[int]) -> Iterator[tuple[int, Mask]]:
        """Yield the index of each segment that contains any of the numbered documents or rows.

        A mask tells which of them it contains.
        """
        for number in range(len(starts) - 1):
            is_inside = (numbers >= starts[number]) & (numbers < starts[number + 1])
            if is_inside.any():
                yield number, is_inside


def _starts(counts: Iterable[int]) -> list[int]:
    """Return the running totals of counts, starting with 0."""
    return np.cumsum([0, *counts]).tolist()


def _is_ascending(numbers: IntArray, limit: int) -> bool:
    """Return whether numbers are ascending, non-negative and below the limit."""
    if not len(numbers):
        return True
    is_inside = numbers[0] >= 0 and numbers[-1] < limit
    return bool(is_inside and (np.diff(numbers) > 0).all())


def read_config(path: Path) -> dict[str, Any]:
    """Read and check the description of an index folder, index.json.

    A description in an earlier format is converted.

    Raises:
        InputError: if the folder is not an index, or has an unsupported format.
    """
    if not path.is_dir():
        raise InputError(f"{path}: not an index, no such folder; build one with `lxsr index`")
    if not (path / INDEX_CONFIG).is_file():
        raise InputError(f"{path}: not an index, no {INDEX_CONFIG}; build one with `lxsr index`")
    try:
        with open_file(path / INDEX_CONFIG) as stream:
            config = parse_json(stream.read().decode("utf-8"))
        version = config["format_version"]
        if version == ONE_SEGMENT_FORMAT:
            config = _with_segment(config)
        if version in (ONE_SEGMENT_FORMAT, INDEX_FORMAT):
            _check_types(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not an index ({error!r}); build one with `lxsr index`") from None
    if version not in (ONE_SEGMENT_FORMAT, INDEX_FORMAT):
        raise InputError(
            f"{path}: index of format {version!r:.40}; this version supports the formats "
            f"{ONE_SEGMENT_FORMAT} and {INDEX_FORMAT}"
        )
    return config


def _with_segment(config: dict[str, Any]) -> dict[str, Any]:
    """Convert an index.json in the format with a single segment and no ids."""
    segment = {
        "folder": "",
        "kind": config["kind"],
        "documents": config["sentences"],
        "rows": config["sentences"],
    }
    return {
        "lists": None,
        "lines": None,
        **config,
        "format_version": INDEX_FORMAT,
        "ids": False,
        "split": None,
        "segments": [segment],
        "next": 1,
        "deleted": None,
    }


def _check_types(config: dict[str, Any]) -> None:
    for name, expected in FIELD_TYPES.items():
        # Not isinstance, because True is an int.
        if type(config[name]) is not expected:
            raise TypeError(f"invalid {name}: {config[name]!r:.40}")
    for name in ("next", "sentences", "width"):
        if not is_count(config[name]):
            raise TypeError(f"invalid {name}: {config[name]!r:.40}")
    for name in ("lines", "lists"):
        if config[name] is not None and not is_count(config[name]):
            raise TypeError(f"invalid {name}: {config[name]!r:.40}")
    if config["split"] is not None and config["split"] not in SPLITTERS:
        raise TypeError(f"invalid split: {config['split']!r:.40}")
    if type(config.get("hybrid", False)) is not bool:
        raise TypeError(f"invalid hybrid: {config['hybrid']!r:.40}")
    deleted = config["deleted"]
    if deleted is not None and not DELETED_NAME.fullmatch(deleted):
        raise TypeError(f"invalid deleted: {deleted!r:.40}")
    _check_segments(config["segments"])


def _check_segments(segments: list[dict[str, Any]]) -> None:
    """Raise `TypeError` if the description of a segment is invalid."""
    for number, segment in enumerate(segments):
        check_description(segment)
        folder = segment["folder"]
        is_first = number == 0 and not folder
        if not is_first and not SEGMENT_NAME.fullmatch(folder):
            raise TypeError(f"invalid folder: {folder!r:.40}")
