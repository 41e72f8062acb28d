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
# a pair that occurs three times
PAIRS = [(f"s {n}", f"t {n}", f"line {n}") for n in [*range(30), 3, 3]]


class Numbers:
    """Sentences are the numbers of their vectors; `empty` has none."""

    fingerprint, width = "numbers", 8

    def embed(self, text, counts=None):
        rows = [
            np.zeros(8) if "empty" in line else VECTORS["st".index(line[0]), int(line[2:])]
            for line in text
        ]
        return np.array(rows, np.float32).reshape(-1, 8)


def cosines():
    unit = VECTORS / np.linalg.norm(VECTORS, axis=2, keepdims=True)
    return unit[0] @ unit[1].T


def margins(margin: str, k: int) -> np.ndarray:
    table = cosines()
    mean = (np.sort(table)[:, -k:].mean(1) + np.sort(table.T)[:, -k:].mean(1)) / 2
    own = table.diagonal()
    scores = {"ratio": own / mean, "distance": own - mean, "absolute": own}[margin]
    return scores[[int(source[2:]) for source, *_ in PAIRS]]


def collect(scored):
    blocks, scores = zip(*scored, strict=True)
    return [pair for block in blocks for pair in block], np.concatenate(scores)


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
def test_among_themselves(margin, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.search.pairs.PAIR_BLOCK", 7)
    monkeypatch.setattr("fairseq_lxsr.search.pairs.SEARCH_ROWS", 11)
    pairs, scores = collect(
        score_pairs_among_themselves(lambda: PAIRS, PairEncoder(Numbers()), PairScoring(margin, 3))
    )
    assert pairs == PAIRS
    np.testing.assert_allclose(scores, margins(margin, 3), rtol=1e-5, atol=1e-6)


def test_against_indexes_of_the_same_text(tmp_path):
    """The neighbours are the same sentences, so the margins are."""
    encode = Numbers().embed
    indexes = tuple(
        CorpusIndex.build(
            tmp_path / side, [f"{side} {n}" for n in range(30)], encode, "numbers", plain=True
        )
        for side in "st"
    )
    _, scores = collect(
        score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring("ratio", 3), indexes)
    )
    np.testing.assert_allclose(scores, margins("ratio", 3), rtol=1e-5)


def test_too_few_neighbours_and_an_index_of_another_model(tmp_path):
    with pytest.raises(InputError, match=r"k is 4; .*2"):
        next(score_pairs_among_themselves(lambda: PAIRS[:2], PairEncoder(Numbers())))
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


@pytest.mark.parametrize("among", [False, True])
def test_empty_sides_score_nothing(among):
    encode, pairs = PairEncoder(Numbers()), [*PAIRS[:5], ("empty", "t 1", ""), ("s 1", "empty", "")]
    themselves = score_pairs_among_themselves(lambda: pairs, encode, PairScoring("ratio", 2))
    _, scores = collect(themselves if among else score_pairs(pairs, encode))
    assert (scores[5:] == 0).all()
    assert (scores[:5] > 0).all()
    assert encode.unknown_pairs == 2


@pytest.mark.parametrize("among", [False, True])
def test_sides_of_two_widths_are_refused(among):
    class ByLanguage(Numbers):
        def embed(self, text, counts=None):
            return super().embed(text)[:, : 5 if text.language == "fr" else 8]

    encode = PairEncoder(ByLanguage(), ("en", "fr"))
    message = (
        r"queries\b.*\b8\b.*candidates\b.*\b5\b" if among else r"sources\b.*\b8\b.*targets\b.*\b5\b"
    )
    with pytest.raises(InputError, match=message):
        next(
            score_pairs_among_themselves(lambda: PAIRS, encode)
            if among
            else score_pairs(PAIRS, encode)
        )


@pytest.mark.parametrize("margin", ["ratio", "distance"])
def test_a_margin_needs_indexes(margin):
    with pytest.raises(InputError, match=margin):
        next(score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring(margin)))
