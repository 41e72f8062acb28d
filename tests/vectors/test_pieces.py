"""Ordered MaxSim of word pieces, against a slow reference written from the definition."""

import numpy as np
import pytest

from fairseq_lxsr.vectors.pieces import Pieces, piece_scores


def reference_score(table: np.ndarray, query: list[int], candidate: list[int]) -> float:
    """Ordered MaxSim by its definition: loops over pieces."""

    def with_neighbours(sentence: list[int]) -> list[np.ndarray]:
        """The vectors of pieces, plus a fifth of those before and after each."""
        rows = np.zeros((len(sentence) + 2, table.shape[1]))
        rows[1:-1] = table[sentence]
        vectors = []
        for position in range(1, len(sentence) + 1):
            vectors.append(rows[position] + (rows[position - 1] + rows[position + 1]) / 5)
        return vectors

    similarities = np.zeros((len(query), len(candidate)))
    for t, query_vector in enumerate(with_neighbours(query)):
        for u, candidate_vector in enumerate(with_neighbours(candidate)):
            distance = abs((t + 0.5) / len(query) - (u + 0.5) / len(candidate))
            norms = np.linalg.norm(query_vector) * np.linalg.norm(candidate_vector)
            if norms:
                cosine = query_vector @ candidate_vector / norms
                similarities[t, u] = cosine * (1 - distance / 2)
    query_weights = np.linalg.norm(table[query].astype(float), axis=1)
    candidate_weights = np.linalg.norm(table[candidate].astype(float), axis=1)
    total = query_weights @ similarities.max(axis=1)
    total += candidate_weights @ similarities.max(axis=0)
    mean_weight = ((query_weights.sum() ** 8 + candidate_weights.sum() ** 8) / 2) ** (1 / 8)
    return total / (2 * mean_weight)


def pieces_of(sentences: list[list[int]]) -> Pieces:
    return Pieces(np.concatenate(sentences), np.array([len(sentence) for sentence in sentences]))


def test_the_score_of_a_pair_is_the_one_computed_by_hand():
    # The pieces of the query are at 1/4 and 3/4, that of the candidate at 1/2.
    table = np.array([[3, 0], [0, 5], [2, 0]], dtype=np.float32)
    scores = piece_scores(table, pieces_of([[0, 1]]), pieces_of([[2]]), np.array([[0]]))
    # With a fifth of their neighbours, the vectors of the query are (3, 1) and (0.6, 5). Their
    # cosines to (2, 0) lose an eighth, because of the distance of 1/4.
    first = 0.875 * 3 / 10**0.5
    second = 0.875 * 0.6 / 25.36**0.5
    mean_weight = ((8**8 + 2**8) / 2) ** (1 / 8)
    expected = (3 * first + 5 * second + 2 * first) / (2 * mean_weight)
    np.testing.assert_allclose(scores, [[expected]], rtol=1e-6)


def test_exchanged_and_additional_pieces_lower_the_score():
    table = np.eye(9, dtype=np.float32) * 2
    query = [0, 1, 2, 3, 4, 5, 6, 7]
    exchanged = [7, 1, 2, 3, 4, 5, 6, 0]
    shorter = [0, 1, 2, 3, 4, 5, 6]
    # As heavy as the query.
    shorter_with_another_piece = [0, 1, 2, 3, 8, 4, 5, 6]
    candidates = pieces_of([query, exchanged, shorter, shorter_with_another_piece])
    [scores] = piece_scores(table, pieces_of([query]), candidates, np.arange(4)[None])
    assert scores[0] == pytest.approx(1, abs=1e-6)
    assert scores[1] < 0.9
    assert scores[3] < scores[2]


def random_sentences(rng, count, max_length, num_pieces):
    sentences = []
    for _ in range(count):
        length = rng.integers(1, max_length)
        sentences.append(rng.integers(num_pieces, size=length).tolist())
    return sentences


def test_scores_of_sentences_of_any_length_are_those_of_the_definition():
    rng = np.random.default_rng(1)
    table = (rng.normal(size=(50, 8)) * rng.exponential(size=(50, 1))).astype(np.float32)
    table[:9] = 0
    queries = random_sentences(rng, 20, 9, 50)
    candidates = random_sentences(rng, 30, 16, 50)
    ids = rng.integers(30, size=(20, 4))
    with np.errstate(all="raise", under="ignore"):
        scores = piece_scores(table, pieces_of(queries), pieces_of(candidates), ids)
    assert scores.dtype == np.float32
    for query, row in enumerate(ids):
        expected = [reference_score(table, queries[query], candidates[number]) for number in row]
        np.testing.assert_allclose(scores[query], expected, atol=1e-6)
    # The score of a pair does not depend on which of its sentences is the query.
    all_queries = np.tile(np.arange(20), (30, 1))
    reverse = piece_scores(table, pieces_of(candidates), pieces_of(queries), all_queries)
    np.testing.assert_allclose(scores, reverse[ids, np.arange(20)[:, None]], atol=1e-6)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_scale_of_the_table_changes_no_score(scale):
    table = np.random.default_rng(2).normal(size=(9, 4)).astype(np.float32)
    sentences = pieces_of([[0, 1, 2], [3, 4, 5, 6], [7, 8]])
    ids = np.array([[0, 1, 2]] * 3)
    with np.errstate(all="raise", under="ignore"):
        scaled = piece_scores(table * np.float32(scale), sentences, sentences, ids)
    expected = piece_scores(table, sentences, sentences, ids)
    np.testing.assert_allclose(scaled, expected, atol=1e-6)


def test_a_sentence_scores_one_with_itself_and_zero_with_zero_vectors():
    table = np.array([[0, 0], [0, 2], [1, 0]], dtype=np.float32)
    sentences = pieces_of([[1, 2], [2, 0, 1], [0]])
    scores = piece_scores(table, sentences, sentences, np.array([[0, 1, 2]] * 3))
    np.testing.assert_allclose(scores.diagonal(), [1, 1, 0], atol=1e-6)
    np.testing.assert_array_equal(scores[:, 2], 0)


def test_no_queries_have_no_scores():
    table = np.zeros((1, 2), dtype=np.float32)
    scores = piece_scores(table, pieces_of([[0]]), pieces_of([[0]]), np.empty((0, 3), int))
    assert scores.shape == (0, 3)


def test_missing_candidates_score_zero_and_change_no_other_score():
    rng = np.random.default_rng(6)
    table = rng.standard_normal((30, 8)).astype(np.float32)
    queries = pieces_of(random_sentences(rng, 20, 9, 30))
    candidates = pieces_of(random_sentences(rng, 20, 9, 30))
    ids = rng.integers(20, size=(20, 5))
    expected = piece_scores(table, queries, candidates, ids)
    is_missing = rng.random((20, 5)) < 0.4
    is_missing[[0, 7]] = True
    ids[is_missing] = -1
    expected[is_missing] = 0
    scores = piece_scores(table, queries, candidates, ids, query_block=7)
    np.testing.assert_allclose(scores, expected, atol=1e-6)
