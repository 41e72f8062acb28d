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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import ModelFolder, Text, model_of
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import size_of
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search.reranker import piece_encoder
from fairseq_lxsr.search.window_pieces import PieceEmbedder, WindowPieces
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

EmbedText = Callable[[Text], FloatArray]

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

    @property
    def num_pieces(self) -> int:
        """Number of word pieces with a vector. Dictionary ids are smaller than it."""
        return size_of(self._encoder.config).vocab_size

    def split(self, texts: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Split texts into word pieces; see `SentenceEncoder.split`.

        Args:
            texts: N texts.

        Returns:
            Dictionary ids of the pieces of all texts [P], and the number of pieces of each [N].
        """
        return self._encoder.split(texts)

    def split_windows(self, windows: Sequence[Sequence[str]]) -> WindowPieces:
        """Split the sentences of windows into word pieces.

        Args:
            windows: sentences of each window [W].
        """
        ids, lengths = self.split([sentence for window in windows for sentence in window])
        counts = np.array([len(window) for window in windows], dtype=np.int64)
        return WindowPieces(ids, lengths, counts)

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
        for query, candidates_of_query in zip(queries, candidates, strict=True):
            windows = self.split_windows([window.sentences for window in candidates_of_query])
            cosines = np.array([window.cosine for window in candidates_of_query])
            scores, sentences = self.score(query, windows, cosines)
            pairs = zip(scores.tolist(), sentences.tolist(), strict=True)
            ranked.append([Ranked(score, sentence) for score, sentence in pairs])
        return ranked

    def score(
        self, query: str, windows: WindowPieces, cosines: FloatArray
    ) -> tuple[FloatArray, IntArray]:
        """Score windows for a query.

        Args:
            query: the query.
            windows: word pieces of the windows.
            cosines: largest cosine of the vectors of each window with the query [W].

        Returns:
            Scores [W], and the index of the best matching sentence of each window [W].
        """
        scores = cosines / 3
        sentences = np.zeros(len(scores), dtype=np.int64)
        query_ids, _ = self.split([query])
        is_known = windows.lengths > 0
        first_sentences = _starts(windows.counts)
        known_counts = np.zeros(len(scores), dtype=np.int64)
        if len(scores):
            known_counts = np.add.reduceat(is_known, first_sentences, dtype=np.int64)
        has_pieces = np.flatnonzero(known_counts)
        if not len(has_pieces) or not len(query_ids):
            return scores, sentences
        known_sentences = np.flatnonzero(is_known)
        counts = known_counts[has_pieces]
        weights, of_sentences = self._compare(
            query_ids, windows.ids, windows.lengths[known_sentences]
        )
        of_windows = _largest(of_sentences, counts)
        sentence_scores = weights @ of_sentences
        largest = np.maximum.reduceat(sentence_scores, _starts(counts))
        num_pieces = np.add.reduceat(windows.lengths, first_sentences)[has_pieces]
        scores[has_pieces] += (weights @ of_windows + largest) / 3
        scores[has_pieces] -= LENGTH_PENALTY * np.log(num_pieces)
        # The first sentence of each window that has the largest score.
        is_largest = np.flatnonzero(sentence_scores == np.repeat(largest, counts))
        best = is_largest[np.searchsorted(is_largest, _starts(counts))]
        sentences[has_pieces] = known_sentences[best] - first_sentences[has_pieces]
        return scores, sentences

    def _compare(
        self, query_ids: IntArray, ids: IntArray, lengths: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Compare the pieces of a query with those of sentences.

        Args:
            query_ids: dictionary ids of the pieces of the query [q].
            ids: dictionary ids of the pieces of the sentences [P].
            lengths: number of pieces of each sentence, at least one [S].

        Returns:
            Weights of the query's pieces, whose sum is 1 [q], and the largest cosine of each of
            them with a piece of each sentence [q, S].
        """
        distinct_ids, places = _distinct(ids)
        rows, positions = self._encoder.table_rows(np.concatenate((query_ids, distinct_ids)))
        # The positions are valid, so none is clipped. Other modes would check them all.
        vectors = rows.take(positions, axis=0, mode="clip")
        norms = np.sqrt(np.einsum("rd,rd->r", vectors, vectors))
        norms = np.maximum(norms, np.finfo(np.float32).tiny)
        q = len(query_ids)
        cosines = vectors[:q] / norms[:q, None] @ vectors[q:].T
        cosines /= norms[q:]
        rarity = np.log(query_ids + 2) - FREQUENT_PIECES
        weights = np.sqrt(norms[:q]) * np.maximum(rarity, SMALLEST_WEIGHT)
        of_pieces = cosines.take(places, axis=1, mode="clip")
        return (weights / weights.sum()).astype(np.float32), _largest(of_pieces, lengths)


def find_passage_ranker(encoder: Any) -> PassageRanker | None:
    """Return a ranker that uses an encoder, or None if it has no word piece vectors."""
    if isinstance(encoder, SentenceEncoder):
        encoder = ModelFolder(encoder)
    try:
        return PassageRanker(encoder)
    except InputError:
        return None


def with_pieces(embed: EmbedText, encode: Any, fingerprint: str) -> EmbedText:
    """Return a function that embeds text and also splits it into word pieces, if possible.

    Args:
        embed: embeds text with the model of an index.
        encode: an encoder, or a `PieceEmbedder`, of this model.
        fingerprint: fingerprint of the vectors of the index.

    Returns:
        A `PieceEmbedder`; `embed` itself if `encode` has no word piece vectors, or is another
        model.
    """
    splitter = encode
    if not isinstance(encode, PieceEmbedder):
        splitter = find_passage_ranker(encode)
    if splitter is None or splitter.model != model_of(fingerprint):
        return embed
    return PieceEmbedder(embed, splitter.split, splitter.model)


def _distinct(ids: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct ids, and the position of each id among them.

    The ids are dictionary ids, so an array with a place for each is faster than sorting.
    """
    places = np.empty(int(ids.max()) + 1, dtype=np.int64)
    order = np.arange(len(ids))
    places[ids] = order
    distinct_ids = ids[places[ids] == order]
    places[distinct_ids] = np.arange(len(distinct_ids))
    return distinct_ids, places[ids]


def _largest(values: FloatArray, lengths: IntArray) -> FloatArray:
    """Return the maximum of each group of adjacent columns, given the sizes of the groups."""
    return np.maximum.reduceat(values, _starts(lengths), axis=1)


def _starts(lengths: IntArray) -> IntArray:
    return lengths.cumsum() - lengths
