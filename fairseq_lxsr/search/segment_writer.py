"""Writes segments of an index: documents and their vectors, in files that never change."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search.documents import Block
from fairseq_lxsr.search.lexical import Postings, accentless_terms, prefixes
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
    checksums_of,
)
from fairseq_lxsr.search.splitting import passage_rows
from fairseq_lxsr.search.window_pieces import (
    PieceEmbedder,
    SplitPieces,
    find_windows,
    joined_ranges,
    sentence_rows,
)
from fairseq_lxsr.text.common_words import LABELS, guess_language
from fairseq_lxsr.vectors import build_index, check_directions, write_index
from fairseq_lxsr.vectors.index import MIN_SKETCH_ROWS, build_sketch
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# Vectors that have not been indexed yet; the file is removed at the end.
RAW_VECTORS_FILE = "vectors.raw"
# Narrower vectors have no sketch if each document has one row: 4 bits a dimension are too coarse
# for them, and comparing all of them is fast.
MIN_SKETCHED_WIDTH = 32
EmbedText = Callable[[Text], np.ndarray]
Mask = NDArray[np.bool_]


class SegmentWriter:
    """Writes a segment into an existing folder.

        with SegmentWriter(folder) as writer:
            writer.embed(block, embed)
            description = writer.finish("flat")

    Args:
        folder: existing output folder, named as in index.json.
        plain: whether each document is a single vector, and words are not stored.

    Attributes:
        folder: existing output folder.
        num_documents: number of documents written so far.
        num_rows: number of rows written so far.
        width: width of the vectors.
    """

    def __init__(self, folder: Path, plain: bool = False):
        self.folder = folder
        self._plain = plain
        self.num_documents = 0
        self.num_rows = 0
        self.width = 0
        # One array per block, because a list of all numbers would slow down every full garbage
        # collection.
        self._lines: list[IntArray] = []
        self._lengths: list[IntArray] = [np.zeros(1, dtype=np.int64)]
        self._rows: list[IntArray] = []
        # Number of word pieces of each row; None if the pieces of any row are unknown.
        self._piece_counts: list[IntArray] | None = None if plain else []
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
        if not self._plain:
            rows, texts = _split(block.sentences)
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

    def finish(self, kind: str, mode: int | None = None) -> dict[str, Any]:
        """Index the vectors, and write the remaining files.

        Args:
            kind: index kind; see `vectors.build_index`.
            mode: permissions of the files; None for the default of the process.

        Returns:
            The entry of the segment in index.json.
        """
        self._files.close()
        raw_file = self.folder / RAW_VECTORS_FILE
        vectors = np.memmap(raw_file, dtype=np.float32, mode="r", shape=(self.num_rows, self.width))
        write_index(build_index(vectors, kind), self.folder / VECTORS_FILE)
        has_sketch = self._write_sketch(vectors, kind)
        # Some systems do not remove a file that is still mapped.
        del vectors
        raw_file.unlink()
        np.save(self.folder / OFFSETS_FILE, np.concatenate(self._lengths).cumsum())
        np.save(self.folder / LINES_FILE, np.concatenate(self._lines))
        if not self._plain:
            np.save(self.folder / ROWS_FILE, np.concatenate(self._rows))
        has_pieces = bool(self._piece_counts)
        if self._piece_counts:
            np.save(self.folder / PIECE_ENDS_FILE, np.concatenate(self._piece_counts).cumsum())
        else:
            (self.folder / PIECES_FILE).unlink(missing_ok=True)
        if not self._plain:
            self._write_words()
        if mode is not None:
            for path in self.folder.iterdir():
                path.chmod(mode)
        return {
            "folder": self.folder.name,
            "kind": kind,
            "documents": self.num_documents,
            "rows": self.num_rows,
            "pieces": has_pieces,
            "sketch": has_sketch,
            **checksums_of(self.folder),
        }

    def _write_words(self) -> None:
        """Write the languages and the terms of the documents."""
        with open(self.folder / SENTENCES_FILE, encoding="utf-8", newline="\n") as stream:
            texts = stream.read().split("\n")[:-1]
        numbers = [LABELS.index(guess_language(text)) for text in texts]
        np.save(self.folder / LANGUAGES_FILE, np.array(numbers, dtype=np.uint8))
        Postings.build(texts, prefixes, accentless_terms).save(self.folder)

    def _write_sketch(self, vectors: FloatArray, kind: str) -> bool:
        """Write the sketch, if the segment needs one; return whether it does."""
        if kind == "flat":
            return False
        if self._plain and self.width < MIN_SKETCHED_WIDTH:
            return False
        rows = np.arange(self.num_rows)
        if not self._plain:
            rows = find_windows(*np.concatenate(self._rows).T)
        if len(rows) < MIN_SKETCH_ROWS:
            return False
        write_index(build_sketch(vectors, rows), self.folder / SKETCH_FILE)
        return True


def _split(sentences: Sequence[str]) -> tuple[IntArray, list[str]]:
    """Return the document, start and end byte of each row [r, 3], and the text of each row."""
    rows = []
    texts = []
    for number, sentence in enumerate(sentences):
        for start, stop in passage_rows(sentence):
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
