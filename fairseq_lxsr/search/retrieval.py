"""Searches an index: first candidates, then one ranking of them.

A window is a candidate if one of its vectors is near the query, or if its document has words of the
query. The score of a window adds up the parts of a `Ranking`; the score of a document is that of
its best window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search.index_folder import IndexFolder
from fairseq_lxsr.search.language_groups import LanguageGroups
from fairseq_lxsr.search.lexical import WordMatches
from fairseq_lxsr.search.passages import PASSAGE_DEPTH, PassageRanker
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.search.segment_vectors import CANDIDATES_PER_WINDOW, Mask
from fairseq_lxsr.search.window_pieces import WindowPieces, joined_ranges, sentence_rows
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, check_count

# Number of windows to rank in each document that only lexical search finds.
LEXICAL_WINDOWS = 8
# Weight of the mean BM25 score of the query's terms.
WORD_WEIGHT = 0.3
# The weight is smaller if no document of the language has this share of the terms: then the query
# is probably in another language, and shares only words by chance.
FULL_SHARE = 0.6
# Share of the largest BM25 score in the language of a document that is subtracted from its own.
# Otherwise documents in the language of the query would be above answers in another language.
BEST_SHARE = 0.8
# Weight of the share of words with digits: numbers and codes are the same in all languages, and
# word pieces do not tell similar ones apart.
CODE_WEIGHT = 0.2
# Number of decimals of a score.
SCORE_DECIMALS = 6


@dataclass(frozen=True)
class Ranking:
    """Parts of a score, in addition to the cosine similarity of the nearest vector.

    Attributes:
        pieces: compares the word pieces of the query with those of a window; None leaves this out.
        words: whether BM25 finds documents, and its score is added.
        reranker: rescores the best `reranker.depth` documents by their best sentence; None leaves
            the order as it is.
    """

    pieces: PassageRanker | None = None
    words: bool = False
    reranker: Reranker | None = None


@dataclass(frozen=True)
class Matches:
    """Documents found for N queries, best first; missing ones have the number -1.

    Attributes:
        scores: scores [N, k].
        documents: numbers of the documents [N, k].
        rows: row of each document that matched best [N, k].
    """

    scores: FloatArray
    documents: IntArray
    rows: IntArray


@dataclass(frozen=True)
class Candidates:
    """Windows that may answer a query.

    Attributes:
        windows: numbers of the windows [n].
        cosines: largest cosine of the rows of each window [n].
        rows: the row with this cosine [n].
    """

    windows: IntArray
    cosines: FloatArray
    rows: IntArray


class Retrieval:
    """Searches an open index.

        matches = Retrieval(stored, Ranking(words=True)).search(queries, embeddings, k=5)

    Args:
        stored: an open index.
        ranking: the parts of a score.
    """

    def __init__(self, stored: IndexFolder, ranking: Ranking):
        self._stored = stored
        self._pieces = ranking.pieces
        self._words = ranking.words
        self._reranker = ranking.reranker

    def search(
        self,
        queries: Sequence[str],
        embeddings: FloatArray,
        k: int,
        allowed: Mask | None = None,
    ) -> Matches:
        """Find the k best documents of each query.

        Args:
            queries: N queries.
            embeddings: embeddings of the queries [N, D].
            k: number of documents.
            allowed: mask of the documents that may be found; None for all.

        Raises:
            InputError: if k is less than 1, or the reranker would rescore less than k.
        """
        check_count("k", k)
        depth = k
        if self._reranker:
            self._reranker.check_depth(k)
            depth = self._reranker.depth
        depth = min(depth, len(self._stored))
        if not depth or not queries:
            empty = np.empty((len(queries), 0))
            return Matches(empty, empty.astype(np.int64), empty.astype(np.int64))
        if self._stored.has_windows:
            matches = self._rank_windows(queries, embeddings, depth, allowed)
        else:
            # The cosine is the score, so the nearest rows need no ranking.

            def search(vectors: FloatArray) -> tuple[FloatArray, IntArray]:
                return self._stored.neighbours(vectors, depth, allowed)

            cosines, rows = _search_known(search, embeddings, depth)
            matches = Matches(cosines, rows, rows)
        if self._reranker:
            # A query without a known word has no word pieces to compare.
            is_known = np.asarray(embeddings.any(axis=1))
            matches = self._rerank(self._reranker, queries, matches, is_known)
        return Matches(matches.scores[:, :k], matches.documents[:, :k], matches.rows[:, :k])

    def row_texts(self, rows: IntArray) -> list[str]:
        """Return the texts of rows [n]."""
        documents = self._stored.documents(rows)
        contents = {}
        for document, (_, text) in self._stored.sentences(np.unique(documents)).items():
            contents[document] = text.encode()
        spans = self._stored.spans(rows).tolist()
        return [
            contents[document][start:stop].decode()
            for document, (start, stop) in zip(documents.tolist(), spans, strict=True)
        ]

    def _rerank(
        self, reranker: Reranker, queries: Sequence[str], matches: Matches, is_known: Mask
    ) -> Matches:
        """Sort documents by the scores of a reranker, which compares the best row of each."""
        scores = matches.scores.astype(np.float64)
        if is_known.any():
            known_queries = [queries[number] for number in np.flatnonzero(is_known).tolist()]
            scores[is_known] = reranker.scores(
                known_queries, self.row_texts, matches.scores[is_known], matches.rows[is_known]
            )
        order = np.argsort(-scores, axis=1, kind="stable")
        return Matches(
            np.take_along_axis(scores, order, axis=1),
            np.take_along_axis(matches.documents, order, axis=1),
            np.take_along_axis(matches.rows, order, axis=1),
        )

    # -- ranking windows

    def _rank_windows(
        self,
        queries: Sequence[str],
        embeddings: FloatArray,
        k: int,
        allowed: Mask | None,
    ) -> Matches:
        """Find the k best documents of each query by the scores of their windows."""
        depth = max(PASSAGE_DEPTH, k)
        vectors = embeddings
        # Without a ranker, queries are not split into word pieces.
        query_ids = [np.empty(0, dtype=np.int64)] * len(queries)
        if self._pieces:
            query_ids = self._pieces.split_queries(queries)
            vectors = self._pieces.query_vectors(query_ids, embeddings)

        def search(vectors: FloatArray) -> tuple[FloatArray, IntArray]:
            return self._stored.nearest_windows(vectors, depth, allowed)

        all_cosines, all_rows = _search_known(search, vectors, CANDIDATES_PER_WINDOW * depth)
        scores = np.full((len(queries), k), -np.inf)
        documents = np.full((len(queries), k), -1, dtype=np.int64)
        rows = documents.copy()
        for number, ids in enumerate(query_ids):
            candidates = self._nearest(all_cosines[number], all_rows[number], depth)
            words = None
            if self._words:
                words = self._stored.lexical.nearest(queries[number], depth, allowed)
                candidates = self._add_documents(candidates, words.documents)
            best = self._best(ids, candidates, words, k)
            count = len(best.documents)
            scores[number, :count] = best.scores
            documents[number, :count] = best.documents
            rows[number, :count] = best.rows
        return Matches(scores, documents, rows)

    def _nearest(self, cosines: FloatArray, rows: IntArray, depth: int) -> Candidates:
        """Return the windows of the nearest rows of a query, each with its largest cosine."""
        # An approximate index returns -1 for neighbours that it does not find.
        is_found = rows >= 0
        rows = rows[is_found]
        windows = np.searchsorted(self._stored.window_starts, rows, side="right") - 1
        # The rows are sorted by cosine, so the first row of a window is the nearest.
        _, first = np.unique(windows, return_index=True)
        first = np.sort(first)[:depth]
        return Candidates(windows[first], cosines[is_found][first], rows[first])

    def _add_documents(self, candidates: Candidates, found_by_words: IntArray) -> Candidates:
        """Add windows of the documents that only BM25 has found.

        Their cosines are unknown, so they get the smallest cosine found, which is an upper bound.
        """
        documents = self._stored.window_documents
        new_documents = np.setdiff1d(found_by_words, documents[candidates.windows])
        starts = np.searchsorted(documents, new_documents)
        counts = np.searchsorted(documents, new_documents, side="right") - starts
        windows = joined_ranges(starts, counts.clip(max=LEXICAL_WINDOWS))
        smallest = 0.0
        if len(candidates.cosines):
            smallest = float(candidates.cosines.min())
        cosines = np.full(len(windows), smallest)
        return Candidates(
            np.concatenate((candidates.windows, windows)),
            np.concatenate((candidates.cosines, cosines)),
            np.concatenate((candidates.rows, self._stored.window_starts[windows])),
        )

    def _best(
        self, query_ids: IntArray, candidates: Candidates, words: WordMatches | None, k: int
    ) -> Matches:
        """Return the k best documents of a query, each with the best row of its best window.

        Args:
            query_ids: dictionary ids of the pieces of the query [q].
            candidates: windows to rank.
            words: documents with words of the query; None to leave words out.
            k: number of documents.

        Returns:
            Arrays of one dimension [at most k].
        """
        scores: FloatArray = candidates.cosines.astype(np.float64)
        rows = candidates.rows
        documents = self._stored.window_documents[candidates.windows]
        languages = self._stored.languages[documents]
        if self._pieces and len(documents):
            pieces = self._window_pieces(self._pieces, candidates.windows)
            scores, sentences = self._pieces.score(query_ids, pieces, scores, languages)
            first_rows, _ = self._sentence_rows(candidates.windows)
            rows = first_rows + sentences
        if words is not None and len(words.documents):
            scores += _word_gains(words, documents, languages)
        # Equal windows may get scores that differ in the last bits, because these depend on the
        # position in a matrix product. After rounding, equal documents are in the order of the
        # index, and no score is above 1 by such an error.
        scores = scores.round(SCORE_DECIMALS)
        order = np.lexsort((candidates.windows, -scores))
        # The windows are sorted by score, so the first window of a document is its best.
        _, first = np.unique(documents[order], return_index=True)
        best = order[np.sort(first)[:k]]
        return Matches(scores[best], documents[best], rows[best])

    # -- word pieces of windows

    def _window_pieces(self, ranker: PassageRanker, windows: IntArray) -> WindowPieces:
        """Return the word pieces of windows. If they are not stored, read and split the text.

        Raises:
            InputError: if the model does not have a stored piece, because another program wrote it.
        """

        def split(windows: IntArray) -> WindowPieces:
            starts, counts = self._sentence_rows(windows)
            texts = iter(self.row_texts(joined_ranges(starts, counts)))
            return ranker.split_windows([list(islice(texts, n)) for n in counts.tolist()])

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


def _search_known(
    search: Callable[[FloatArray], tuple[FloatArray, IntArray]], embeddings: FloatArray, k: int
) -> tuple[FloatArray, IntArray]:
    """Search with the queries that have a known word.

    Args:
        search: returns cosines and rows [n, k], given the embeddings of n queries.
        embeddings: embeddings of the queries, zero for a query without a known word [N, D].
        k: number of neighbours.

    Returns:
        Cosines and rows [N, k]; those of the other queries are missing.
    """
    is_known = np.asarray(embeddings.any(axis=1))
    if is_known.all():
        return search(embeddings)
    cosines = np.full((len(embeddings), k), -np.inf, dtype=np.float32)
    rows = np.full((len(embeddings), k), -1, dtype=np.int64)
    if is_known.any():
        cosines[is_known], rows[is_known] = search(embeddings[is_known])
    return cosines, rows


def _word_gains(words: WordMatches, documents: IntArray, languages: IntArray) -> FloatArray:
    """Return what words add to the scores of candidate windows [W].

    Args:
        words: documents with words of the query, at least one.
        documents: document of each window [W].
        languages: number of the language of each window [W].
    """
    order = words.documents.argsort()
    positions = np.searchsorted(words.documents, documents, sorter=order)
    positions = order[positions.clip(max=len(order) - 1)]
    has_words = words.documents[positions] == documents
    scores = np.where(has_words, words.scores[positions], 0)
    shares = np.where(has_words, words.shares[positions], 0)
    groups = LanguageGroups(languages)
    largest_scores = groups.largest(scores)[groups.numbers]
    largest_shares = groups.largest(shares)[groups.numbers]
    weights = WORD_WEIGHT * np.minimum(largest_shares / FULL_SHARE, 1)
    codes = np.where(has_words, words.codes[positions], 0)
    return weights * (scores - BEST_SHARE * largest_scores) + CODE_WEIGHT * codes
