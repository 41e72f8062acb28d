import numpy as np
import pytest

from fairseq_lxsr.retrieval import rerank
from fairseq_lxsr.retrieval.rerank import Pieces, piece_scores


def slowly(table: np.ndarray, x: list[int], y: list[int]) -> float:
    """MaxSim both ways by its definition: a loop over pieces."""

    def one_way(x: list[int], y: list[int]) -> float:
        total = 0.0
        for piece in x:
            norm = np.linalg.norm(table[piece])
            total += norm * max(table[piece] @ table[other] / norm / np.linalg.norm(table[other]) for other in y)
        return total

    weights = (sum(np.linalg.norm(table[piece]) for piece in side) for side in (x, y))
    return (one_way(x, y) + one_way(y, x)) / (2 * max(weights))


def pieces_of(sentences: list[list[int]]) -> Pieces:
    return Pieces(np.concatenate(sentences), np.array([len(sentence) for sentence in sentences]))


def test_a_pair_by_hand():
    """x = (3, 0), (0, 1), which weigh 4; y = 2 (0.6, 0.8): x to y 3 * 0.6 + 0.8, y to x 2 * 0.8; 4.2 of 2 * 4."""
    table = np.array([[3, 0], [0, 1], [1.2, 1.6]], dtype=np.float32)
    found = piece_scores(table, pieces_of([[0, 1]]), pieces_of([[2]]), np.array([[0]]))
    np.testing.assert_allclose(found, [[4.2 / 8]], rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 37, 4096])
def test_sentences_of_any_length_as_by_definition(rows, monkeypatch):
    """Batches of one query, of some, and of all: padding changes nothing."""
    monkeypatch.setattr(rerank, "ROWS", rows)
    random = np.random.default_rng(1)
    table = (random.normal(size=(50, 8)) * random.exponential(size=(50, 1))).astype(np.float32)
    queries, candidates = (
        [random.integers(50, size=random.integers(1, longest)).tolist() for _ in range(count)]
        for count, longest in ((20, 9), (30, 16))
    )
    found = random.integers(30, size=(20, 4))
    scores = piece_scores(table, pieces_of(queries), pieces_of(candidates), found)
    expected = [[slowly(table, queries[i], candidates[j]) for j in row] for i, row in enumerate(found)]
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    back = piece_scores(table, pieces_of(candidates), pieces_of(queries), np.arange(20)[None].repeat(30, 0))
    np.testing.assert_allclose(scores, back[found, np.arange(20)[:, None]], atol=1e-6)  # a pair has one score


def test_itself_scores_one_and_a_zero_row_weighs_nothing():
    table = np.array([[0, 0], [0, 2], [1, 0]], dtype=np.float32)
    sentences = pieces_of([[1, 2], [2, 0, 1], [0]])
    scores = piece_scores(table, sentences, sentences, np.array([[0, 1, 2]] * 3))
    np.testing.assert_allclose(scores, [[1, 1, 0], [1, 1, 0], [0, 0, 0]], atol=1e-6)


def test_no_queries():
    assert piece_scores(
        np.ones((1, 2)), Pieces(np.array([0]), np.array([1])), pieces_of([[0]]), np.empty((0, 3), int)
    ).shape == (0, 3)
