"""Lexical search: BM25 (Robertson and Zaragoza 2009) with the bm25s library.

It finds passages that share words with the query, so it helps within a language, and with names and
numbers across languages.
"""

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.characters import combining_marks
from fairseq_lxsr.machine import require
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# Parameters of BM25, with the default values of bm25s.
K1 = 1.5
B = 0.75
# Han, kana, Thai, Lao, Myanmar and Khmer, which are written without spaces.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]+"
)

# Number of letters of a word that hybrid search compares.
PREFIX = 5
# The Arabic article, also after a preposition or a conjunction.
_ARTICLE = re.compile("^[\u0648\u0641\u0628\u0643\u0644]?(?:\u0627\u0644|\u0644\u0644)(?=\\w\\w)")
# Files with the terms, passages and scores of `Postings`.
LEXICAL_FILES = ("terms.npy", "term-passages.npy", "term-scores.npy")

# Splits a text into the terms that BM25 compares.
SplitTerms = Callable[[str], list[str]]


@cache
def _word() -> re.Pattern[str]:
    r"""Return a pattern that matches a word.

    Marks, such as Hindi vowel signs, belong to words, but `\w` does not match them.
    """
    return re.compile(rf"[\w{combining_marks()}]+")


def words(text: str) -> list[str]:
    """Split a text into the terms that BM25 compares.

        words("Der Hund bellt.")  # ["der", "hund", "bellt"]
        words("下雨了")  # ["下雨", "雨了"]

    Args:
        text: text in any language.

    Returns:
        The words in lower case. Text in a script without spaces is split into pairs of adjacent
        characters.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    if not _UNSPACED.search(text):
        return _word().findall(text)
    terms = []
    for word in _word().findall(text):
        end = 0
        for match in _UNSPACED.finditer(word):
            terms.append(word[end : match.start()])
            run = match.group()
            terms += [run[start : start + 2] for start in range(max(len(run) - 1, 1))]
            end = match.end()
        terms.append(word[end:])
    return [term for term in terms if term]


def prefixes(text: str) -> list[str]:
    """Return the first five letters of each word of a text, as terms of a hybrid search.

    The forms of a word then match in most languages, for example `Hunde` and `Hundes`. This needs
    no list of endings, and the language may be unknown. Arabic words lose their article.

        prefixes("Abends bellen Hunde.")  # ["abend", "belle", "hunde"]

    Args:
        text: text in any language.
    """
    return [_ARTICLE.sub("", word)[:PREFIX] for word in words(text)]


def check_lexical() -> None:
    """Raise `InputError` if the library that computes postings is not installed."""
    require("bm25s", "hybrid", "lexical search")


def lexical_name() -> str:
    """Return the name and version of the library, for signatures."""
    return f"bm25s-{metadata.version('bm25s')}"


class Postings:
    """The terms of some passages, and the BM25 score of each term in each passage.

        postings = Postings.build(["A dog barks.", "It rains."])
        postings.save(folder)

    Attributes:
        terms: hash of each term, ascending, and the end of its postings, int64 [T, 2].
        passages: index of the passage of each posting, int32 [P].
        scores: BM25 score of each posting, float32 [P].
        num_passages: number of passages.
    """

    def __init__(
        self,
        terms: IntArray,
        passages: NDArray[np.int32],
        scores: FloatArray,
        num_passages: int,
    ):
        self.terms = terms
        self.passages = passages
        self.scores = scores
        self.num_passages = num_passages

    @classmethod
    def build(cls, passages: Sequence[str], split: SplitTerms = words) -> "Postings":
        """Compute the postings of passages.

        Args:
            passages: N texts.
            split: splits a text into terms.

        Raises:
            InputError: if bm25s is not installed.
        """
        check_lexical()
        import bm25s

        numbers: dict[str, int] = {}
        ids = [
            [numbers.setdefault(term, len(numbers)) for term in split(passage)]
            for passage in passages
        ]
        # bm25s cannot index a collection without any words.
        if not numbers:
            empty = np.empty(0)
            return cls(
                np.empty((0, 2), dtype=np.int64),
                empty.astype(np.int32),
                empty.astype(np.float32),
                len(passages),
            )
        index = bm25s.BM25(k1=K1, b=B)
        index.index((ids, numbers), create_empty_token=False, show_progress=False)
        hashes = np.array([_term_hash(term) for term in numbers])
        order = hashes.argsort()
        starts = index.scores["indptr"][order].astype(np.int64)
        counts = index.scores["indptr"][order + 1] - starts
        ends = counts.cumsum()
        # Sort the postings by the hashes of their terms.
        sources = np.arange(ends[-1]) + np.repeat(starts - (ends - counts), counts)
        return cls(
            np.stack((hashes[order], ends), axis=1),
            index.scores["indices"][sources].astype(np.int32),
            index.scores["data"][sources].astype(np.float32),
            len(passages),
        )

    def save(self, folder: Path) -> None:
        """Write the files of `LEXICAL_FILES`."""
        arrays: list[NDArray[Any]] = [self.terms, self.passages, self.scores]
        for name, array in zip(LEXICAL_FILES, arrays, strict=True):
            np.save(folder / name, array)

    def range_of(self, term: str) -> slice:
        """Return the range of the postings of a term, which may be empty."""
        number = int(np.searchsorted(self.terms[:, 0], _term_hash(term)))
        if number == len(self.terms) or self.terms[number, 0] != _term_hash(term):
            return slice(0, 0)
        start = int(self.terms[number - 1, 1]) if number else 0
        return slice(start, int(self.terms[number, 1]))


class LexicalIndex:
    """Searches passages with BM25.

        index = LexicalIndex([Postings.build(["A dog barks.", "It rains."])])
        scores, rows = index.nearest(["Which dog?"], k=1)

    Each segment of an index has separate postings. The weight of a term depends on its frequency in
    all segments, whereas the mean length of passages is computed for each segment.

    Args:
        parts: postings of each segment; the passages of all segments are numbered consecutively.
        split: splits a query into terms, as for the postings.
    """

    def __init__(self, parts: Sequence[Postings], split: SplitTerms = words):
        self._parts = parts
        self._split = split
        self._size = sum(part.num_passages for part in parts)

    def __len__(self) -> int:
        """Return the number of passages."""
        return self._size

    def nearest(
        self, queries: Sequence[str], k: int, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Find the passages with the highest BM25 scores.

        Args:
            queries: Q texts.
            k: number of passages per query.
            allowed: mask of the passages to search [N]; None for all.

        Returns:
            Scores in descending order, float32 [Q, k], and row indices of the passages [Q, k]. If
            fewer passages share a term with the query, the last scores are 0 and the last indices
            -1. A score is the sum over the terms of the query.
        """
        scores = np.zeros((len(queries), k), dtype=np.float32)
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        depth = min(k, self._size)
        for number, query in enumerate(queries):
            all_scores = self._scores(query)
            if allowed is not None:
                all_scores = np.where(allowed, all_scores, 0)
            positive = np.flatnonzero(all_scores > 0)
            if len(positive) > depth:
                largest = np.argpartition(-all_scores[positive], depth - 1)[:depth]
                positive = np.sort(positive[largest])
            best = positive[np.argsort(-all_scores[positive], kind="stable")]
            scores[number, : len(best)] = all_scores[best]
            rows[number, : len(best)] = best
        return scores, rows

    def _scores(self, query: str) -> FloatArray:
        """Return the BM25 score of each passage [N]."""
        scores = np.zeros(self._size, dtype=np.float32)
        for term, repetitions in Counter(self._split(query)).items():
            ranges = [part.range_of(term) for part in self._parts]
            frequency = sum(places.stop - places.start for places in ranges)
            first = 0
            for part, places in zip(self._parts, ranges, strict=True):
                if places.stop > places.start:
                    factor = repetitions * _idf(self._size, frequency)
                    factor /= _idf(part.num_passages, places.stop - places.start)
                    inside = scores[first : first + part.num_passages]
                    inside[part.passages[places]] += np.float32(factor) * part.scores[places]
                first += part.num_passages
        return scores


def _idf(num_passages: int, frequency: int) -> float:
    """Return the weight of a term that occurs in `frequency` passages, as in Lucene."""
    return math.log(1 + (num_passages - frequency + 0.5) / (frequency + 0.5))


def _term_hash(term: str) -> int:
    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
