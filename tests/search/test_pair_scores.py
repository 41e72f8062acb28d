"""Scores of aligned pairs, against formulas written out; the command line of `lxsr score`."""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search import (
    CorpusIndex,
    PairEncoder,
    PairScoring,
    score_pairs,
    score_pairs_among_themselves,
)

VECTORS = np.random.default_rng(0).standard_normal((2, 30, 8)).astype(np.float32)
VECTORS[1] += 2 * VECTORS[0]  # translations are near
PAIRS = [(f"s {number}", f"t {number}", f"line {number}") for number in range(30)]
# This pair occurs three times.
PAIRS += [PAIRS[3], PAIRS[3]]


class Numbers:
    """An encoder of sentences such as `s 3`; `empty` stands for a sentence without a known word."""

    fingerprint = "numbers"
    width = 8

    def embed(self, text, counts=None):
        rows = np.zeros((len(text), 8), np.float32)
        for row, line in enumerate(text):
            if line != "empty":
                side, number = line.split()
                rows[row] = VECTORS["st".index(side), int(number)]
        return rows


def cosines():
    unit = VECTORS / np.linalg.norm(VECTORS, axis=2, keepdims=True)
    return unit[0] @ unit[1].T


def margins(margin: str, k: int) -> np.ndarray:
    table = cosines()
    mean = (np.sort(table)[:, -k:].mean(1) + np.sort(table.T)[:, -k:].mean(1)) / 2
    cosine = table.diagonal()
    scores = {"ratio": cosine / mean, "distance": cosine - mean, "absolute": cosine}[margin]
    return scores[[int(source[2:]) for source, *_ in PAIRS]]


def collect(scored):
    """All pairs and scores of an iterator over blocks."""
    pairs = []
    scores = []
    for block, scores_of_block in scored:
        pairs += block
        scores.append(scores_of_block)
    return pairs, np.concatenate(scores)


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
def test_scores_of_pairs_among_themselves_are_the_formula(margin, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.search.pairs.PAIR_BLOCK", 7)
    monkeypatch.setattr("fairseq_lxsr.search.pairs.SEARCH_ROWS", 11)
    pairs, scores = collect(
        score_pairs_among_themselves(lambda: PAIRS, PairEncoder(Numbers()), PairScoring(margin, 3))
    )
    assert pairs == PAIRS
    np.testing.assert_allclose(scores, margins(margin, 3), rtol=1e-5, atol=1e-6)


def test_scores_against_indexes_of_the_same_text_are_those_among_themselves(tmp_path):
    indexes = []
    for side in "st":
        sentences = [f"{side} {number}" for number in range(30)]
        path = tmp_path / side
        indexes.append(CorpusIndex.build(path, sentences, Numbers().embed, "numbers", plain=True))
    _, scores = collect(
        score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring("ratio", 3), tuple(indexes))
    )
    np.testing.assert_allclose(scores, margins("ratio", 3), rtol=1e-5)


def test_fewer_pairs_than_neighbours_are_refused():
    with pytest.raises(InputError, match=r"k is 4; .*2"):
        next(score_pairs_among_themselves(lambda: PAIRS[:2], PairEncoder(Numbers())))


def test_an_index_of_another_model_is_refused(tmp_path):
    index = CorpusIndex.build(
        tmp_path / "index", ["s 1", "s 2"], Numbers().embed, "another", plain=True
    )
    with pytest.raises(InputError, match=r"\banother\b.*\bnumbers\b"):
        next(score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring("ratio", 1), (index, index)))


def test_margins_need_one_vector_for_each_sentence(tmp_path):
    """The vectors of a text and of its sentences would count as several neighbours."""

    def embed(sentences):
        return np.ones((len(sentences), 8))

    lines = ["s 1", "The first of two sentences is here. The second of them is there."]
    plain = CorpusIndex.build(tmp_path / "plain", lines, embed, "numbers", plain=True)
    # Texts of one sentence have one vector each, also in an index that is not plain.
    short = CorpusIndex.build(tmp_path / "short", ["s 1", "s 2"], embed, "numbers")
    default = CorpusIndex.build(tmp_path / "default", lines, embed, "numbers")
    for index in (plain, short):
        _, scores = collect(
            score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring("ratio", 2), (index, index))
        )
        assert len(scores) == len(PAIRS)
    for indexes in ((plain, default), (default, plain)):
        with pytest.raises(InputError, match=r"default: 1 .*--plain"):
            next(score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring("ratio", 1), indexes))


def test_pairs_with_a_side_without_a_known_word_score_zero_and_are_counted():
    pairs = [*PAIRS[:5], ("empty", "t 1", ""), ("s 1", "empty", "")]
    for is_among_themselves in (False, True):
        encode = PairEncoder(Numbers())
        if is_among_themselves:
            scored = score_pairs_among_themselves(lambda: pairs, encode, PairScoring("ratio", 2))
        else:
            scored = score_pairs(pairs, encode)
        _, scores = collect(scored)
        assert (scores[5:] == 0).all()
        assert (scores[:5] > 0).all()
        assert encode.unknown_pairs == 2


def test_sides_of_two_widths_are_refused():
    class ByLanguage(Numbers):
        def embed(self, text, counts=None):
            width = 5 if text.language == "fr" else 8
            return super().embed(text)[:, :width]

    encode = PairEncoder(ByLanguage(), ("en", "fr"))
    with pytest.raises(InputError, match=r"sources\b.*\b8\b.*targets\b.*\b5\b"):
        next(score_pairs(PAIRS, encode))
    with pytest.raises(InputError, match=r"queries\b.*\b8\b.*candidates\b.*\b5\b"):
        next(score_pairs_among_themselves(lambda: PAIRS, encode))


def test_a_margin_without_indexes_is_refused():
    for margin in ("ratio", "distance"):
        with pytest.raises(InputError, match=margin):
            next(score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring(margin)))
