"""Segments of an index: documents and their vectors, in files that never change.

A document is what a user adds, deletes and finds: one line of text. A row is one vector. A document
has one row, or several if its index has a splitter.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.mapping import map_file
from fairseq_lxsr.files.open import open_file, sha256, stamp
from fairseq_lxsr.files.records import is_count, open_array
from fairseq_lxsr.search.lexical import LEXICAL_FILES, Postings, prefixes
from fairseq_lxsr.search.splitting import passage_rows
from fairseq_lxsr.search.window_pieces import (
    PieceEmbedder,
    SplitPieces,
    WindowPieces,
    find_windows,
    joined_ranges,
    sentence_rows,
)
from fairseq_lxsr.vectors import (
    build_index,
    check_directions,
    read_index,
    search_index,
    write_index,
)
from fairseq_lxsr.vectors.index import (
    MIN_SKETCH_ROWS,
    FlatIndex,
    build_sketch,
    refine_sketch,
    stored_cosines,
)
from fairseq_lxsr.vectors.rounded import RoundedRows
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, best_first, unit_rows

VECTORS_FILE = "index.faiss"
SENTENCES_FILE = "sentences.txt"
# Byte offset of each sentence in the sentence file, followed by the file size.
OFFSETS_FILE = "offsets.npy"
# Zero-based line index of each sentence in the corpus.
LINES_FILE = "lines.npy"
FILES = (VECTORS_FILE, SENTENCES_FILE, OFFSETS_FILE, LINES_FILE)
# One id per line for each document; absent if the ids are the line numbers.
IDS_FILE = "ids.txt"
# For each row, the index of its document in the segment, and the start and end byte of its text in
# that document [R, 3]; absent if each document has one row.
ROWS_FILE = "rows.npy"
# Dictionary ids of the word pieces of each sentence, and the end of the pieces of each row; absent
# if the model has no word piece vectors.
PIECES_FILE = "pieces.bin"
PIECE_ENDS_FILE = "piece-ends.npy"
PIECE_TYPE = np.dtype("<i4")
# Sketch of the vectors of windows, or of all vectors if each document has one row; absent unless
# the vectors are rounded and many.
SKETCH_FILE = "windows.faiss"
# Kinds with a sketch: those that compare a query with all vectors, which they can return. If each
# document has one row, `binary` has none, because its signs already select candidates.
SKETCHED_KINDS = ("float16", "int8")
SKETCHED_KINDS_OF_WINDOWS = ("float16", "int8", "binary")
# The three files of the terms are absent if the index was built without `hybrid`.
OPTIONAL_FILES = (IDS_FILE, ROWS_FILE, PIECES_FILE, PIECE_ENDS_FILE, SKETCH_FILE, *LEXICAL_FILES)
# Vectors that have not been indexed yet; the file is removed at the end.
RAW_VECTORS_FILE = "vectors.raw"
# Number of rows or windows to find for each window that is ranked.
CANDIDATES_PER_WINDOW = 4
# Number of windows that a sketch finds for each window whose rows are compared.
SKETCHED_PER_CANDIDATE = 2
# Number of rows that a sketch finds if each document has one row: at least SKETCHED, and at least
# SKETCHED_PER_K for each neighbour to return. Recall is then that of a comparison with all rows.
SKETCHED = 400
SKETCHED_PER_K = 6
# Narrower vectors have no sketch if each document has one row: 4 bits a dimension are too coarse
# for them, and comparing all of them is fast.
MIN_SKETCHED_WIDTH = 32
# Number of queries to search with a sketch at a time.
QUERIES_AT_ONCE = 1024
# All rows are compared if the sketch would have to find more than this fraction of them.
LARGEST_SKETCHED_SHARE = 0.25
# All allowed rows are compared if they are less than this fraction of the rows: the sketch cannot
# skip rows, so it would take longer.
SMALLEST_ALLOWED_SHARE = 0.5
# Functions that split a document into the texts of its rows, by their names in index.json. Each
# returns the start and end of each text, in characters.
SPLITTERS: dict[str, Callable[[str], Sequence[tuple[int, int]]]] = {"sentences": passage_rows}

EmbedText = Callable[[Text], np.ndarray]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Block:
    """Documents that are embedded and written together.

    Attributes:
        sentences: texts, each a single line.
        lines: zero-based line index of each sentence in the corpus.
        places: zero-based index of each sentence in the input, for messages.
        ids: id of each sentence; None if the ids are the line numbers.
        next_line: zero-based index of the corpus line after the block.
    """

    sentences: list[str]
    lines: list[int]
    places: list[int]
    ids: list[str] | None
    next_line: int


# -- writing


class SegmentWriter:
    """Writes a segment into an existing folder.

        with SegmentWriter(folder, split=None) as writer:
            writer.embed(block, embed)
            description = writer.finish("flat", None)

    Attributes:
        folder: existing output folder.
        num_documents: number of documents written so far.
        num_rows: number of rows written so far.
        width: width of the vectors.
    """

    def __init__(self, folder: Path, split: str | None = None, hybrid: bool = False):
        self.folder = folder
        self._hybrid = hybrid
        self.num_documents = 0
        self.num_rows = 0
        self._split = SPLITTERS[split] if split else None
        self.width = 0
        # One array per block, because a list of all numbers would slow down every full garbage
        # collection.
        self._lines: list[IntArray] = []
        self._lengths: list[IntArray] = [np.zeros(1, dtype=np.int64)]
        self._rows: list[IntArray] = []
        # Number of word pieces of each row; None if the pieces of any row are unknown.
        self._piece_counts: list[IntArray] | None = [] if split else None
        # First block in which no sentence has a known word.
        self._unknown: tuple[FloatArray, Text] | None = None
        self._files = ExitStack()

    def __enter__(self) -> "SegmentWriter":
        self._texts = self._files.enter_context(open(self.folder / SENTENCES_FILE, "wb"))
        self._vectors = self._files.enter_context(open(self.folder / RAW_VECTORS_FILE, "wb"))
        self._ids: BinaryIO | None = None
        if self._piece_counts is not None:
            self._pieces = self._files.enter_context(open(self.folder / PIECES_FILE, "wb"))
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def embed(self, block: Block, embed: EmbedText) -> Mask:
        """Embed a block and write its documents, except documents without a known word.

        Returns:
            A mask of the documents that were written.
        """
        if not block.sentences:
            return np.empty(0, dtype=bool)
        rows = None
        texts = block.sentences
        places = np.array(block.places)
        if self._split:
            rows, texts = _split(block.sentences, self._split)
            places = places[rows[:, 0]]
        text = Text(texts, rows=places)
        embeddings = np.ascontiguousarray(embed(text), dtype=np.float32)
        check_directions(embeddings, text.where, zeros=True)
        self.width = embeddings.shape[1]
        is_known = np.asarray(embeddings.any(axis=1))
        if not is_known.any():
            self._unknown = self._unknown or (embeddings, text)
        is_written = is_known
        if rows is not None:
            rows = rows[is_known]
            is_written = np.zeros(len(block.sentences), dtype=bool)
            is_written[rows[:, 0]] = True
            # Renumber the remaining documents.
            rows[:, 0] = (is_written.cumsum() - 1)[rows[:, 0]]
        pieces = None
        if rows is not None and isinstance(embed, PieceEmbedder):
            pieces = _split_sentences(rows, list(compress(texts, is_known)), embed.split)
        sentences = [f"{text}\n".encode() for text in compress(block.sentences, is_written)]
        ids = None
        if block.ids is not None:
            ids = list(compress(block.ids, is_written))
        lines = np.array(block.lines, dtype=np.int64)[is_written]
        self.write(embeddings[is_known], sentences, lines, ids, rows, pieces)
        return is_written

    def write(
        self,
        vectors: FloatArray,
        sentences: Sequence[bytes],
        lines: IntArray,
        ids: Sequence[str] | None,
        rows: IntArray | None,
        pieces: tuple[IntArray, IntArray] | None = None,
    ) -> None:
        """Write documents.

        Args:
            vectors: vectors of the rows [r, D].
            sentences: texts of the documents, each with a newline at the end.
            lines: zero-based line index of each document in the corpus.
            ids: ids of the documents; None if the ids are the line numbers.
            rows: document, start and end byte of each row, with documents numbered from 0 [r, 3];
                None if each document has one row.
            pieces: word pieces of the rows, and their number for each row [r]; None if unknown. A
                window with several sentences has none of its own.
        """
        if not sentences:
            return
        self._vectors.write(np.ascontiguousarray(vectors).tobytes())
        self.width = vectors.shape[1]
        self._texts.writelines(sentences)
        self._lengths.append(np.array([len(sentence) for sentence in sentences], dtype=np.int64))
        self._lines.append(lines)
        if ids is not None:
            if self._ids is None:
                stream = open(self.folder / IDS_FILE, "wb")  # noqa: SIM115
                self._ids = self._files.enter_context(stream)
            self._ids.writelines(f"{name}\n".encode() for name in ids)
        if rows is not None:
            self._rows.append(rows + np.array([self.num_documents, 0, 0]))
        self._write_pieces(pieces)
        self.num_documents += len(sentences)
        self.num_rows += len(vectors)

    def _write_pieces(self, pieces: tuple[IntArray, IntArray] | None) -> None:
        if pieces is None:
            self._piece_counts = None
        if pieces is None or self._piece_counts is None:
            return
        ids, counts = pieces
        self._pieces.write(ids.astype(PIECE_TYPE).tobytes())
        self._piece_counts.append(counts)

    def refuse_empty(self) -> None:
        """Raise `InputError` if nothing was written, because there is no text or no known word."""
        if self.num_documents:
            return
        if self._unknown is not None:
            embeddings, text = self._unknown
            # This call raises an error that names the first sentence.
            check_directions(embeddings, text.where)
        raise InputError("no text to index; expected one sentence per line")

    def finish(self, kind: str, lists: int | None, mode: int | None = None) -> dict[str, Any]:
        """Index the vectors, and write the remaining files.

        Args:
            kind: index kind; see `vectors.build_index`.
            lists: number of inverted lists; see `vectors.build_index`.
            mode: permissions of the files; None for the default of the process.

        Returns:
            The entry for `segments` in index.json, without the folder name.
        """
        self._files.close()
        raw_file = self.folder / RAW_VECTORS_FILE
        vectors = np.memmap(raw_file, dtype=np.float32, mode="r", shape=(self.num_rows, self.width))
        write_index(build_index(vectors, kind, lists), self.folder / VECTORS_FILE)
        has_sketch = self._write_sketch(vectors, kind)
        # Some systems do not remove a file that is still mapped.
        del vectors
        raw_file.unlink()
        np.save(self.folder / OFFSETS_FILE, np.concatenate(self._lengths).cumsum())
        np.save(self.folder / LINES_FILE, np.concatenate(self._lines))
        if self._split:
            np.save(self.folder / ROWS_FILE, np.concatenate(self._rows))
        has_pieces = bool(self._piece_counts)
        if self._piece_counts:
            np.save(self.folder / PIECE_ENDS_FILE, np.concatenate(self._piece_counts).cumsum())
        else:
            (self.folder / PIECES_FILE).unlink(missing_ok=True)
        if self._hybrid:
            with open(self.folder / SENTENCES_FILE, encoding="utf-8", newline="\n") as stream:
                Postings.build(stream.read().split("\n")[:-1], prefixes).save(self.folder)
        if mode is not None:
            for path in self.folder.iterdir():
                path.chmod(mode)
        return {
            "kind": kind,
            "documents": self.num_documents,
            "rows": self.num_rows,
            "pieces": has_pieces,
            "sketch": has_sketch,
        }

    def _write_sketch(self, vectors: FloatArray, kind: str) -> bool:
        """Write the sketch, if the segment needs one; return whether it does."""
        kinds = SKETCHED_KINDS_OF_WINDOWS if self._split else SKETCHED_KINDS
        if kind not in kinds:
            return False
        if self._split:
            vectors = vectors[find_windows(*np.concatenate(self._rows).T)]
        elif self.width < MIN_SKETCHED_WIDTH:
            return False
        if len(vectors) < MIN_SKETCH_ROWS:
            return False
        write_index(build_sketch(vectors), self.folder / SKETCH_FILE)
        return True


def _split(
    sentences: Sequence[str], split: Callable[[str], Sequence[tuple[int, int]]]
) -> tuple[IntArray, list[str]]:
    """Return the document, start and end byte of each row [r, 3], and the text of each row."""
    rows = []
    texts = []
    for number, sentence in enumerate(sentences):
        for start, stop in split(sentence):
            first = len(sentence[:start].encode())
            text = sentence[start:stop]
            rows.append((number, first, first + len(text.encode())))
            texts.append(text)
    return np.array(rows, dtype=np.int64).reshape(-1, 3), texts


def _split_sentences(
    rows: IntArray, texts: Sequence[str], split: SplitPieces
) -> tuple[IntArray, IntArray]:
    """Return the word pieces of the sentences among rows, and their number for each row."""
    first_rows = find_windows(*rows.T)
    starts, counts = sentence_rows(first_rows, np.append(first_rows[1:], len(rows)))
    sentences = joined_ranges(starts, counts)
    ids, lengths = split([texts[row] for row in sentences.tolist()])
    counts = np.zeros(len(rows), dtype=np.int64)
    counts[sentences] = lengths
    return ids, counts


# -- reading


def _names_of_files(description: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Return the names of the files of a segment; for the arguments, see `Segment`."""
    names = [*FILES]
    if config["ids"]:
        names.append(IDS_FILE)
    if config["split"]:
        names.append(ROWS_FILE)
    if description.get("pieces"):
        names += [PIECES_FILE, PIECE_ENDS_FILE]
    if description.get("sketch"):
        names.append(SKETCH_FILE)
    if config.get("hybrid"):
        names += LEXICAL_FILES
    return names


class Segment:
    """A segment that is open for reading.

    All files are opened at once and mapped, so the segment stays readable if they are removed.

    Attributes:
        path: path of the segment folder.
        description: entry of the segment in index.json.
        vectors: vector index: a faiss index or a `vectors.index.FlatIndex`.
        num_documents: number of documents, including deleted documents.
        num_rows: number of rows.
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
            for name in _names_of_files(description, config):
                stream = open_unchanged(index_path, file_name(description, name), config)
                streams[name] = stack.enter_context(stream)
            self._opened = {name: os.fstat(stream.fileno()) for name, stream in streams.items()}
            self.vectors = read_index(streams[VECTORS_FILE])
            self._offsets = map_numbers(streams[OFFSETS_FILE], (self.num_documents + 1,))
            self._lines = map_numbers(streams[LINES_FILE], (self.num_documents,))
            self._text = map_file(streams[SENTENCES_FILE])
            self._ids: NDArray[np.uint8] | None = None
            if config["ids"]:
                self._ids = map_file(streams[IDS_FILE])
            self._rows: IntArray | None = None
            if config["split"]:
                self._rows = map_numbers(streams[ROWS_FILE], (self.num_rows, 3))
            self._sketch: Any = None
            if description.get("sketch"):
                self._sketch = read_index(streams[SKETCH_FILE])
            self._piece_ends: IntArray | None = None
            if description.get("pieces"):
                self._piece_ends = map_numbers(streams[PIECE_ENDS_FILE], (self.num_rows,))
                self._pieces = map_file(streams[PIECES_FILE])
            self._postings: Postings | None = None
            if config.get("hybrid"):
                self._postings = self._open_postings([streams[name] for name in LEXICAL_FILES])
        self._check_sizes()
        if self._sketch is not None:
            self._check_sketch()

    def _check_sizes(self) -> None:
        if (self.vectors.ntotal, self.vectors.d) != (self.num_rows, self._width):
            raise InputError(
                f"{self.path / VECTORS_FILE}: {self.vectors.ntotal:,} vectors of width "
                f"{self.vectors.d}; expected {self.num_rows:,} of width {self._width}: build the "
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

    def _check_sketch(self) -> None:
        num_windows = len(self.window_starts)
        if (self._sketch.ntotal, self._sketch.d) != (num_windows, self._width):
            raise InputError(
                f"{self.path / SKETCH_FILE}: {self._sketch.ntotal:,} vectors of width "
                f"{self._sketch.d}; expected {num_windows:,} of width {self._width}: build the "
                "index again"
            )

    def _check_pieces(self, ends: IntArray) -> None:
        is_ascending = (np.diff(ends, prepend=0) >= 0).all()
        if not is_ascending or ends[-1] * PIECE_TYPE.itemsize != len(self._pieces):
            raise InputError(
                f"{self.path / PIECE_ENDS_FILE} does not match the {PIECES_FILE} next to it; build "
                "the index again"
            )

    def _open_postings(self, streams: Sequence[BinaryIO]) -> Postings:
        terms = map_numbers(streams[0], (None, 2))
        num_postings = int(terms[-1, 1]) if len(terms) else 0
        passages = map_numbers(streams[1], (num_postings,), np.int32)
        scores = map_numbers(streams[2], (num_postings,), np.float32)
        is_ascending = (np.diff(terms, axis=0, prepend=0)[:, 1] > 0).all()
        is_inside = passages.min(initial=0) >= 0 and passages.max(initial=-1) < self.num_documents
        if not (is_ascending and is_inside):
            raise InputError(
                f"{streams[0].name} does not match the {self.num_documents:,} documents; build "
                "the index again"
            )
        return Postings(terms, passages, scores, self.num_documents)

    @cached_property
    def postings(self) -> Postings:
        """Terms of the documents for BM25; computed on first use if they are not stored."""
        if self._postings is not None:
            self._check_not_overwritten(*LEXICAL_FILES)
            return self._postings
        texts = self.sentences(np.arange(self.num_documents))
        return Postings.build([text.decode("utf-8", "replace") for _, text in texts], prefixes)

    @property
    def files(self) -> list[Path]:
        """Paths of all files of the segment."""
        return [self.path / name for name in self._opened]

    @property
    def stamps(self) -> dict[str, list[int]]:
        """Map file names to the size and change time that a file had when it was checked."""
        stamps = {}
        for name, status in self._opened.items():
            stamps[file_name(self.description, name)] = [status.st_size, status.st_ctime_ns]
        return stamps

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

    def neighbours(
        self, embeddings: FloatArray, k: int, probes: int, allowed: Mask | None
    ) -> tuple[FloatArray, IntArray]:
        """Find the nearest rows of the segment; see `search_index`.

        Args:
            embeddings: query embeddings [N, D].
            k: number of neighbours, at most the number of rows.
            probes: number of inverted lists to search.
            allowed: mask of the documents that may be found; None for all.

        Returns:
            Cosines and rows, [N, k] each.
        """
        if allowed is not None and self._rows is not None:
            allowed = allowed[self._rows[:, 0]]
        depth = self._sketch_depth(k, allowed)
        if depth:
            parts = []
            # The candidates of many queries would need much memory.
            for start in range(0, max(1, len(embeddings)), QUERIES_AT_ONCE):
                block = embeddings[start : start + QUERIES_AT_ONCE]
                parts.append(self._sketched_neighbours(block, k, depth, allowed))
            cosines, rows = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        else:
            cosines, rows = search_index(self.vectors, embeddings, k, probes, allowed)
        self._check_not_overwritten(VECTORS_FILE)
        largest = rows.max(initial=-1)
        if largest >= self.num_rows:
            raise InputError(
                f"{self.path / VECTORS_FILE} contains row index {largest:,}, but the index "
                f"has only {self.num_rows:,} sentences; build the index again"
            )
        return cosines, rows

    def _sketch_depth(self, k: int, allowed: Mask | None) -> int:
        """Return the number of rows that the sketch should find; 0 to compare all rows."""
        if self._sketch is None or self._rows is not None:
            return 0
        num_allowed = self.num_rows
        if allowed is not None:
            num_allowed = int(np.count_nonzero(allowed))
        if num_allowed < SMALLEST_ALLOWED_SHARE * self.num_rows:
            return 0
        depth = max(SKETCHED, SKETCHED_PER_K * k) * self.num_rows // num_allowed
        return depth if depth <= LARGEST_SKETCHED_SHARE * self.num_rows else 0

    def _sketched_neighbours(
        self, embeddings: FloatArray, k: int, depth: int, allowed: Mask | None
    ) -> tuple[FloatArray, IntArray]:
        """Find the k nearest rows among the `depth` rows that the sketch finds for each query."""
        refined = refine_sketch(self._sketch, self.vectors)
        cosines, rows = search_index(refined, embeddings, depth)
        # Sort by row, so that rows with equal cosines keep their order, as in a flat index.
        order = np.argsort(rows, axis=1)
        cosines = np.take_along_axis(cosines, order, axis=1)
        rows = np.take_along_axis(rows, order, axis=1)
        if allowed is None:
            return best_first(cosines, rows, k)
        is_allowed = allowed[rows] & (rows >= 0)
        cosines[~is_allowed] = -np.inf
        best_cosines, best_rows = best_first(cosines, rows, k)
        # A query may be close to rows that are not allowed, so that the sketch found few others.
        is_short = is_allowed.sum(axis=1) < max(SKETCHED, SKETCHED_PER_K * k) / 2
        if is_short.any():
            best_cosines[is_short], best_rows[is_short] = search_index(
                self.vectors, embeddings[is_short], k, allowed=allowed
            )
        return best_cosines, best_rows

    def documents(self, rows: IntArray) -> IntArray:
        """Return the numbers of the documents that contain these rows."""
        return rows if self._rows is None else self._rows[rows, 0]

    def spans(self, rows: IntArray) -> IntArray:
        """Return the start and end byte of each row in the text of its document [n, 2]."""
        if self._rows is not None:
            return self._rows[rows, 1:]
        lengths = self._offsets[rows + 1] - self._offsets[rows] - 1
        return np.stack((np.zeros_like(lengths), lengths), axis=1)

    @cached_property
    def window_starts(self) -> IntArray:
        """First row of each window of the documents, ascending; see `splitting.passage_rows`.

        The row of a window is followed by the rows of its sentences, which lie inside it.
        """
        if self._rows is None:
            return np.arange(self.num_rows)
        return find_windows(*self._rows.T)

    @cached_property
    def _window_stops(self) -> IntArray:
        """Row after the last row of each window."""
        return np.append(self.window_starts[1:], self.num_rows)

    def window_pieces(self, windows: IntArray) -> WindowPieces | None:
        """Return the word pieces of windows; None if the segment does not store pieces."""
        if self._piece_ends is None:
            return None
        ends = self._piece_ends
        starts, counts = sentence_rows(self.window_starts[windows], self._window_stops[windows])
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

    @cached_property
    def _window_vectors(self) -> RoundedRows:
        """Vectors of the windows alone, rounded in memory."""
        return RoundedRows(self.vectors.rows, self.window_starts)

    def nearest_windows(
        self, embeddings: FloatArray, k: int, probes: int, allowed: Mask | None
    ) -> tuple[FloatArray, IntArray]:
        """Find candidate rows for a ranking of k windows per query.

        The vectors of windows are compared first, exactly in a flat segment, and with the sketch
        in one of rounded vectors. Of the nearest 4 k windows, all rows are compared, and the best
        row is returned. A segment with inverted lists, or of few rounded vectors, compares all
        rows instead. It returns the nearest 4 k rows, of which several may belong to one window.

        Args:
            embeddings: query embeddings [N, D].
            k: number of windows to rank.
            probes: number of inverted lists to search.
            allowed: mask of the documents that may be found; None for all.

        Returns:
            Cosines in descending order, and rows, as `neighbours` does.
        """
        is_flat = isinstance(self.vectors, FlatIndex)
        if not is_flat and self._sketch is None:
            depth = min(CANDIDATES_PER_WINDOW * k, self.num_rows)
            return self.neighbours(embeddings, depth, probes, allowed)
        if allowed is not None and self._rows is not None:
            allowed = allowed[self._rows[self.window_starts, 0]]
        depth = min(CANDIDATES_PER_WINDOW * k, len(self.window_starts))
        units = unit_rows(embeddings)
        if is_flat:
            cosines, windows = self._window_vectors.nearest(units, depth, allowed)
        else:
            cosines, windows = self._sketched_windows(units, depth, allowed)
        rows = np.full(windows.shape, -1)
        for number, windows_of_query in enumerate(windows):
            is_found = windows_of_query >= 0
            best = self._best_rows(windows_of_query[is_found], units[number])
            order = np.argsort(-best[0], kind="stable")
            cosines[number, : len(order)] = best[0][order]
            rows[number, : len(order)] = best[1][order]
        self._check_not_overwritten(VECTORS_FILE)
        return cosines, rows

    def _sketched_windows(
        self, units: FloatArray, k: int, allowed: Mask | None
    ) -> tuple[FloatArray, IntArray]:
        """Find the k windows whose stored vectors are nearest, among those of the sketch."""
        depth = min(SKETCHED_PER_CANDIDATE * k, len(self.window_starts))
        _, windows = search_index(self._sketch, units, depth, allowed=allowed)
        is_found = windows >= 0
        cosines = np.full(windows.shape, -np.inf, dtype=np.float32)
        for number in range(len(windows)):
            rows = self.window_starts[windows[number, is_found[number]]]
            cosines[number, is_found[number]] = stored_cosines(self.vectors, rows, units[number])
        return best_first(cosines, windows, k)

    def _best_rows(self, windows: IntArray, unit: FloatArray) -> tuple[FloatArray, IntArray]:
        """Return the largest cosine of the rows of each window with a query, and its row."""
        if not len(windows):
            return np.empty(0, dtype=np.float32), windows
        first_rows = self.window_starts[windows]
        counts = self._window_stops[windows] - first_rows
        starts = counts.cumsum() - counts
        rows = joined_ranges(first_rows, counts)
        cosines = stored_cosines(self.vectors, rows, unit)
        largest = np.maximum.reduceat(cosines, starts)
        # The first row of each window that has this cosine.
        is_largest = np.flatnonzero(cosines == np.repeat(largest, counts))
        return largest, rows[is_largest[np.searchsorted(is_largest, starts)]]

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


def file_name(description: dict[str, Any], name: str) -> str:
    """Return the name of a segment's file as it appears in index.json."""
    folder = description["folder"]
    return f"{folder}/{name}" if folder else name


def open_unchanged(index_path: Path, name: str, config: dict[str, Any]) -> BinaryIO:
    """Open a file, and check its SHA-256 against index.json.

    Hashing takes longer than a search, so a file is hashed only if its size or change time has
    changed.

    Args:
        index_path: path of the index.
        name: name of the file in index.json.
        config: content of index.json.

    Raises:
        InputError: if the file is missing or changed.
    """
    path = index_path / name
    stamps = config.get("stamps")
    stored_stamp = stamps.get(name) if isinstance(stamps, dict) else None
    with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
        stream = open_file(path)
        if stamp(stream) == stored_stamp:
            return stream
        if sha256(stream) == config["files"].get(name):
            return stream
        stream.close()
    raise InputError(f"{path}: missing or changed since the index was built; build it again")


def map_numbers(
    stream: BinaryIO, shape: tuple[int | None, ...], dtype: type[np.generic] = np.int64
) -> np.ndarray:
    """Memory-map a stored array of numbers.

    Args:
        stream: open .npy file.
        shape: expected shape; None for an axis of any length.
        dtype: expected type.

    Raises:
        InputError: if the file does not contain such an array.
    """
    try:
        array = open_array(stream)
    except ValueError as error:
        raise InputError(
            f"{stream.name}: not a .npy file of numbers ({error}); build the index again"
        ) from None
    is_expected = array.ndim == len(shape) and array.dtype == dtype
    if is_expected:
        pairs = zip(array.shape, shape, strict=True)
        is_expected = all(expected in (None, size) for size, expected in pairs)
    if not is_expected:
        raise InputError(
            f"{stream.name} contains {array.dtype} of shape {array.shape}; expected "
            f"{np.dtype(dtype)} of shape {shape}: build the index again"
        )
    return array


def check_description(description: Any) -> None:
    """Check the types of a segment in index.json.

    Raises:
        TypeError: if a field has the wrong type.
        KeyError: if a field is missing.
    """
    for name, expected in (("folder", str), ("kind", str)):
        if type(description[name]) is not expected:
            raise TypeError(f"invalid {name}: {description[name]!r:.40}")
    for name in ("pieces", "sketch"):
        if type(description.get(name, False)) is not bool:
            raise TypeError(f"invalid {name}: {description[name]!r:.40}")
    for name in ("documents", "rows"):
        if not is_count(description[name]) or not description[name]:
            raise TypeError(f"invalid {name}: {description[name]!r:.40}")
