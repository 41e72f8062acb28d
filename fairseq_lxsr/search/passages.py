"""Ranks passages for a query by word piece vectors, without training.

MaxSim from a query to a text (ColBERT: Khattab and Zaharia 2020, section 3.3) is the mean, over the
pieces of the query, of the largest cosine with a piece of the text. Unlike in `vectors.pieces`,
it is computed only from the query to the text and without positions, because a passage contains
more than the answer. In this mean, a piece has more weight if it is rare in the training text, if
its vector is long, and if few of the candidate windows contain it or a similar piece. The score of
a window of a passage is the mean of four similarities, minus a correction for its length:

    (cosine + MaxSim(query, window) + max over its sentences MaxSim(query, sentence)
        + pairs(query, window)) / 4 - LENGTH_PENALTY log(number of pieces of the window)

- The cosine is the largest cosine of the query with the window and its sentences. In the vector of
  the query, too, rare pieces have more weight.
- `pairs` is MaxSim of pairs of adjacent pieces, so that a window with the words of the query in the
  same order ranks higher. The similarity of two pairs is the smaller of the cosines of their first
  pieces and of their second pieces.
- Long windows have more pieces to match, so a small number that grows with their length is
  subtracted.

The score of a passage is the score of its best window.

If the candidates are in several languages (see `search.language_groups`):

- The cosine of a piece of the query with a window is divided by the largest cosine of this piece in
  the language of the window, relative to the largest in any language. A good translation then
  counts as much as the same word.
- A piece is frequent if it is frequent in the windows of any one language.
- Half of the difference between the mean cosines of the languages is subtracted.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import ModelFolder, Text, model_of
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import size_of
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules.sizes import TransformerConfig
from fairseq_lxsr.search.language_groups import LanguageGroups
from fairseq_lxsr.search.reranker import piece_encoder
from fairseq_lxsr.search.window_pieces import PieceEmbedder, WindowPieces
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

EmbedText = Callable[[Text], FloatArray]

# Number of windows to rank per query.
PASSAGE_DEPTH = 100
# The rarity of a piece is the logarithm of its dictionary index, because frequent pieces come
# first. The weight of a piece grows with its rarity minus FREQUENT_PIECES, which is raised to
# SMALLEST_WEIGHT if it is smaller.
FREQUENT_PIECES = 4.0
SMALLEST_WEIGHT = 0.05
# Power of a cosine that estimates how much a window contains a piece: windows with the same piece
# count as 1, and those with a piece of cosine 0.5 as 0.06.
CONTAINED_POWER = 4
NUM_SIMILARITIES = 4
# Largest number of cosines of a query's pieces with those of the windows to compute at a time.
LARGEST_BLOCK = 1 << 21
LENGTH_PENALTY = 1 / 50
# Smallest value of the largest cosine of a piece in a language: a smaller one means that no window
# has a translation.
LEAST_TRANSLATION = 0.6
# Numbers of windows that an average over all languages counts as: for the largest cosine of a
# language, for the frequency of a piece, and for the mean cosine.
PRIOR_OF_LARGEST = 10
PRIOR_OF_FREQUENCY = 5
PRIOR_OF_COSINE = 10
# Share of the difference between the mean cosines of languages that is subtracted.
CENTRED_SHARE = 0.5


class PassageRanker:
    """Scores windows of passages by the word pieces of the query.

        ranker = PassageRanker(ModelFolder(encoder))
        [query_ids] = ranker.split_queries(["Which dog?"])
        windows = ranker.split_windows([["A dog barks."]])
        [score], [sentence] = ranker.score(query_ids, windows, np.array([0.4]))

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

    def split_queries(self, queries: Sequence[str]) -> list[IntArray]:
        """Return the dictionary ids of the word pieces of each query [N].

        Args:
            queries: N queries.

        Returns:
            N arrays of ids, int64 [number of pieces].
        """
        ids, lengths = self.split(queries)
        return np.split(ids, lengths.cumsum())[:-1]

    def split_windows(self, windows: Sequence[Sequence[str]]) -> WindowPieces:
        """Split the sentences of windows into word pieces.

        Args:
            windows: sentences of each window [W].

        Returns:
            The word pieces of W windows.
        """
        # A window without sentences is one without pieces.
        windows = [window or [""] for window in windows]
        ids, lengths = self.split([sentence for window in windows for sentence in window])
        counts = np.array([len(window) for window in windows], dtype=np.int64)
        return WindowPieces(ids, lengths, counts)

    def query_vectors(self, queries: Sequence[IntArray], embeddings: FloatArray) -> FloatArray:
        """Return vectors of queries, with more weight on rare pieces, to find candidates.

        A query has fewer words than a passage, so its frequent words, such as question words, would
        move its embedding far from those of the passages with its rare words.

        Args:
            queries: dictionary ids of the pieces of each query [N]; see `split_queries`.
            embeddings: embeddings of the queries by the model of the ranker [N, D].

        Returns:
            Sums of word piece vectors [N, D]; the embeddings themselves if the model has layers or
            order coefficients, because they are then not sums of word piece vectors.
        """
        size = size_of(self._encoder.config)
        if not isinstance(size, TransformerConfig) or not size.is_bag or size.order_coefficients:
            return embeddings
        vectors = np.array(embeddings, dtype=np.float32)
        width = vectors.shape[1]
        for number, ids in enumerate(queries):
            if not len(ids):
                continue
            rows, norms = self._rows(ids)
            vector = (_piece_weights(ids, norms) / norms) @ rows
            # A truncated vector may be zero.
            if vector[:width].any():
                vectors[number] = vector[:width]
        return vectors

    def score(
        self,
        query_ids: IntArray,
        windows: WindowPieces,
        cosines: FloatArray,
        languages: IntArray | None = None,
    ) -> tuple[FloatArray, IntArray]:
        """Score windows for a query.

        Args:
            query_ids: dictionary ids of the pieces of the query [q].
            windows: word pieces of the windows, which are all candidates of the query.
            cosines: largest cosine of the vectors of each window with the query [W].
            languages: number of the language of each window [W]; None for one language.

        Returns:
            Scores [W], and the index of the best matching sentence of each window [W].
        """
        if languages is None:
            languages = np.zeros(len(cosines), dtype=np.int64)
        scores = _centred(cosines, LanguageGroups(languages)) / NUM_SIMILARITIES
        sentences = np.zeros(len(scores), dtype=np.int64)
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
        num_pieces = np.add.reduceat(windows.lengths, first_sentences)[has_pieces]
        of_sentences, of_pairs, weights = self._compare(
            query_ids, windows.ids, windows.lengths[known_sentences], num_pieces
        )
        of_windows = _largest(of_sentences, counts)
        groups = LanguageGroups(languages[has_pieces])
        weights *= _inverse_frequency(of_windows, groups)
        weights /= weights.sum()
        if len(groups) > 1:
            scales = _translation_scales(of_windows, groups)
            of_windows /= scales[:, groups.numbers]
            of_sentences /= scales[:, np.repeat(groups.numbers, counts)]
            pair_scales = np.sqrt(scales[:-1] * scales[1:])
            of_pairs /= pair_scales[:, groups.numbers]
        sentence_scores = weights @ of_sentences
        largest = np.maximum.reduceat(sentence_scores, _starts(counts))
        pairs = _pair_scores(of_pairs, of_windows, weights)
        scores[has_pieces] += (weights @ of_windows + largest + pairs) / NUM_SIMILARITIES
        scores[has_pieces] -= LENGTH_PENALTY * np.log(num_pieces)
        # The first sentence of each window that has the largest score.
        is_largest = np.flatnonzero(sentence_scores == np.repeat(largest, counts))
        best = is_largest[np.searchsorted(is_largest, _starts(counts))]
        sentences[has_pieces] = known_sentences[best] - first_sentences[has_pieces]
        return scores, sentences

    def _compare(
        self, query_ids: IntArray, ids: IntArray, lengths: IntArray, num_pieces: IntArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Compare the pieces of a query with those of windows.

        Args:
            query_ids: dictionary ids of the pieces of the query [q].
            ids: dictionary ids of the pieces of the windows [P].
            lengths: number of pieces of each sentence with pieces [S].
            num_pieces: number of pieces of each window with pieces [W].

        Returns:
            Largest cosine of each piece of the query with a piece of each sentence [q, S]; largest
            similarity of each pair of adjacent pieces of the query with a pair of each window
            [q - 1, W]; and weights of the query's pieces [q].
        """
        distinct_ids, places = _distinct(ids)
        vectors, norms = self._rows(np.concatenate((query_ids, distinct_ids)))
        q = len(query_ids)
        units = vectors[:q] / norms[:q, None]
        of_sentences = []
        of_pairs = []
        # Compare a long query in blocks, because all cosines would need much memory.
        step = max(1, LARGEST_BLOCK // len(ids))
        for start in range(0, q, step):
            # A block has one more piece, the second piece of its last pair.
            cosines = units[start : start + step + 1] @ vectors[q:].T
            cosines /= norms[q:]
            # The positions are valid, so none is clipped. Other modes would check them all.
            cosines = cosines.take(places, axis=1, mode="clip")
            of_sentences.append(_largest(cosines[:step], lengths))
            of_pairs.append(_largest(_compare_pairs(cosines, num_pieces), num_pieces))
        weights = _piece_weights(query_ids, norms[:q])
        return np.concatenate(of_sentences), np.concatenate(of_pairs), weights

    def _rows(self, ids: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the vectors of word pieces [P, D], and their lengths [P]."""
        rows, positions = self._encoder.table_rows(ids)
        vectors = rows.take(positions, axis=0, mode="clip")
        norms = np.sqrt(np.einsum("rd,rd->r", vectors, vectors))
        return vectors, np.maximum(norms, np.finfo(np.float32).tiny)


def find_passage_ranker(encoder: Any) -> PassageRanker | None:
    """Return a ranker that uses an encoder, or None if it has no word piece vectors.

    Args:
        encoder: a `SentenceEncoder`, or an encoder from `embeddings.load`.

    Returns:
        The ranker, or None.
    """
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


def _piece_weights(ids: IntArray, norms: FloatArray) -> FloatArray:
    """Return the weights of the pieces of a query, given the lengths of their vectors."""
    rarity = np.log(ids + 2) - FREQUENT_PIECES
    weights = np.sqrt(norms) * np.maximum(rarity, SMALLEST_WEIGHT)
    return weights.astype(np.float32)


def _centred(cosines: FloatArray, groups: LanguageGroups) -> FloatArray:
    """Subtract a part of the difference between the mean cosine of a language and of all [W]."""
    if len(groups) < 2:
        return cosines
    differences = groups.means(cosines, PRIOR_OF_COSINE) - cosines.mean()
    return cosines - CENTRED_SHARE * differences[groups.numbers]


def _inverse_frequency(of_windows: FloatArray, groups: LanguageGroups) -> FloatArray:
    """Return larger weights for pieces of the query that fewer windows contain.

    As in the inverse document frequency, a weight is the negative logarithm of a share of windows.
    A window with a similar piece, for example a translation, counts in part. The share is that in
    the language in which it is largest.

    Args:
        of_windows: largest cosine of each piece of the query with a piece of each window [q, W].
        groups: languages of the windows.
    """
    contained = np.maximum(of_windows, 0) ** CONTAINED_POWER
    shares = contained.mean(axis=1)
    if len(groups) > 1:
        shares = np.maximum(shares, groups.means(contained, PRIOR_OF_FREQUENCY).max(axis=1))
    return 1 - np.log(shares + 1 / of_windows.shape[1])


def _translation_scales(of_windows: FloatArray, groups: LanguageGroups) -> FloatArray:
    """Return how well each language can match each piece of the query [q, G], at most 1.

    This is the largest cosine of the piece in the language, relative to that in the best language.
    A language with few windows may lack a translation by chance, so it is averaged with the others.

    Args:
        of_windows: largest cosine of each piece of the query with a piece of each window [q, W].
        groups: languages of the windows.
    """
    largest = np.maximum(groups.largest(of_windows), LEAST_TRANSLATION)
    typical = largest @ groups.sizes / groups.sizes.sum()
    typical = np.maximum(typical[:, None], largest)
    averaged = groups.sizes * largest + PRIOR_OF_LARGEST * typical
    averaged /= groups.sizes + PRIOR_OF_LARGEST
    scales = averaged / averaged.max(axis=1, keepdims=True)
    return scales.astype(np.float32)


def _compare_pairs(cosines: FloatArray, num_pieces: IntArray) -> FloatArray:
    """Return the similarities of pairs of adjacent pieces [n - 1, P].

    Args:
        cosines: cosines of pieces of the query with those of the windows [n, P].
        num_pieces: number of pieces of each window [W].
    """
    pairs = np.empty_like(cosines[1:])
    np.minimum(cosines[:-1, :-1], cosines[1:, 1:], out=pairs[:, :-1])
    # The last piece of a window has no next piece.
    pairs[:, num_pieces.cumsum() - 1] = 0
    return pairs


def _pair_scores(of_pairs: FloatArray, of_windows: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the similarity of each window to the pairs of adjacent pieces of the query [W].

    A query of one piece has no pairs, so this piece is compared alone.

    Args:
        of_pairs: largest similarity of each pair of the query with a pair of each window
            [q - 1, W].
        of_windows: largest cosine of each piece of the query with a piece of each window [q, W].
        weights: weights of the pieces of the query, whose sum is 1 [q].
    """
    if len(weights) == 1:
        return of_windows[0]
    pair_weights = weights[:-1] + weights[1:]
    return pair_weights / pair_weights.sum() @ of_pairs


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
