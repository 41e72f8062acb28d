import numpy as np
import pytest

from fairseq_lxsr.vectors.pieces import Pieces, piece_scores


def slowly(table: np.ndarray, x: list[int], y: list[int]) -> float:
    """Ordered MaxSim by its definition: loops over pieces."""

    def vectors(sentence: list[int]) -> list[np.ndarray]:
        rows = [np.zeros(table.shape[1]), *table[sentence].astype(float), np.zeros(table.shape[1])]
        return [
            row + (before + after) / 5
            for before, row, after in zip(rows, rows[1:], rows[2:], strict=False)
        ]

    def similarity(t: int, u: int) -> float:
        one, other = vectors(x)[t], vectors(y)[u]
        distance = abs((t + 0.5) / len(x) - (u + 0.5) / len(y))
        norms = np.linalg.norm(one) * np.linalg.norm(other)
        return one @ other / norms * (1 - distance / 2) if norms else 0

    similarities = np.array([[similarity(t, u) for u in range(len(y))] for t in range(len(x))])
    weights = [[float(np.linalg.norm(table[piece])) for piece in side] for side in (x, y)]
    both = sum(weights[0][t] * max(similarities[t]) for t in range(len(x)))
    both += sum(weights[1][u] * max(similarities[:, u]) for u in range(len(y)))
    return both / (2 * (sum(sum(side) ** 8 for side in weights) / 2) ** (1 / 8))


def pieces_of(sentences: list[list[int]]) -> Pieces:
    return Pieces(np.concatenate(sentences), np.array([len(sentence) for sentence in sentences]))


def test_a_pair_by_hand():
    """x = (3, 0), (0, 5): at places 1/4 and 3/4, weights 3 and 5, compared by (3, 1) and (0.6, 5).
    y = (2, 0): at 1/2.

    The cosines 3 / sqrt(10) and 0.6 / sqrt(25.36) lose an eighth, since 1/4 lies between the
    places; y finds the first.
    """
    table = np.array([[3, 0], [0, 5], [2, 0]], dtype=np.float32)
    found = piece_scores(table, pieces_of([[0, 1]]), pieces_of([[2]]), np.array([[0]]))
    first, second = 0.875 * 3 / 10**0.5, 0.875 * 0.6 / 25.36**0.5
    mean = ((8**8 + 2**8) / 2) ** (1 / 8)
    np.testing.assert_allclose(
        found, [[(3 * first + 5 * second + 2 * first) / (2 * mean)]], rtol=1e-6
    )


def test_exchanged_pieces_score_less_and_a_piece_more_is_not_free():
    table = np.eye(9, dtype=np.float32) * 2
    query = [0, 1, 2, 3, 4, 5, 6, 7]
    others = [query, [7, 1, 2, 3, 4, 5, 6, 0], [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 8, 4, 5, 6]]
    same, exchanged, lighter, more = piece_scores(
        table, pieces_of([query]), pieces_of(others), np.arange(4)[None]
    )[0]
    assert same == pytest.approx(1, abs=1e-6)
    assert exchanged < 0.9
    assert more < lighter  # though it makes the lighter sentence as heavy as the query


def test_sentences_of_any_length_as_by_definition():
    random = np.random.default_rng(1)
    table = (random.normal(size=(50, 8)) * random.exponential(size=(50, 1))).astype(np.float32)
    table[:9] = 0
    queries, candidates = (
        [random.integers(50, size=random.integers(1, longest)).tolist() for _ in range(count)]
        for count, longest in ((20, 9), (30, 16))
    )
    found = random.integers(30, size=(20, 4))
    with np.errstate(all="raise", under="ignore"):
        scores = piece_scores(table, pieces_of(queries), pieces_of(candidates), found)
    expected = [
        [slowly(table, queries[i], candidates[j]) for j in row] for i, row in enumerate(found)
    ]
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    back = piece_scores(
        table, pieces_of(candidates), pieces_of(queries), np.arange(20)[None].repeat(30, 0)
    )
    # a pair has one score
    np.testing.assert_allclose(scores, back[found, np.arange(20)[:, None]], atol=1e-6)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_scale_of_the_table_changes_nothing(scale):
    table = np.random.default_rng(2).normal(size=(9, 4)).astype(np.float32)
    sentences = pieces_of([[0, 1, 2], [3, 4, 5, 6], [7, 8]])
    arguments = sentences, sentences, np.array([[0, 1, 2]] * 3)
    with np.errstate(all="raise", under="ignore"):
        scaled = piece_scores(table * np.float32(scale), *arguments)
    np.testing.assert_allclose(scaled, piece_scores(table, *arguments), atol=1e-6)


def test_itself_scores_one_and_a_zero_row_weighs_nothing():
    table = np.array([[0, 0], [0, 2], [1, 0]], dtype=np.float32)
    sentences = pieces_of([[1, 2], [2, 0, 1], [0]])
    scores = piece_scores(table, sentences, sentences, np.array([[0, 1, 2]] * 3))
    np.testing.assert_allclose(scores[np.eye(3, dtype=bool)], [1, 1, 0], atol=1e-6)
    np.testing.assert_array_equal(scores[:, 2], 0)
    none = np.empty((0, 3), int)
    assert piece_scores(table, pieces_of([[0]]), sentences, none).shape == (0, 3)


def test_places_without_a_candidate_have_no_score_and_change_no_other():
    rng = np.random.default_rng(6)
    table = rng.standard_normal((30, 8)).astype(np.float32)
    queries, candidates = (
        pieces_of([rng.integers(30, size=n) for n in rng.integers(1, 9, 20)]) for _ in range(2)
    )
    found = rng.integers(20, size=(20, 5))
    whole = piece_scores(table, queries, candidates, found)
    some = np.where(rng.random((20, 5)) < 0.4, -1, found)
    some[[0, 7]] = -1
    scores = piece_scores(table, queries, candidates, some, query_block=7)
    np.testing.assert_allclose(scores, np.where(some < 0, 0, whole), atol=1e-6)
