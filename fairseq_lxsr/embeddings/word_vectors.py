"""An encoder from word vectors: a sentence embedding combines the vectors of its words."""

import logging
import math
from collections import Counter
from pathlib import Path

import numpy as np

from fairseq_lxsr.embeddings.contract import Text, count_zeros, short_hash
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.options import WORD_WEIGHTS
from fairseq_lxsr.vectors.rows import FloatArray

logger = logging.getLogger(__name__)


class WordVectors:
    """Combines word vectors of a text (.vec) file: an optional header `count width`, then lines
    `word x x ...`.

    Words are split at white space; an unknown word is looked up in lower case. The combination is
    `mean`, `sum`, or `idf`: the mean weighted by log((1 + sentences) / sentences with the word),
    counted in the text to embed.
    """

    def __init__(self, path: str | Path, weights: str = "mean", show_progress: bool = False):
        if weights not in WORD_WEIGHTS:
            raise InputError(f"word weights {weights!r}; expected one of {', '.join(WORD_WEIGHTS)}")
        self.path, self.weights = Path(path), weights
        self.rows, self.vectors = read_word_vectors(self.path, show_progress)
        self.fingerprint = short_hash(sha256(self.path), weights)

    @property
    def width(self) -> int:
        return self.vectors.shape[1]

    def embed(self, text: Text, counts: Counter[str] | None = None) -> FloatArray:
        words = [self._known(line) for line in text.lines]
        sentences_with = Counter(row for sentence in words for row in set(sentence))
        embeddings = np.zeros((len(words), self.vectors.shape[1]), dtype=np.float32)
        for index, sentence in enumerate(words):
            if sentence:
                embeddings[index] = self._combine(sentence, sentences_with, len(words))
        return count_zeros(embeddings, counts)

    def _known(self, line: str) -> list[int]:
        found = (self.rows.get(word, self.rows.get(word.lower())) for word in line.split())
        return [row for row in found if row is not None]

    def _combine(
        self, sentence: list[int], sentences_with: Counter[int], sentences: int
    ) -> FloatArray:
        vectors = self.vectors[sentence]
        if self.weights == "sum":
            return vectors.sum(axis=0)
        if self.weights == "mean":
            return vectors.mean(axis=0)
        # add-one smoothing, so that a word in every sentence keeps some weight
        idf = np.array(
            [math.log((1 + sentences) / sentences_with[row]) for row in sentence], dtype=np.float32
        )
        return (idf[:, None] * vectors).sum(axis=0) / idf.sum()


def read_word_vectors(path: Path, show_progress: bool = False) -> tuple[dict[str, int], FloatArray]:
    """Read words and their vectors [V, D]; of a duplicate word the first vector is kept."""
    rows: dict[str, int] = {}
    vectors: list[FloatArray] = []
    header, words = None, 0
    lines = Progress(
        read_lines(path), desc=path.name, unit=" words", disable=None if show_progress else True
    )
    for number, line in enumerate(lines, start=1):
        fields = line.rstrip().split(" ")
        if number == 1 and len(fields) == 2:
            header = fields
            continue
        words += 1
        word, values = fields[0], fields[1:]
        try:
            with np.errstate(over="ignore"):  # infinity is refused below
                vector = np.array(values, dtype=np.float32)
        except ValueError:
            vector = np.empty(0, dtype=np.float32)
        if (
            not len(vector)
            or (vectors and len(vector) != len(vectors[0]))
            or not np.isfinite(vector).all()
        ):
            width = len(vectors[0]) if vectors else "its"
            raise InputError(
                f"{path}, line {number}: {line!r:.60}; expected a word and {width} numbers"
            )
        if word not in rows:
            rows[word] = len(vectors)
            vectors.append(vector)
    if not vectors:
        raise InputError(f"{path}: no word vectors in it; expected `word x x ...` on every line")
    if header is not None and header != [str(words), str(len(vectors[0]))]:
        logger.warning(
            f"{path}: {words} words of width {len(vectors[0])}, but its first line says {' '.join(header)}"
        )
    return rows, np.stack(vectors)
