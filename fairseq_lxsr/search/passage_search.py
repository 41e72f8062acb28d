"""Searches an index of passages for the passages that best match a query."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search.index_folder import IndexFolder
from fairseq_lxsr.search.lexical import prefixes
from fairseq_lxsr.search.passages import LEXICAL_WEIGHT, PASSAGE_DEPTH, PassageRanker
from fairseq_lxsr.search.segment import Mask
from fairseq_lxsr.search.window_pieces import WindowPieces, joined_ranges, sentence_rows
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# Number of windows to rank in each passage that only lexical search finds.
LEXICAL_WINDOWS = 8
# Number of decimals of a score.
SCORE_DECIMALS = 6


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


@dataclass(frozen=True)
class Nearest:
    """Windows near a query, nearest first.

    Attributes:
        windows: numbers of the windows [n].
        cosines: largest cosine of the rows of each window [n].
        rows: the row with this cosine [n].
    """

    windows: IntArray
    cosines: FloatArray
    rows: IntArray


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
        vectors = embeddings
        # Without a ranker, queries are not split into word pieces.
        query_ids = [np.empty(0, dtype=np.int64)] * len(queries)
        if self._ranker:
            query_ids = self._ranker.split_queries(queries)
            vectors = self._ranker.query_vectors(query_ids, embeddings)
        all_cosines, all_rows = self._stored.nearest_windows(vectors, depth, probes, allowed)
        lexical_scores: list[dict[int, float]] = [{} for _ in queries]
        if hybrid:
            lexical_scores = self._lexical_scores(queries, depth, allowed)
        hits = []
        for ids, cosines, rows, scores in zip(
            query_ids, all_cosines, all_rows, lexical_scores, strict=True
        ):
            nearest = self._nearest_windows(cosines, rows, depth)
            if scores:
                nearest = self._add_lexical(nearest, scores)
            hits.append(self._best(ids, nearest, scores, k))
        return hits

    def _nearest_windows(self, cosines: FloatArray, rows: IntArray, depth: int) -> Nearest:
        """Return the windows of the nearest rows of a query, each with its largest cosine."""
        # An approximate index returns -1 for neighbours that it does not find.
        is_found = rows >= 0
        rows = rows[is_found]
        windows = np.searchsorted(self._stored.window_starts, rows, side="right") - 1
        # The rows are sorted by cosine, so the first row of a window is the nearest.
        _, first = np.unique(windows, return_index=True)
        first = np.sort(first)[:depth]
        return Nearest(windows[first], cosines[is_found][first], rows[first])

    def _best(
        self, query_ids: IntArray, nearest: Nearest, lexical_scores: dict[int, float], k: int
    ) -> list[PassageHit]:
        """Return the k best passages of a query, each with the sentence of its best window.

        Args:
            query_ids: dictionary ids of the pieces of the query [q].
            nearest: candidate windows.
            lexical_scores: mean BM25 score per term of the query, by document.
            k: number of passages.
        """
        if not len(nearest.windows):
            return []
        scores: FloatArray = nearest.cosines.astype(np.float64)
        rows = nearest.rows
        if self._ranker:
            pieces = self._pieces(self._ranker, nearest.windows)
            scores, sentences = self._ranker.score(query_ids, pieces, scores)
            first_rows, _ = self._sentence_rows(nearest.windows)
            rows = first_rows + sentences
        documents = self._stored.window_documents[nearest.windows]
        if lexical_scores:
            gains = [lexical_scores.get(document, 0.0) for document in documents.tolist()]
            scores += LEXICAL_WEIGHT * np.array(gains)
        # Equal windows may get scores that differ in the last bits, because these depend on the
        # position in a matrix product. After rounding, equal passages are in the order of the
        # index, and no score is above 1 by such an error.
        scores = scores.round(SCORE_DECIMALS)
        order = np.lexsort((nearest.windows, -scores))
        # The windows are sorted by score, so the first window of a passage is its best.
        _, first = np.unique(documents[order], return_index=True)
        best = order[np.sort(first)[:k]]
        hits = zip(
            scores[best].tolist(),
            documents[best].tolist(),
            self._row_texts(rows[best]),
            strict=True,
        )
        return [PassageHit(*hit) for hit in hits]

    # -- windows

    def _pieces(self, ranker: PassageRanker, windows: IntArray) -> WindowPieces:
        """Return the word pieces of windows. If they are not stored, read and split the text.

        Raises:
            InputError: if the model does not have a stored piece, because another program wrote it.
        """

        def split(windows: IntArray) -> WindowPieces:
            starts, counts = self._sentence_rows(windows)
            texts = iter(self._row_texts(joined_ranges(starts, counts)))
            return ranker.split_windows([list(islice(texts, n)) for n in counts.tolist()])

        if ranker.model != self._stored.model:
            return split(windows)
        pieces = self._stored.window_pieces(windows, split)
        ids = pieces.ids
        if len(ids) and not 0 <= ids.min() <= ids.max() < ranker.num_pieces:
            raise InputError(
                f"{self._stored.path}: word pieces {ids.min():,} to {ids.max():,}; expected 0 to "
                f"{ranker.num_pieces - 1:,}, those of the model: build the index again"
            )
        return pieces

    def _sentence_rows(self, windows: IntArray) -> tuple[IntArray, IntArray]:
        """Return the first row of the sentences of each window, and their number."""
        starts = self._stored.window_starts
        return sentence_rows(starts[windows], starts[windows + 1])

    def _row_texts(self, rows: IntArray) -> list[str]:
        """Return the texts of rows."""
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

    def _add_lexical(self, nearest: Nearest, scores: dict[int, float]) -> Nearest:
        """Add windows of the documents that only BM25 has found.

        Their cosines are unknown, so they get the smallest cosine found, which is an upper bound.
        """
        documents = self._stored.window_documents
        new_documents = np.setdiff1d(list(scores), documents[nearest.windows])
        starts = np.searchsorted(documents, new_documents)
        counts = np.searchsorted(documents, new_documents, side="right") - starts
        windows = joined_ranges(starts, counts.clip(max=LEXICAL_WINDOWS))
        smallest = 0.0
        if len(nearest.cosines):
            smallest = float(nearest.cosines.min())
        cosines = np.full(len(windows), smallest)
        return Nearest(
            np.concatenate((nearest.windows, windows)),
            np.concatenate((nearest.cosines, cosines)),
            np.concatenate((nearest.rows, self._stored.window_starts[windows])),
        )
