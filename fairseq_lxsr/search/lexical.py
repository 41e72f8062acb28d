"""Lexical search: BM25 (Robertson and Zaragoza 2009) with the bm25s library.

It finds passages that share words with the query, so it helps within a language, and with names and
numbers across languages.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib import metadata

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.characters import combining_marks
from fairseq_lxsr.machine import require
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# Parameters of BM25, with the defaults of Lucene and bm25s.
K1 = 1.5
B = 0.75
# Han, kana, Thai, Lao, Myanmar and Khmer, which are written without spaces.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]+"
)


@cache
def _word() -> re.Pattern[str]:
    r"""Return the pattern of a word.

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
    terms = []
    for word in _word().findall(unicodedata.normalize("NFKC", text).casefold()):
        end = 0
        for match in _UNSPACED.finditer(word):
            terms.append(word[end : match.start()])
            run = match.group()
            terms += [run[start : start + 2] for start in range(max(len(run) - 1, 1))]
            end = match.end()
        terms.append(word[end:])
    return [term for term in terms if term]


def lexical_name() -> str:
    """Return the name and version of the library, for signatures."""
    return f"bm25s-{metadata.version('bm25s')}"


class LexicalIndex:
    """BM25 index of passages, in memory.

        index = LexicalIndex(["A dog barks.", "It rains."])
        scores, rows = index.nearest(["Which dog?"], k=1)

    Args:
        passages: N texts.

    Raises:
        InputError: if bm25s is not installed.
    """

    def __init__(self, passages: Sequence[str]):
        require("bm25s", "hybrid", "lexical search")
        import bm25s

        self._index = bm25s.BM25(k1=K1, b=B)
        self._size = len(passages)
        terms = [words(passage) for passage in passages]
        # bm25s cannot index a collection without any words.
        self._is_empty = not any(terms)
        if not self._is_empty:
            self._index.index(terms, show_progress=False)

    def __len__(self) -> int:
        """Return the number of passages."""
        return self._size

    def nearest(
        self, queries: Sequence[str], k: int, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Find the passages with the highest BM25 score.

        Args:
            queries: Q texts.
            k: number of passages per query.
            allowed: which passages may be found [N]; None for all.

        Returns:
            Scores in descending order, float32 [Q, k], and row indices of the passages [Q, k]; -1
            if no further passage has a word of the query.
        """
        scores = np.zeros((len(queries), k), dtype=np.float32)
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        depth = min(k, self._size)
        for number, query in enumerate(queries):
            terms = words(query)
            if self._is_empty or not terms:
                continue
            all_scores = self._index.get_scores(terms)
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
