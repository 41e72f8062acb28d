"""Lexical search: BM25 (Robertson and Zaragoza 2009).

It finds documents that share words with the query, so it helps within a language, and with names
and numbers across languages. The files of a segment contain the frequency of each term in each
document. Weights are computed by a search, because they depend on all segments and on the documents
that are deleted. Libraries such as bm25s store weights that are final.
"""

import hashlib
import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.characters import combining_marks, without_marks
from fairseq_lxsr.text.folding import fold
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# Parameters of BM25, with the usual values (those of bm25s).
K1 = 1.5
B = 0.75
# Han, kana, Thai, Lao, Myanmar and Khmer, which are written without spaces.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]+"
)

# Number of letters of a word that an index compares.
PREFIX = 5
# Sign before a term of an index whose accents were removed, and the weight of such a match.
WITHOUT_ACCENTS = "~"
ACCENT_WEIGHT = 0.5
_ACCENTED = re.compile("[\u00c0-\u024f\u1e00-\u1eff]")
# Letters whose strokes are not combining marks in Unicode.
_STROKES = str.maketrans("\u0111\u0142\u00f8\u0127\u0167", "dloht")
# A term's share of the documents of a language is averaged with that of this number of documents
# of the whole collection.
FEW_DOCUMENTS = 5
# The Arabic article, also after a preposition or a conjunction.
_ARTICLE = re.compile("^[\u0648\u0641\u0628\u0643\u0644]?(?:\u0627\u0644|\u0644\u0644)(?=\\w\\w)")
# Files with the arrays of `Postings`.
LEXICAL_FILES = ("terms.npy", "term-documents.npy", "term-counts.npy", "term-totals.npy")
# Largest frequency of a term in a document that is stored.
LARGEST_COUNT = np.iinfo(np.uint16).max

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
        The words in lower case, with letters folded as in `text.folding`. Text in a script without
        spaces is split into pairs of adjacent characters.
    """
    text = unicodedata.normalize("NFKC", without_marks(text)).casefold()
    if not text.isascii():
        # A Turkish capital I with a dot becomes i and a mark.
        text = fold(text.replace("i\u0307", "i"))
    if not UNSPACED.search(text):
        return _word().findall(text)
    terms = []
    for word in _word().findall(text):
        end = 0
        for match in UNSPACED.finditer(word):
            terms.append(word[end : match.start()])
            run = match.group()
            terms += [run[start : start + 2] for start in range(max(len(run) - 1, 1))]
            end = match.end()
        terms.append(word[end:])
    return [term for term in terms if term]


def prefixes(text: str) -> list[str]:
    """Return the first five letters of each word of a text, as terms of an index.

    The forms of a word then match in most languages, for example `Hunde` and `Hundes`. This needs
    no list of endings, and the language may be unknown. Arabic words lose their article. Words with
    digits, such as numbers and codes, are kept whole.

        prefixes("Abends bellen 101 Hunde.")  # ["abend", "belle", "101", "hunde"]

    Args:
        text: text in any language.
    """
    return [_prefix(word) for word in words(text)]


# Words repeat, so looking them up is faster than cutting them again.
@lru_cache(maxsize=1 << 16)
def _prefix(word: str) -> str:
    if any(map(str.isdigit, word)):
        return word
    return _ARTICLE.sub("", word)[:PREFIX]


def accentless_terms(terms: Sequence[str]) -> list[str]:
    """Return the terms of an index that stand for terms with accents.

        accentless_terms(["où", "est"])  # ["~ou"]

    Such a term begins with a sign, so that it is only found by `query_forms`.
    """
    plain_terms = []
    for term in terms:
        if not term.isascii():
            plain_term = without_accents(term)
            if plain_term != term:
                plain_terms.append(f"{WITHOUT_ACCENTS}{plain_term}")
    return plain_terms


def query_forms(term: str) -> list[tuple[str, float]]:
    """Return the terms of an index that match a term of a query, each with its weight.

    A term with accents also matches the same letters without them, and the other way round, because
    people often type without accents.

        query_forms("où")  # [("où", 1.0), ("ou", 0.5)]
        query_forms("ou")  # [("ou", 1.0), ("~ou", 0.5)]
    """
    plain_term = without_accents(term)
    if plain_term == term:
        plain_term = f"{WITHOUT_ACCENTS}{term}"
    return [(term, 1.0), (plain_term, ACCENT_WEIGHT)]


@lru_cache(maxsize=1 << 16)
def without_accents(word: str) -> str:
    """Return a word without the accents of Latin letters.

    without_accents("trắng")  # "trang"
    """
    if word.isascii() or not _ACCENTED.search(word):
        return word
    letters = unicodedata.normalize("NFD", word.translate(_STROKES))
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


@dataclass(frozen=True)
class Postings:
    """The terms of some documents, and their frequencies.

        postings = Postings.build(["A dog barks.", "It rains."])
        postings.save(folder)

    Attributes:
        terms: hash of each term, ascending, and the end of its postings, int64 [2, T].
        documents: document of each posting, ascending for each term, int32 [P].
        counts: frequency of the term in the document of each posting, uint16 [P].
        totals: number of words of each document, int32 [N].
    """

    terms: IntArray
    documents: NDArray[np.int32]
    counts: NDArray[np.uint16]
    totals: NDArray[np.int32]

    @classmethod
    def build(
        cls,
        documents: Sequence[str],
        split: SplitTerms = words,
        more: Callable[[Sequence[str]], list[str]] | None = None,
    ) -> "Postings":
        """Count the terms of documents.

        Args:
            documents: N texts.
            split: splits a text into terms.
            more: returns further terms of a document, which its length leaves out.
        """
        hashes: dict[str, int] = {}
        # An array, because a list of as many numbers would need five times the memory.
        hashes_of_terms = array("q")
        totals = np.zeros(len(documents), dtype=np.int32)
        sizes = np.zeros(len(documents), dtype=np.int64)
        for number, text in enumerate(documents):
            terms = split(text)
            totals[number] = len(terms)
            if more:
                terms += more(terms)
            sizes[number] = len(terms)
            for term in terms:
                if term not in hashes:
                    hashes[term] = hash_term(term)
                hashes_of_terms.append(hashes[term])
        numbers = np.repeat(np.arange(len(documents), dtype=np.int32), sizes)
        keys = np.frombuffer(hashes_of_terms, dtype=np.int64)
        order = np.lexsort((numbers, keys))
        keys = keys[order]
        numbers = numbers[order]
        # A posting starts where the term or the document changes.
        is_first = np.ones(len(keys), dtype=bool)
        is_first[1:] = (keys[1:] != keys[:-1]) | (numbers[1:] != numbers[:-1])
        starts = np.flatnonzero(is_first)
        counts = np.diff(starts, append=len(keys)).clip(max=LARGEST_COUNT)
        distinct_keys, sizes = np.unique(keys[starts], return_counts=True)
        return cls(
            np.stack((distinct_keys, sizes.cumsum())),
            numbers[starts],
            counts.astype(np.uint16),
            totals,
        )

    def save(self, folder: Path) -> None:
        """Write the files of `LEXICAL_FILES`."""
        arrays: list[NDArray[Any]] = [self.terms, self.documents, self.counts, self.totals]
        for name, values in zip(LEXICAL_FILES, arrays, strict=True):
            np.save(folder / name, values)

    def range_of(self, term_hash: int) -> slice:
        """Return the range of the postings of a term, which may be empty.

        Args:
            term_hash: hash of the term, see `hash_term`.
        """
        hashes, ends = self.terms
        number = int(np.searchsorted(hashes, term_hash))
        if number == len(hashes) or hashes[number] != term_hash:
            return slice(0, 0)
        start = int(ends[number - 1]) if number else 0
        return slice(start, int(ends[number]))


@dataclass(frozen=True)
class WordMatches:
    """Documents that share words with a query, best first.

    Attributes:
        documents: numbers of the documents, at most k.
        scores: mean BM25 score of a term of the query in each document.
        shares: weight of the terms that each document has, as a share of the weight of all terms
            of the query, from 0 to 1.
        codes: the same share of the terms with digits alone, times how rare these are, from 0 to 1.
    """

    documents: IntArray
    scores: FloatArray
    shares: FloatArray
    codes: FloatArray


class LexicalIndex:
    """Searches documents with BM25.

        index = LexicalIndex([Postings.build(["A dog barks.", "It rains."])])
        index.nearest("Which dog?", k=1).documents  # [0]

    The weight of a term, and the mean length of documents, are those of all segments without the
    deleted documents. So the scores do not depend on how documents are divided into segments. A
    frequent word of one language is rare in a collection of several languages. Its weight therefore
    depends on its share of the documents in that language in which it is most frequent.

    Args:
        parts: postings of each segment; the documents of all segments are numbered consecutively.
        split: splits a query into terms.
        forms: returns the terms of the postings that match a term of a query, and their weights.
        is_alive: mask of the documents that are not deleted [N]; None if none is deleted.
        languages: number of the language of each document [N]; None for one language.
    """

    def __init__(
        self,
        parts: Sequence[Postings],
        split: SplitTerms = words,
        forms: Callable[[str], list[tuple[str, float]]] | None = None,
        is_alive: NDArray[np.bool_] | None = None,
        languages: IntArray | None = None,
    ):
        self._parts = parts
        self._split = split
        self._forms = forms or (lambda term: [(term, 1.0)])
        self._is_alive = is_alive
        totals = np.concatenate([part.totals for part in parts])
        self._languages = np.zeros(len(totals), dtype=np.int64) if languages is None else languages
        alive_totals = totals
        alive_languages = self._languages
        if is_alive is not None:
            alive_totals = totals[is_alive]
            alive_languages = alive_languages[is_alive]
        self._num_alive = len(alive_totals)
        self._language_sizes = np.bincount(alive_languages)
        mean = max(alive_totals.mean() if self._num_alive else 0.0, 1.0)
        # The denominator of BM25 without the frequency of the term [N].
        self._norms = (K1 * (1 - B + B * totals / mean)).astype(np.float32)

    def __len__(self) -> int:
        """Return the number of documents, including deleted documents."""
        return len(self._norms)

    def nearest(self, query: str, k: int, allowed: NDArray[np.bool_] | None = None) -> WordMatches:
        """Find the k documents with the highest BM25 scores.

        Args:
            query: a text.
            k: number of documents.
            allowed: mask of the documents to search [N]; None for all that are not deleted.
        """
        if allowed is None:
            allowed = self._is_alive
        scores, shares, codes = self._compare(query)
        if allowed is not None:
            scores = np.where(allowed, scores, 0)
        positive = np.flatnonzero(scores > 0)
        if len(positive) > k:
            # Of equal documents, the first are kept.
            kth = np.partition(scores[positive], len(positive) - k)[-k]
            positive = positive[scores[positive] >= kth]
        documents = positive[np.argsort(-scores[positive], kind="stable")][:k]
        return WordMatches(documents, scores[documents], shares[documents], codes[documents])

    def _compare(self, query: str) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the scores, shares and codes of all documents [N]; see `WordMatches`."""
        scores = np.zeros(len(self), dtype=np.float32)
        shares = np.zeros(len(self), dtype=np.float32)
        codes = np.zeros(len(self), dtype=np.float32)
        total = 0.0
        num_codes = 0
        terms = Counter(self._split(query))
        for term, repetitions in terms.items():
            # The first form is the term itself. Others do not change the weight of all terms.
            documents, weight = self._add_form(term, repetitions, scores, shares)
            total += weight
            for form, factor in self._forms(term)[1:]:
                self._add_form(form, factor * repetitions, scores, shares)
            if any(map(str.isdigit, term)):
                num_codes += 1
                codes[documents] += np.float32(weight)
        shares = np.minimum(shares / np.float32(max(total, 1e-9)), 1)
        # Divided by the weight of terms that occur nowhere, the largest.
        codes /= np.float32(max(num_codes, 1) * self._weight(np.empty(0, dtype=np.int64)))
        return scores / max(terms.total(), 1), shares, codes

    def _add_form(
        self, form: str, factor: float, scores: FloatArray, shares: FloatArray
    ) -> tuple[IntArray, float]:
        """Add a term of the postings to the scores and shares [N].

        Returns:
            The documents with the term, and its weight.
        """
        documents, counts = self._postings(form)
        weight = self._weight(documents)
        if len(documents):
            gains = np.float32(factor * weight) * counts / (counts + self._norms[documents])
            scores[documents] += gains
            shares[documents] += np.float32(min(factor, 1.0) * weight)
        return documents, weight

    def _postings(self, term: str) -> tuple[IntArray, FloatArray]:
        """Return the documents with a term, and its frequency in each of them."""
        documents = []
        counts = []
        first = 0
        term_hash = hash_term(term)
        for part in self._parts:
            places = part.range_of(term_hash)
            if places.stop > places.start:
                documents.append(part.documents[places] + first)
                counts.append(part.counts[places].astype(np.float32))
            first += len(part.totals)
        if len(documents) == 1:
            return documents[0].astype(np.int64), counts[0]
        if not documents:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        return np.concatenate(documents), np.concatenate(counts)

    def _weight(self, documents: IntArray) -> float:
        """Return the weight of a term that occurs in these documents, as in Lucene."""
        if not len(documents):
            return math.log(2 + 2 * self._num_alive)
        if self._is_alive is not None:
            documents = documents[self._is_alive[documents]]
        total = max(self._num_alive, 1)
        share = len(documents) / total
        if np.count_nonzero(self._language_sizes) > 1:
            counts = np.bincount(self._languages[documents], minlength=len(self._language_sizes))
            # Languages of few documents count almost as the whole collection.
            shares = (counts + FEW_DOCUMENTS * share) / (self._language_sizes + FEW_DOCUMENTS)
            share = float(shares.max(initial=share))
        half = 0.5 / total
        return math.log(1 + (1 - share + half) / (share + half))


@lru_cache(maxsize=1 << 16)
def hash_term(term: str) -> int:
    """Return a hash of a term, which fits into int64."""
    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
