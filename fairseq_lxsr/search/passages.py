"""Ranks passages for a query by word piece vectors, without training.

MaxSim from a query to a text (ColBERT: Khattab and Zaharia 2020, section 3.3) is the mean, over the
pieces of the query, of the largest cosine with a piece of the text. Unlike in `vectors.pieces`,
it is computed only from the query to the text and without positions, because a passage contains
more than the answer. In this mean, rare pieces and pieces with long vectors have more weight.
The score of a window of a passage is

    (cosine + MaxSim(query, window) + max over its sentences MaxSim(query, sentence)) / 3
        - LENGTH_PENALTY log(number of pieces of the window)

where the cosine is the largest cosine of the window and its sentences. The last term corrects for
the bias towards long windows, which have more pieces to match. The score of a passage is the score
of its best window.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import ModelFolder
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search.reranker import piece_encoder
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# Number of windows to rank per query.
PASSAGE_DEPTH = 100
# The rarity of a piece is the logarithm of its dictionary index, because frequent pieces come
# first. The weight of a piece grows with its rarity minus FREQUENT_PIECES, which is raised to
# SMALLEST_WEIGHT if it is smaller.
FREQUENT_PIECES = 5.0
SMALLEST_WEIGHT = 0.05
LENGTH_PENALTY = 1 / 60
# Weight of the mean BM25 score of the query's terms in hybrid search.
LEXICAL_WEIGHT = 0.3
# Number of queries whose windows are prepared together.
QUERY_BLOCK = 16


@dataclass(frozen=True)
class Candidate:
    """A window of a passage that may answer a query.

    Attributes:
        key: identifies the window among the windows of all queries.
        cosine: largest cosine of the window's vectors with the query.
        sentences: texts of the sentences in the window.
    """

    key: tuple[int, int]
    cosine: float
    sentences: Sequence[str]


@dataclass(frozen=True)
class Ranked:
    """Score of a candidate, and the index of its best matching sentence."""

    score: float
    sentence: int


class PassageRanker:
    """Scores windows of passages by the word pieces of the query.

        ranker = PassageRanker(ModelFolder(encoder))
        [[ranked]] = ranker.rank(["Which dog?"], [[Candidate((0, 0), 0.4, ["A dog barks."])]])

    Args:
        encoder: a model folder without layers or with gated layers.

    Raises:
        InputError: if the model has no word piece vectors.
    """

    def __init__(self, encoder: Any):
        self._encoder = piece_encoder(encoder, "passages")

    @property
    def model(self) -> str:
        """Fingerprint of the model whose pieces are compared."""
        return self._encoder.fingerprint

    def rank(
        self, queries: Sequence[str], candidates: Sequence[Sequence[Candidate]]
    ) -> list[list[Ranked]]:
        """Score the candidates of each query.

        Args:
            queries: N queries.
            candidates: candidates of each query [N].

        Returns:
            Score and best sentence of each candidate, in the given order, for each query [N].
        """
        ranked = []
        for start in range(0, len(queries), QUERY_BLOCK):
            block = slice(start, start + QUERY_BLOCK)
            ranked += self._rank_block(queries[block], candidates[block])
        return ranked

    def _rank_block(
        self, queries: Sequence[str], candidates: Sequence[Sequence[Candidate]]
    ) -> list[list[Ranked]]:
        windows: dict[tuple[int, int], Candidate] = {}
        for candidates_of_query in candidates:
            for candidate in candidates_of_query:
                windows.setdefault(candidate.key, candidate)
        sentences = [text for window in windows.values() for text in window.sentences]
        ids, lengths = self._encoder.split([*queries, *sentences])
        rows, places = self._encoder.table_rows(ids)
        compared = _Compared(rows, places, ids, lengths, len(queries))
        parts = dict(zip(windows, compared.parts(windows.values()), strict=True))
        ranked = []
        for number, candidates_of_query in enumerate(candidates):
            ranked.append(compared.rank(number, candidates_of_query, parts))
        return ranked


def find_passage_ranker(encoder: Any) -> PassageRanker | None:
    """Return a ranker that uses an encoder, or None if it has no word piece vectors."""
    if isinstance(encoder, SentenceEncoder):
        encoder = ModelFolder(encoder)
    try:
        return PassageRanker(encoder)
    except InputError:
        return None


@dataclass(frozen=True)
class _Part:
    """Positions of a window's pieces among the unit vectors, and its sentences that have pieces.

    Attributes:
        places: positions of the pieces [P].
        lengths: number of pieces of each sentence that has any.
        sentences: indices of these sentences.
    """

    places: IntArray
    lengths: IntArray
    sentences: IntArray


class _Compared:
    """Pieces of queries and windows, with the unit vectors of all pieces.

    Args:
        rows: vectors of the pieces [R, D].
        places: row index of each piece [P].
        ids: dictionary id of each piece [P].
        lengths: number of pieces of each text; the queries come first.
        num_queries: number of queries.
    """

    def __init__(
        self,
        rows: FloatArray,
        places: IntArray,
        ids: IntArray,
        lengths: IntArray,
        num_queries: int,
    ):
        used, self._places = np.unique(places, return_inverse=True)
        vectors = rows[used]
        norms = np.sqrt(np.einsum("rd,rd->r", vectors, vectors))
        vectors /= np.maximum(norms, np.finfo(np.float32).tiny)[:, None]
        self._lengths = lengths
        self._ends = lengths.cumsum()
        self._num_queries = num_queries
        query_pieces = slice(0, lengths[:num_queries].sum())
        rarity = np.log(ids[query_pieces] + 2) - FREQUENT_PIECES
        roots = np.sqrt(norms[self._places[query_pieces]])
        self._weights = roots * np.maximum(rarity, SMALLEST_WEIGHT)
        # Each piece of the queries is compared with each piece of the windows once.
        of_queries, self._query_rows = np.unique(self._places[query_pieces], return_inverse=True)
        self._cosines = vectors[of_queries] @ vectors.T

    def parts(self, windows: Iterable[Candidate]) -> list[_Part]:
        """Return the pieces of windows. The sentences of the windows follow the queries."""
        parts = []
        first = self._num_queries
        for window in windows:
            last = first + len(window.sentences)
            lengths = self._lengths[first:last]
            start = self._ends[first - 1] if first else 0
            stop = self._ends[last - 1] if last else 0
            is_known = np.flatnonzero(lengths)
            parts.append(_Part(self._places[start:stop], lengths[is_known], is_known))
            first = last
        return parts

    def rank(
        self,
        query: int,
        candidates: Sequence[Candidate],
        parts: Mapping[tuple[int, int], _Part],
    ) -> list[Ranked]:
        """Score the candidates of a query, in the given order.

        Args:
            query: index of the query.
            candidates: passages to score.
            parts: word pieces of each candidate, by its key.
        """
        selected = [parts[candidate.key] for candidate in candidates]
        with_pieces = [part for part in selected if len(part.places)]
        start = self._ends[query] - self._lengths[query]
        pieces = slice(start, self._ends[query])
        weights = self._weights[pieces]
        if not with_pieces or not len(weights):
            return [Ranked(candidate.cosine / 3, 0) for candidate in candidates]
        weights = weights / weights.sum()
        places = np.concatenate([part.places for part in with_pieces])
        sentence_lengths = np.concatenate([part.lengths for part in with_pieces])
        num_sentences = np.array([len(part.lengths) for part in with_pieces])
        num_pieces = np.array([len(part.places) for part in with_pieces])
        cosines = self._cosines[self._query_rows[pieces]].take(places, axis=1)
        of_sentences = _largest(cosines, sentence_lengths)
        of_windows = _largest(of_sentences, num_sentences)
        sentence_scores = weights @ of_sentences
        best_sentences = np.maximum.reduceat(sentence_scores, _starts(num_sentences))
        scores = (weights @ of_windows + best_sentences) / 3 - LENGTH_PENALTY * np.log(num_pieces)
        remaining = iter(zip(scores.tolist(), _starts(num_sentences).tolist(), strict=True))
        ranked = []
        for candidate, part in zip(candidates, selected, strict=True):
            if not len(part.places):
                ranked.append(Ranked(candidate.cosine / 3, 0))
                continue
            score, first = next(remaining)
            best = int(sentence_scores[first : first + len(part.lengths)].argmax())
            ranked.append(Ranked(score + candidate.cosine / 3, int(part.sentences[best])))
        return ranked


def _largest(values: FloatArray, lengths: IntArray) -> FloatArray:
    """Return the maximum of each group of adjacent columns, given the sizes of the groups."""
    return np.maximum.reduceat(values, _starts(lengths), axis=1)


def _starts(lengths: IntArray) -> IntArray:
    return lengths.cumsum() - lengths
