"""Writes and opens the folder of an index, which consists of segments."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import model_of
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import read_unreplaced
from fairseq_lxsr.files.write import atomic_folder, restore_folder
from fairseq_lxsr.search.documents import Condition, blocks
from fairseq_lxsr.search.index_config import (
    INDEX_CONFIG,
    IndexSettings,
    config_text,
    new_config,
    read_config,
)
from fairseq_lxsr.search.lexical import LexicalIndex, prefixes, query_forms
from fairseq_lxsr.search.resumable import ENCODE_ROWS
from fairseq_lxsr.search.segment import Segment
from fairseq_lxsr.search.segment_files import map_numbers, open_unchanged
from fairseq_lxsr.search.segment_vectors import CANDIDATES_PER_WINDOW, Mask, SegmentVectors
from fairseq_lxsr.search.segment_writer import EmbedText, SegmentWriter
from fairseq_lxsr.search.window_pieces import WindowPieces, join_windows
from fairseq_lxsr.text.common_words import LABELS, script_of
from fairseq_lxsr.vectors import merge_neighbours
from fairseq_lxsr.vectors.neighbours import fill_neighbours, shift_ids
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, check_count

FIRST_SEGMENT = "segment-0"
# Seconds that a writer waits for another writer.
PATIENCE = 600.0


# -- writing


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
        num_lines = first
        (work / FIRST_SEGMENT).mkdir()
        with SegmentWriter(work / FIRST_SEGMENT, settings.plain) as writer:
            for block in blocks(sentences, ids, first, block_rows, first_place=first):
                writer.embed(block, embed)
                num_lines = block.next_line
            writer.refuse_empty()
            segment = writer.finish(settings.kind)
        config = new_config(settings, [segment], writer.width, num_lines, ids is not None)
        (work / INDEX_CONFIG).write_text(config_text(config), encoding="utf-8")


# -- reading


class IndexFolder:
    """An open index folder.

    All files are opened at once, so this object still reads the old files if the folder is
    replaced or edited meanwhile.

        stored = IndexFolder.open(Path("index"))
        cosines, rows = stored.neighbours(embeddings, k=5)
        sentences = stored.sentences(np.unique(stored.documents(rows)))

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
            file = path / config["deleted"]["file"]
            with open_unchanged(file, config["deleted"]["sha256"]) as stream:
                deleted = map_numbers(stream, (total - config["sentences"],))
            if not _is_ascending(deleted, total):
                raise InputError(
                    f"{file} does not match {total:,} documents; build the index again"
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
    def has_windows(self) -> bool:
        """Whether documents are split into windows and their sentences."""
        return not self.config["plain"]

    @property
    def num_passages(self) -> int:
        """Number of documents with several rows, including deleted documents."""
        if not self.has_windows:
            return 0
        documents = self.documents(np.arange(self.num_rows))
        return int(np.count_nonzero(np.bincount(documents) > 1))

    @property
    def num_rows(self) -> int:
        """Number of rows, including rows of deleted documents."""
        return self._row_starts[-1]

    @property
    def files(self) -> list[Path]:
        """Paths of all files of the folder."""
        files = [self.path / INDEX_CONFIG]
        if self.config["deleted"]:
            files.append(self.path / self.config["deleted"]["file"])
        for segment in self.segments:
            files += segment.files
        return files

    # -- searching

    def neighbours(
        self, embeddings: FloatArray, k: int, allowed: Mask | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Find the nearest rows of the index; see `search_index`.

        Rows of deleted documents are not found.

        Args:
            embeddings: query embeddings [N, D].
            k: number of neighbours.
            allowed: mask of the documents that may be found, from the method `allowed`; None for
                all.

        Returns:
            Cosines and rows, [N, k] each.

        Raises:
            InputError: if the embeddings do not have the width of the index.
        """
        check_count("k", k, self.num_rows, "vectors in the index")

        def search(vectors: SegmentVectors, is_allowed: Mask | None) -> tuple[FloatArray, IntArray]:
            return vectors.neighbours(embeddings, min(k, vectors.num_rows), is_allowed)

        return self._search_segments(search, embeddings, k, allowed)

    def nearest_windows(
        self, embeddings: FloatArray, k: int, allowed: Mask | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Return cosines and rows of windows near each query; see `SegmentVectors.nearest_windows`.

        Args:
            embeddings: query embeddings [N, D].
            k: number of windows.
            allowed: as for `neighbours`.

        Returns:
            Cosines in descending order, and rows, [N, 4 k] each; -1 marks a missing row.
        """

        def search(vectors: SegmentVectors, is_allowed: Mask | None) -> tuple[FloatArray, IntArray]:
            return vectors.nearest_windows(embeddings, k, is_allowed)

        return self._search_segments(search, embeddings, CANDIDATES_PER_WINDOW * k, allowed)

    def _search_segments(
        self,
        search: Callable[[SegmentVectors, Mask | None], tuple[FloatArray, IntArray]],
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
            part = segment.search_vectors(search, is_allowed)
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
        """Return a mask of the undeleted documents that satisfy a `checked_where` condition.

        Raises:
            InputError: if the condition is a mask of another size.
        """
        if isinstance(where, np.ndarray):
            if where.shape != self._is_alive.shape:
                raise InputError(
                    f"where is a mask {list(where.shape)}; expected {list(self._is_alive.shape)}, "
                    "from `CorpusIndex.mask` of the index as it is now"
                )
            return where & self._is_alive
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
        if not self.has_windows:
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
        return _starts(len(segment.vectors.window_starts) for segment in self.segments)

    @cached_property
    def window_starts(self) -> IntArray:
        """First row of each window of a passage, ascending, and the number of rows [W + 1]."""
        parts = []
        for segment, start in zip(self.segments, self._row_starts[:-1], strict=True):
            parts.append(segment.vectors.window_starts + start)
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
    def languages(self) -> IntArray:
        """Number of the language of each document in `common_words.LABELS` [N].

        A document of which only the script is known counts as one of the most frequent language in
        that script. A plain index does not store languages.
        """
        parts = [segment.languages for segment in self.segments]
        languages = np.concatenate(parts).astype(np.int64)
        sizes = np.bincount(languages[self._is_alive], minlength=len(LABELS))
        most_frequent = np.arange(len(sizes))
        for number in np.argsort(sizes, kind="stable").tolist():
            script = LABELS.index(script_of(LABELS[number]))
            if sizes[number] and script != number:
                # The loop ends with the most frequent language of each script.
                most_frequent[script] = number
        return most_frequent[languages]

    @cached_property
    def lexical(self) -> LexicalIndex:
        """BM25 index of the documents that are not deleted."""
        parts = [segment.postings for segment in self.segments]
        is_alive = self._is_alive if len(self.deleted) else None
        return LexicalIndex(parts, prefixes, query_forms, is_alive, self.languages)

    @staticmethod
    def _parts(numbers: IntArray, starts: list[int]) -> Iterator[tuple[int, Mask]]:
        """Yield the index of each segment that contains any of the numbered documents or rows.

        A mask tells which of them it contains.
        """
        owners = np.searchsorted(starts, numbers, side="right") - 1
        for number in np.unique(owners).tolist():
            yield number, owners == number


def _starts(counts: Iterable[int]) -> list[int]:
    """Return the running totals of counts, starting with 0."""
    return np.cumsum([0, *counts]).tolist()


def _is_ascending(numbers: IntArray, limit: int) -> bool:
    """Return whether numbers are ascending, non-negative and below the limit."""
    if not len(numbers):
        return True
    is_inside = numbers[0] >= 0 and numbers[-1] < limit
    return bool(is_inside and (np.diff(numbers) > 0).all())
