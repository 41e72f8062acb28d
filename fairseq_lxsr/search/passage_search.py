"""Searches an index of passages for the passages that best match a query."""

from collections.abc import Sequence
from dataclasses import dataclass

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
from fairseq_lxsr.search.splitting import Window, window_at, windows
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# Number of rows to find for each window to be ranked, because several rows may belong to one
# window.
ROWS_PER_WINDOW = 4
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
        self._texts: dict[int, str] = {}
        self._windows: dict[int, list[Window]] = {}
        self._sentences: dict[tuple[int, int], list[str]] = {}

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
        num_rows = min(ROWS_PER_WINDOW * depth, self._stored.num_rows)
        cosines, rows = self._stored.neighbours(embeddings, num_rows, probes, allowed)
        candidates = self._candidates(cosines, rows, depth)
        lexical_scores: list[dict[int, float]] = [{} for _ in queries]
        if hybrid:
            lexical_scores = self._lexical_scores(queries, depth, allowed)
            for windows_of_query, scores in zip(candidates, lexical_scores, strict=True):
                self._add_lexical(windows_of_query, scores)
        if self._ranker:
            ranked = self._ranker.rank(queries, candidates)
        else:
            ranked = []
            for windows_of_query in candidates:
                ranked.append([Ranked(window.cosine, 0) for window in windows_of_query])
        return [
            self._best(*parts, k) for parts in zip(candidates, ranked, lexical_scores, strict=True)
        ]

    def _candidates(self, cosines: FloatArray, rows: IntArray, depth: int) -> list[list[Candidate]]:
        """Return the windows of the nearest rows, each with its largest cosine."""
        unique_rows = np.unique(rows[rows >= 0])
        documents = self._stored.documents(unique_rows)
        self._read(np.unique(documents))
        spans = self._stored.spans(unique_rows)
        places = {}
        for row, document, (start, stop) in zip(
            unique_rows.tolist(), documents.tolist(), spans.tolist(), strict=True
        ):
            text = self._texts[document]
            encoded = text.encode()
            first = len(encoded[:start].decode())
            number = window_at(self._windows[document], first)
            places[row] = ((document, number), encoded[start:stop].decode())
        candidates = []
        for cosines_of_query, rows_of_query in zip(cosines.tolist(), rows.tolist(), strict=True):
            by_window: dict[tuple[int, int], Candidate] = {}
            for cosine, row in zip(cosines_of_query, rows_of_query, strict=True):
                # An approximate index returns -1 for neighbours that it does not find.
                if row < 0 or len(by_window) == depth:
                    break
                key, text = places[row]
                if key not in by_window:
                    by_window[key] = self._candidate(key, cosine, text)
            candidates.append(list(by_window.values()))
        return candidates

    def _candidate(self, key: tuple[int, int], cosine: float, nearest: str) -> Candidate:
        """Return a window; without a ranker, it contains only its nearest row."""
        if not self._ranker:
            return Candidate(key, cosine, [nearest])
        if key not in self._sentences:
            document, number = key
            text = self._texts[document]
            spans = self._windows[document][number].sentences
            self._sentences[key] = [text[start:stop] for start, stop in spans]
        return Candidate(key, cosine, self._sentences[key])

    def _read(self, documents: IntArray) -> None:
        """Read and split the texts of documents that have not been read yet."""
        new = np.array([number for number in documents.tolist() if number not in self._texts])
        if not len(new):
            return
        for number, (_, text) in self._stored.sentences(new).items():
            self._texts[number] = text
            self._windows[number] = windows(text)

    # -- lexical search

    def _lexical_scores(
        self, queries: Sequence[str], depth: int, allowed: Mask | None
    ) -> list[dict[int, float]]:
        """Map the best documents of each query to their mean BM25 score per term of the query."""
        index = self._stored.lexical
        if allowed is None and len(self._stored.deleted):
            allowed = self._stored.alive
        scores, documents = index.nearest(queries, min(depth, len(index)), allowed)
        self._read(np.unique(documents[documents >= 0]))
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

    def _add_lexical(self, candidates: list[Candidate], scores: dict[int, float]) -> None:
        """Add windows of the documents that only BM25 has found.

        Their cosine is unknown, but cannot exceed the smallest one found.
        """
        smallest = min((candidate.cosine for candidate in candidates), default=0.0)
        documents = {candidate.key[0] for candidate in candidates}
        for document in scores:
            if document in documents:
                continue
            text = self._texts[document]
            for number, window in enumerate(self._windows[document][:LEXICAL_WINDOWS]):
                start, stop = window.span
                key = (document, number)
                candidates.append(self._candidate(key, smallest, text[start:stop]))

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
