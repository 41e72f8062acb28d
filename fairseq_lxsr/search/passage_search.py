"""Searches an index of passages for the passages that best match a query."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fairseq_lxsr.search.index_folder import IndexFolder
from fairseq_lxsr.search.lexical import prefixes
from fairseq_lxsr.search.passages import (
    LEXICAL_WEIGHT,
    PASSAGE_DEPTH,
    Candidate,
    PassageRanker,
    Ranked,
)
from fairseq_lxsr.search.segment import Mask
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# Number of windows to rank in each passage that only lexical search finds.
LEXICAL_WINDOWS = 8


@dataclass(frozen=True)
class PassageHit:
    """A passage found by a search.

    Attributes:
        score: score of its best window.
        document: number of the passage.
        match: the sentence that matched best.
    """

    score: float
    document: int
    match: str


@dataclass(frozen=True, slots=True)
class Nearest:
    """A window near a query.

    Attributes:
        number: number of the window.
        cosine: largest cosine of its rows.
        row: the row with this cosine.
    """

    number: int
    cosine: float
    row: int


class PassageSearch:
    """Searches the passages of an open index.

        hits = PassageSearch(stored, ranker).search(queries, embeddings, k=5, probes=32)

    Args:
        stored: an index whose documents are split into rows.
        ranker: scores windows; None ranks them by cosine similarity.
    """

    def __init__(self, stored: IndexFolder, ranker: PassageRanker | None):
        self._stored = stored
        self._ranker = ranker
        # Sentences of each window that was read, keyed by the number of the window.
        self._sentences: dict[int, list[str]] = {}

    def search(
        self,
        queries: Sequence[str],
        embeddings: FloatArray,
        k: int,
        probes: int,
        allowed: Mask | None = None,
        hybrid: bool = False,
    ) -> list[list[PassageHit]]:
        """Find the k best passages of each query.

        Args:
            queries: N queries.
            embeddings: embeddings of the queries [N, D].
            k: number of passages.
            probes: number of inverted lists to search.
            allowed: mask of the documents that may be found; None for all.
            hybrid: whether to add passages found by BM25, and the BM25 scores.

        Returns:
            At most k hits for each query, best first.
        """
        depth = max(PASSAGE_DEPTH, k)
        cosines, rows = self._stored.nearest_windows(embeddings, depth, probes, allowed)
        nearest = [
            self._nearest_windows(*parts, depth) for parts in zip(cosines, rows, strict=True)
        ]
        lexical_scores: list[dict[int, float]] = [{} for _ in queries]
        if hybrid:
            lexical_scores = self._lexical_scores(queries, depth, allowed)
            for nearest_of_query, scores in zip(nearest, lexical_scores, strict=True):
                self._add_lexical(nearest_of_query, scores)
        candidates = self._candidates(nearest)
        if self._ranker:
            ranked = self._ranker.rank(queries, candidates)
        else:
            ranked = []
            for windows_of_query in candidates:
                ranked.append([Ranked(window.cosine, 0) for window in windows_of_query])
        return [
            self._best(*parts, k) for parts in zip(candidates, ranked, lexical_scores, strict=True)
        ]

    def _nearest_windows(self, cosines: FloatArray, rows: IntArray, depth: int) -> list[Nearest]:
        """Return the windows of the nearest rows of a query, each with its largest cosine."""
        # An approximate index returns -1 for neighbours that it does not find.
        rows = rows[rows >= 0]
        numbers = np.searchsorted(self._stored.window_starts, rows, side="right") - 1
        # The rows are sorted by cosine, so the first row of a window is the nearest.
        _, first = np.unique(numbers, return_index=True)
        first = np.sort(first)[:depth]
        return [
            Nearest(number, cosine, row)
            for number, cosine, row in zip(
                numbers[first].tolist(), cosines[first].tolist(), rows[first].tolist(), strict=True
            )
        ]

    def _candidates(self, nearest: list[list[Nearest]]) -> list[list[Candidate]]:
        """Read the texts of windows; without a ranker, only their nearest rows."""
        documents = self._stored.window_documents
        if self._ranker:
            self._read({window.number for windows in nearest for window in windows})
        candidates = []
        for windows in nearest:
            texts: list[list[str]]
            if self._ranker:
                texts = [self._sentences[window.number] for window in windows]
            else:
                texts = [[text] for text in self._row_texts([window.row for window in windows])]
            candidates.append(
                [
                    Candidate((int(documents[window.number]), window.number), window.cosine, text)
                    for window, text in zip(windows, texts, strict=True)
                ]
            )
        return candidates

    def _read(self, numbers: set[int]) -> None:
        """Read the sentences of windows into `_sentences`."""
        starts = self._stored.window_starts
        rows: list[int] = []
        counts = []
        for number in sorted(numbers):
            first = int(starts[number])
            stop = int(starts[number + 1])
            # A window with only one sentence has a single row.
            sentences = range(min(first + 1, stop - 1), stop)
            rows += sentences
            counts.append(len(sentences))
        texts = iter(self._row_texts(rows))
        for number, count in zip(sorted(numbers), counts, strict=True):
            self._sentences[number] = list(islice(texts, count))

    def _row_texts(self, row_list: list[int]) -> list[str]:
        """Return the texts of rows."""
        rows = np.array(row_list, dtype=np.int64)
        documents = self._stored.documents(rows)
        contents = {}
        for document, (_, text) in self._stored.sentences(np.unique(documents)).items():
            contents[document] = text.encode()
        spans = self._stored.spans(rows).tolist()
        return [
            contents[document][start:stop].decode()
            for document, (start, stop) in zip(documents.tolist(), spans, strict=True)
        ]

    # -- lexical search

    def _lexical_scores(
        self, queries: Sequence[str], depth: int, allowed: Mask | None
    ) -> list[dict[int, float]]:
        """Map the best documents of each query to their mean BM25 score per term of the query."""
        index = self._stored.lexical
        if allowed is None and len(self._stored.deleted):
            allowed = self._stored.alive
        scores, documents = index.nearest(queries, min(depth, len(index)), allowed)
        by_query = []
        for query, scores_of_query, documents_of_query in zip(
            queries, scores.tolist(), documents.tolist(), strict=True
        ):
            num_terms = max(len(prefixes(query)), 1)
            by_query.append(
                {
                    document: score / num_terms
                    for document, score in zip(documents_of_query, scores_of_query, strict=True)
                    if document >= 0
                }
            )
        return by_query

    def _add_lexical(self, nearest: list[Nearest], scores: dict[int, float]) -> None:
        """Add windows of the documents that only BM25 has found.

        Their cosines are unknown, so they get the smallest cosine found, which is an upper bound.
        """
        smallest = min((window.cosine for window in nearest), default=0.0)
        documents = self._stored.window_documents
        is_new = set(scores).difference(int(documents[window.number]) for window in nearest)
        for document in scores:
            if document not in is_new:
                continue
            first, stop = np.searchsorted(documents, [document, document + 1]).tolist()
            for number in range(first, min(stop, first + LEXICAL_WINDOWS)):
                row = int(self._stored.window_starts[number])
                nearest.append(Nearest(number, smallest, row))

    @staticmethod
    def _best(
        candidates: list[Candidate],
        ranked: list[Ranked],
        lexical_scores: dict[int, float],
        k: int,
    ) -> list[PassageHit]:
        """Return the k best passages, each with the sentence of its best window."""
        hits: dict[int, PassageHit] = {}
        for candidate, result in zip(candidates, ranked, strict=True):
            document = candidate.key[0]
            score = result.score + LEXICAL_WEIGHT * lexical_scores.get(document, 0.0)
            if document not in hits or score > hits[document].score:
                hits[document] = PassageHit(score, document, candidate.sentences[result.sentence])
        return sorted(hits.values(), key=lambda hit: -hit.score)[:k]
