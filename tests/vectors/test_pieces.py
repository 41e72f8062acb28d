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
    """The sentences, lists of rows of the table of vectors, in the form that is scored."""
    return Pieces(np.concatenate(sentences), np.array([len(sentence) for sentence in sentences]))


def test_the_score_of_a_pair_is_the_one_computed_by_hand():
    table = np.array([[3, 0], [0, 5], [2, 0]], dtype=np.float32)
    query = pieces_of([[0, 1]])
    candidate = pieces_of([[2]])

    scores = piece_scores(table, query, candidate, ids=np.array([[0]]))

    # With a fifth of their neighbours, the vectors of the query are (3, 1) and (0.6, 5), whose
    # squared lengths are 10 and 25.36. These are their cosines to (2, 0).
    first_cosine = 3 / 10**0.5
    second_cosine = 0.6 / 25.36**0.5
    # The pieces of the query are at 1/4 and 3/4, that of the candidate at 1/2. Half of the distance
    # of 1/4 is lost.
    first = 0.875 * first_cosine
    second = 0.875 * second_cosine
    # Weights are the lengths of vectors in the table, 3 and 5 against 2. The best piece of the
    # query for the candidate is the first.
    total = 3 * first + 5 * second + 2 * first
    mean_weight = (((3 + 5) ** 8 + 2**8) / 2) ** (1 / 8)
    np.testing.assert_allclose(scores, [[total / (2 * mean_weight)]], rtol=1e-6)


def test_a_sentence_scores_lower_with_exchanged_pieces_and_with_another_piece():
    # All pieces have the same weight and no similarity to each other.
    table = np.eye(9, dtype=np.float32) * 2
    query = [0, 1, 2, 3, 4, 5, 6, 7]
    exchanged = [7, 1, 2, 3, 4, 5, 6, 0]
    shorter = [0, 1, 2, 3, 4, 5, 6]
    shorter_with_another_piece = [0, 1, 2, 3, 8, 4, 5, 6]
    candidates = pieces_of([query, exchanged, shorter, shorter_with_another_piece])

    [scores] = piece_scores(table, pieces_of([query]), candidates, np.array([[0, 1, 2, 3]]))

    score_of_itself, score_of_exchanged, score_of_shorter, score_with_another = scores
    assert score_of_itself == pytest.approx(1, abs=1e-6)
    assert score_of_exchanged < 0.9
    assert score_with_another < score_of_shorter


def random_sentences(rng, count, max_length, num_pieces):
    """Sentences of 1 to `max_length - 1` random pieces."""
    sentences = []
    for _ in range(count):
        length = rng.integers(1, max_length)
        sentences.append(rng.integers(num_pieces, size=length).tolist())
    return sentences


@pytest.fixture
def random_pairs():
    """A table, 20 queries, 30 candidates, and the ids of four candidates for each query."""
    rng = np.random.default_rng(1)
    # Vectors of very different lengths, and some zeros.
    table = (rng.normal(size=(50, 8)) * rng.exponential(size=(50, 1))).astype(np.float32)
    table[:9] = 0
    queries = random_sentences(rng, 20, 9, 50)
    candidates = random_sentences(rng, 30, 16, 50)
    return table, queries, candidates, rng.integers(30, size=(20, 4))


def test_scores_of_sentences_of_any_length_are_those_of_the_definition(random_pairs):
    table, queries, candidates, ids = random_pairs

    # No division by the length of a zero vector.
    with np.errstate(all="raise", under="ignore"):
        scores = piece_scores(table, pieces_of(queries), pieces_of(candidates), ids)

    assert scores.dtype == np.float32
    for query, ids_of_query, scores_of_query in zip(queries, ids, scores, strict=True):
        expected = [reference_score(table, query, candidates[id_]) for id_ in ids_of_query]
        np.testing.assert_allclose(scores_of_query, expected, atol=1e-6)


def test_the_score_of_a_pair_does_not_depend_on_which_sentence_is_the_query(random_pairs):
    table, queries, candidates, ids = random_pairs
    scores = piece_scores(table, pieces_of(queries), pieces_of(candidates), ids)

    # Every candidate is scored with all 20 queries.
    all_queries = np.tile(np.arange(20), (30, 1))
    reverse = piece_scores(table, pieces_of(candidates), pieces_of(queries), all_queries)

    for query, ids_of_query in enumerate(ids):
        np.testing.assert_allclose(scores[query], reverse[ids_of_query, query], atol=1e-6)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_scale_of_the_table_changes_no_score(scale):
    """Weights are raised to the power of 8, which would be 0 or infinite for such scales."""
    table = np.random.default_rng(2).normal(size=(9, 4)).astype(np.float32)
    sentences = pieces_of([[0, 1, 2], [3, 4, 5, 6], [7, 8]])
    all_ids = np.array([[0, 1, 2]] * 3)
    expected = piece_scores(table, sentences, sentences, all_ids)

    with np.errstate(all="raise", under="ignore"):
        scaled = piece_scores(table * np.float32(scale), sentences, sentences, all_ids)

    np.testing.assert_allclose(scaled, expected, atol=1e-6)


def test_a_sentence_scores_one_with_itself_and_zero_with_zero_vectors():
    # Piece 0 has a zero vector.
    table = np.array([[0, 0], [0, 2], [1, 0]], dtype=np.float32)
    sentences = pieces_of([[1, 2], [2, 0, 1], [0]])

    scores = piece_scores(table, sentences, sentences, np.array([[0, 1, 2]] * 3))

    with_themselves = scores.diagonal()
    np.testing.assert_allclose(with_themselves, [1, 1, 0], atol=1e-6)
    with_zero_vectors = scores[:, 2]
    np.testing.assert_array_equal(with_zero_vectors, 0)


def test_the_scores_of_no_queries_are_an_empty_array():
    table = np.zeros((1, 2), dtype=np.float32)
    sentences = pieces_of([[0]])

    scores = piece_scores(table, sentences, sentences, ids=np.empty((0, 3), int))

    assert scores.shape == (0, 3)


def test_missing_candidates_score_zero_and_change_no_other_score():
    """The id of a missing candidate is -1."""
    rng = np.random.default_rng(6)
    table = rng.standard_normal((30, 8)).astype(np.float32)
    queries = pieces_of(random_sentences(rng, 20, 9, 30))
    candidates = pieces_of(random_sentences(rng, 20, 9, 30))
    ids = rng.integers(20, size=(20, 5))
    expected = piece_scores(table, queries, candidates, ids)
    is_missing = rng.random(ids.shape) < 0.4
    # These queries have no candidate.
    is_missing[[0, 7]] = True
    ids[is_missing] = -1
    expected[is_missing] = 0

    # In blocks of 7 queries, to which the 20 do not add up.
    scores = piece_scores(table, queries, candidates, ids, query_block=7)

    np.testing.assert_allclose(scores, expected, atol=1e-6)
