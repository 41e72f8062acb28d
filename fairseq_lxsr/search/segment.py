"""Segments of an index that are open for reading.

A document is what a user adds, deletes and finds: one line of text. A row is one vector. If the
index has a splitter, the rows of a document are its windows, each followed by its sentences.
Otherwise a document has one row, which is a window of one sentence.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.mapping import map_file
from fairseq_lxsr.search.lexical import LEXICAL_FILES, Postings
from fairseq_lxsr.search.segment_files import (
    IDS_FILE,
    LANGUAGES_FILE,
    LINES_FILE,
    OFFSETS_FILE,
    PIECE_ENDS_FILE,
    PIECE_TYPE,
    PIECES_FILE,
    ROWS_FILE,
    SENTENCES_FILE,
    SKETCH_FILE,
    VECTORS_FILE,
    file_names,
    map_numbers,
    open_unchanged,
)
from fairseq_lxsr.search.segment_vectors import Mask, SegmentVectors
from fairseq_lxsr.search.window_pieces import WindowPieces, joined_ranges, sentence_rows
from fairseq_lxsr.text.common_words import LABELS
from fairseq_lxsr.vectors import read_index
from fairseq_lxsr.vectors.rows import FloatArray, IntArray


class Segment:
    """A segment that is open for reading.

    All files are opened at once and mapped, so the segment stays readable if they are removed.

    Attributes:
        path: path of the segment folder.
        description: entry of the segment in index.json.
        vectors: the vectors of the rows.
        num_documents: number of documents, including deleted documents.
        num_rows: number of rows.
        languages: number of the language of each document in `common_words.LABELS` [N]; a
            plain index has none.
    """

    def __init__(self, index_path: Path, description: dict[str, Any], config: dict[str, Any]):
        """Open and check the files.

        Args:
            index_path: path of the index.
            description: the entry in index.json.
            config: content of index.json.

        Raises:
            InputError: if a file is missing, changed or of another format.
        """
        self.path = index_path / description["folder"]
        self.description = description
        self.num_documents = description["documents"]
        self.num_rows = description["rows"]
        self._width = config["width"]
        with ExitStack() as stack:
            # Open each file only once, so that the checked file is the one that is read later.
            streams: dict[str, BinaryIO] = {}
            for name in file_names(description, config):
                checksum = description["files"].get(name)
                stored_stamp = description["stamps"].get(name)
                stream = open_unchanged(self.path / name, checksum, stored_stamp)
                streams[name] = stack.enter_context(stream)
            self._opened = {name: os.fstat(stream.fileno()) for name, stream in streams.items()}
            index = read_index(streams[VECTORS_FILE])
            self._offsets = map_numbers(streams[OFFSETS_FILE], (self.num_documents + 1,))
            self._lines = map_numbers(streams[LINES_FILE], (self.num_documents,))
            self._text = map_file(streams[SENTENCES_FILE])
            self._ids: NDArray[np.uint8] | None = None
            if config["ids"]:
                self._ids = map_file(streams[IDS_FILE])
            self._rows: IntArray | None = None
            if not config["plain"]:
                self._rows = map_numbers(streams[ROWS_FILE], (self.num_rows, 3))
                self.languages = self._open_languages(streams[LANGUAGES_FILE])
                self._postings = self._open_postings([streams[name] for name in LEXICAL_FILES])
            sketch = None
            if description["sketch"]:
                sketch = read_index(streams[SKETCH_FILE])
            self._piece_ends: IntArray | None = None
            if description["pieces"]:
                self._piece_ends = map_numbers(streams[PIECE_ENDS_FILE], (self.num_rows,))
                self._pieces = map_file(streams[PIECES_FILE])
        self._check_sizes(index)
        self.vectors = SegmentVectors(index, sketch, self._rows)
        if sketch is not None:
            self._check_sketch(sketch)

    def _check_sizes(self, index: Any) -> None:
        if (index.ntotal, index.d) != (self.num_rows, self._width):
            raise InputError(
                f"{self.path / VECTORS_FILE}: {index.ntotal:,} vectors of width "
                f"{index.d}; expected {self.num_rows:,} of width {self._width}: build the "
                "index again"
            )
        covers_text = self._offsets[0] == 0 and self._offsets[-1] == len(self._text)
        # Every sentence has at least one byte, its newline.
        lengths = np.diff(self._offsets)
        if not covers_text or (lengths < 1).any():
            raise InputError(
                f"{self.path / OFFSETS_FILE}: not the offsets of the sentences in "
                f"{SENTENCES_FILE}; build the index again"
            )
        if self._ids is not None and len(self._id_ends) != self.num_documents:
            raise InputError(
                f"{self.path / IDS_FILE}: {len(self._id_ends):,} ids for {self.num_documents:,} "
                "sentences; build the index again"
            )
        if self._piece_ends is not None:
            self._check_pieces(self._piece_ends)
        if self._rows is not None:
            self._check_rows(self._rows, lengths)
        elif self.num_rows != self.num_documents:
            raise InputError(
                f"{self.path}: {self.num_rows:,} vectors for {self.num_documents:,} "
                "sentences; expected one vector per sentence: build the index again"
            )

    def _check_rows(self, rows: IntArray, lengths: IntArray) -> None:
        documents = rows[:, 0]
        # Every document must have at least one row, and its rows must be consecutive.
        steps = np.diff(documents, prepend=-1, append=self.num_documents)
        is_valid = ((steps == 0) | (steps == 1)).all() and steps[0] == steps[-1] == 1
        if is_valid:
            starts = rows[:, 1]
            stops = rows[:, 2]
            is_valid = ((starts >= 0) & (starts <= stops) & (stops < lengths[documents])).all()
        if not is_valid:
            raise InputError(
                f"{self.path / ROWS_FILE} does not match the {self.num_documents:,} documents; "
                "build the index again"
            )

    def _check_sketch(self, sketch: Any) -> None:
        num_windows = len(self.vectors.window_starts)
        if (sketch.ntotal, sketch.d) != (num_windows, self._width):
            raise InputError(
                f"{self.path / SKETCH_FILE}: {sketch.ntotal:,} vectors of width "
                f"{sketch.d}; expected {num_windows:,} of width {self._width}: build the "
                "index again"
            )

    def _check_pieces(self, ends: IntArray) -> None:
        is_ascending = (np.diff(ends, prepend=0) >= 0).all()
        if not is_ascending or ends[-1] * PIECE_TYPE.itemsize != len(self._pieces):
            raise InputError(
                f"{self.path / PIECE_ENDS_FILE} does not match the {PIECES_FILE} next to it; build "
                "the index again"
            )

    def _open_languages(self, stream: BinaryIO) -> NDArray[np.uint8]:
        # A copy, because another program may overwrite the file.
        languages = np.array(map_numbers(stream, (self.num_documents,), np.uint8))
        if languages.max(initial=0) >= len(LABELS):
            raise InputError(
                f"{stream.name}: language {languages.max()}; expected 0 to {len(LABELS) - 1}: "
                "build the index again"
            )
        return languages

    def _open_postings(self, streams: Sequence[BinaryIO]) -> Postings:
        terms = map_numbers(streams[0], (2, None))
        num_postings = int(terms[1, -1]) if terms.size else 0
        documents = map_numbers(streams[1], (num_postings,), np.int32)
        counts = map_numbers(streams[2], (num_postings,), np.uint16)
        totals = map_numbers(streams[3], (self.num_documents,), np.int32)
        is_ascending = (np.diff(terms[1], prepend=0) > 0).all()
        is_inside = documents.min(initial=0) >= 0 and documents.max(initial=-1) < len(totals)
        if not (is_ascending and is_inside and counts.all() and totals.min(initial=0) >= 0):
            raise InputError(
                f"{streams[0].name} does not match the {self.num_documents:,} documents; build "
                "the index again"
            )
        return Postings(terms, documents, counts, totals)

    @property
    def postings(self) -> Postings:
        """Terms of the documents for BM25; a plain index has none."""
        self._check_not_overwritten(*LEXICAL_FILES)
        return self._postings

    @property
    def files(self) -> list[Path]:
        """Paths of all files of the segment."""
        return [self.path / name for name in self._opened]

    @property
    def current_description(self) -> dict[str, Any]:
        """Entry of the segment in index.json, with the stamps that the files have now.

        In a copy of an index, the stamps in index.json belong to the original.
        """
        stamps = {}
        for name, status in self._opened.items():
            stamps[name] = [status.st_size, status.st_ctime_ns]
        return {**self.description, "stamps": stamps}

    @cached_property
    def ids(self) -> list[str]:
        """Id of each document: the user-defined id, or the one-based line number."""
        if self._ids is None:
            return [str(line + 1) for line in self._lines.tolist()]
        self._check_not_overwritten(IDS_FILE)
        return self._ids.tobytes().decode("utf-8", "replace").split("\n")[:-1]

    def ids_of(self, documents: IntArray) -> Iterator[str]:
        """Yield the ids of selected documents, without reading all ids."""
        for number in documents.tolist():
            if self._ids is None:
                yield str(int(self._lines[number]) + 1)
                continue
            start = self._id_ends[number - 1] + 1 if number else 0
            name = self._ids[start : self._id_ends[number]].tobytes()
            yield name.decode("utf-8", "replace")
        if self._ids is not None:
            self._check_not_overwritten(IDS_FILE)

    @cached_property
    def _id_ends(self) -> IntArray:
        """Position of the newline after each id."""
        return np.flatnonzero(self._ids == ord("\n"))

    def search_vectors(
        self,
        search: Callable[[SegmentVectors, Mask | None], tuple[FloatArray, IntArray]],
        allowed: Mask | None,
    ) -> tuple[FloatArray, IntArray]:
        """Search the vectors, and check that the file is unchanged and valid.

        Args:
            search: a search of the vectors with a mask of documents.
            allowed: mask of the documents that may be found; None for all.

        Returns:
            Cosines and rows, [N, k] each.
        """
        cosines, rows = search(self.vectors, allowed)
        self._check_not_overwritten(VECTORS_FILE)
        largest = rows.max(initial=-1)
        if largest >= self.num_rows:
            raise InputError(
                f"{self.path / VECTORS_FILE} contains row index {largest:,}, but the index "
                f"has only {self.num_rows:,} sentences; build the index again"
            )
        return cosines, rows

    def documents(self, rows: IntArray) -> IntArray:
        """Return the numbers of the documents that contain these rows."""
        return rows if self._rows is None else self._rows[rows, 0]

    def spans(self, rows: IntArray) -> IntArray:
        """Return the start and end byte of each row in the text of its document [n, 2]."""
        if self._rows is not None:
            return self._rows[rows, 1:]
        lengths = self._offsets[rows + 1] - self._offsets[rows] - 1
        return np.stack((np.zeros_like(lengths), lengths), axis=1)

    def window_pieces(self, windows: IntArray) -> WindowPieces | None:
        """Return the word pieces of windows; None if the segment does not store pieces."""
        if self._piece_ends is None:
            return None
        ends = self._piece_ends
        starts, counts = sentence_rows(
            self.vectors.window_starts[windows], self.vectors.window_stops[windows]
        )
        sentences = joined_ranges(starts, counts)
        # The row before the first sentence is that of its window, which has no pieces, or it
        # belongs to the previous window.
        first_pieces = np.where(starts > 0, ends[starts - 1], 0)
        num_pieces = ends[starts + counts - 1] - first_pieces
        lengths = ends[sentences] - np.where(sentences > 0, ends[sentences - 1], 0)
        pieces = joined_ranges(first_pieces, num_pieces)
        ids = self._pieces.view(PIECE_TYPE)[pieces].astype(np.int64)
        self._check_not_overwritten(PIECES_FILE, PIECE_ENDS_FILE)
        return WindowPieces(ids, lengths, counts)

    def sentences(self, documents: IntArray) -> Iterator[tuple[int, bytes]]:
        """Yield each document's zero-based line index in the corpus, and its text with newline."""
        for number in documents.tolist():
            text = self._text[self._offsets[number] : self._offsets[number + 1]].tobytes()
            yield int(self._lines[number]), text
        self._check_not_overwritten(SENTENCES_FILE, OFFSETS_FILE, LINES_FILE)

    def row_pieces(self, rows: IntArray) -> tuple[IntArray, IntArray] | None:
        """Return the word pieces of rows, and their number for each row; None if not stored."""
        if self._piece_ends is None:
            return None
        counts = np.diff(self._piece_ends, prepend=0)[rows]
        pieces = joined_ranges(self._piece_ends[rows] - counts, counts)
        return self._pieces.view(PIECE_TYPE)[pieces].astype(np.int64), counts

    def rows_of(self, documents: IntArray) -> tuple[IntArray, IntArray | None]:
        """Return the row indices of documents, and the argument `rows` of `SegmentWriter.write`.

        Args:
            documents: numbers of the documents, ascending.
        """
        if self._rows is None:
            return documents, None
        rows = np.flatnonzero(np.isin(self._rows[:, 0], documents))
        content = self._rows[rows].copy()
        content[:, 0] = np.searchsorted(documents, content[:, 0])
        return rows, content

    def _check_not_overwritten(self, *names: str) -> None:
        """Reject files that were overwritten in place while they were open, for example by `cp`.

        Replacing files is safe: the old files are still open.
        """
        for name in names:
            path = self.path / name
            before = self._opened[name]
            try:
                now = os.stat(path)
            except OSError:
                # The folder may have been removed.
                continue
            if os.path.samestat(before, now) and _size_and_time(before) != _size_and_time(now):
                raise InputError(
                    f"{path} was overwritten while the index was open; load it again, and "
                    "replace the folder only with `lxsr index` or by renaming"
                )


def _size_and_time(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
