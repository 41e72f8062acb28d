"""An encoder based on word vectors: a sentence embedding combines the vectors of its words."""

import logging
import math
from collections import Counter
from pathlib import Path

import numpy as np

from fairseq_lxsr.embeddings.contract import Text, count_zeros, short_hash
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import count_lines, read_lines
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.options import WORD_WEIGHTS
from fairseq_lxsr.vectors.rows import FloatArray

logger = logging.getLogger(__name__)


class WordVectors:
    """Combines the vectors of the words in a sentence.

        encoder = WordVectors("wiki.en.vec", "idf")
        encoder.embed(Text(["A dog runs."]))

    Sentences are split into words at whitespace. An unknown word is looked up in lower case.

    Args:
        path: a text file (.vec) with lines `word x x ...`, after an optional header `count width`.
        weights: `mean`, `sum`, or `idf`, which is the mean weighted by log((1 + sentences) /
            sentences with the word), counted in the text to embed.
        show_progress: whether to show a progress bar while the file is read.

    Raises:
        InputError: if the weights are unknown, or the file does not contain word vectors.
    """

    def __init__(self, path: str | Path, weights: str = "mean", show_progress: bool = False):
        if weights not in WORD_WEIGHTS:
            raise InputError(
                f"invalid word weights {weights!r}; choose from {', '.join(WORD_WEIGHTS)}"
            )
        self.path = Path(path)
        self.weights = weights
        self.rows, self.vectors = read_word_vectors(self.path, show_progress)
        self.fingerprint = short_hash(sha256(self.path), weights)

    @property
    def width(self) -> int:
        return self.vectors.shape[1]

    def embed(self, text: Text, counts: Counter[str] | None = None) -> FloatArray:
        sentences = [self._known_words(line) for line in text.lines]
        sentences_with: Counter[int] = Counter()
        for sentence in sentences:
            sentences_with.update(set(sentence))
        embeddings = np.zeros((len(sentences), self.vectors.shape[1]), dtype=np.float32)
        for index, sentence in enumerate(sentences):
            if sentence:
                embeddings[index] = self._combine(sentence, sentences_with, len(sentences))
        return count_zeros(embeddings, counts)

    def _known_words(self, line: str) -> list[int]:
        """Return the row index of each word in a line; words without a vector are skipped."""
        rows = (self.rows.get(word, self.rows.get(word.lower())) for word in line.split())
        return [row for row in rows if row is not None]

    def _combine(
        self, sentence: list[int], sentences_with: Counter[int], sentence_count: int
    ) -> FloatArray:
        vectors = self.vectors[sentence]
        if self.weights == "sum":
            return vectors.sum(axis=0)
        if self.weights == "mean":
            return vectors.mean(axis=0)
        # With add-one smoothing, a word that occurs in every sentence keeps some weight.
        idf = np.array(
            [math.log((1 + sentence_count) / sentences_with[row]) for row in sentence],
            dtype=np.float32,
        )
        return (idf[:, None] * vectors).sum(axis=0) / idf.sum()


def read_word_vectors(path: Path, show_progress: bool = False) -> tuple[dict[str, int], FloatArray]:
    """Read the words and vectors of a text file.

    Args:
        path: word vector file; see `WordVectors`.
        show_progress: whether to show a progress bar.

    Returns:
        The row index of each word, and the vectors [V, D]. For a repeated word, the first vector is
        used.

    Raises:
        InputError: if a line is invalid, or the file contains no vectors.
    """
    rows: dict[str, int] = {}
    vectors: list[FloatArray] = []
    header: list[str] | None = None
    word_count = 0
    width: int | None = None
    lines = Progress(
        read_lines(path),
        total=count_lines(path),
        desc=path.name,
        unit=" words",
        disable=not show_progress,
    )
    for number, line in enumerate(lines, start=1):
        fields = line.rstrip().split(" ")
        if number == 1 and len(fields) == 2:
            header = fields
            continue
        word_count += 1
        vector = _parse_vector(fields[1:], width)
        if vector is None:
            raise InputError(
                f"{path}, line {number}: invalid line {line!r:.60}; expected a word and "
                f"{width or 'its'} numbers"
            )
        width = len(vector)
        word = fields[0]
        if word not in rows:
            rows[word] = len(vectors)
            vectors.append(vector)
    if not vectors:
        raise InputError(f"{path}: no word vectors; expected lines `word x x ...`")
    if header is not None:
        _check_header(path, header, word_count, width)
    return rows, np.stack(vectors)


def _check_header(path: Path, header: list[str], word_count: int, width: int | None) -> None:
    """Warn if the header does not state the number of words and their width."""
    if header != [str(word_count), str(width)]:
        logger.warning(
            f"{path} contains {word_count} words of width {width}, but its header says "
            f"{' '.join(header)}; "
            "the file may be incomplete"
        )


def _parse_vector(values: list[str], width: int | None) -> FloatArray | None:
    """Parse the vector of a word, or return None if it does not have `width` finite numbers."""
    try:
        # The check below rejects numbers that overflow to infinity.
        with np.errstate(over="ignore"):
            vector = np.array(values, dtype=np.float32)
    except ValueError:
        return None
    if not len(vector) or not np.isfinite(vector).all():
        return None
    if width is not None and len(vector) != width:
        return None
    return vector
