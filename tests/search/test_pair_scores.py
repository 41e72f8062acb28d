"""Scores of aligned pairs, against formulas written out."""

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

NUM_LINES = 30
WIDTH = 8
# The vectors of both sides.
VECTORS = np.random.default_rng(0).standard_normal((2, NUM_LINES, WIDTH)).astype(np.float32)
VECTORS[1] += 2 * VECTORS[0]  # translations are near
PAIRS = [(f"s {number}", f"t {number}", f"line {number}") for number in range(NUM_LINES)]
# This pair occurs three times.
PAIRS += [PAIRS[3], PAIRS[3]]


class Numbers:
    """An encoder of sentences such as `s 3`; `empty` stands for a sentence without a known word."""

    fingerprint = "numbers"
    width = WIDTH

    def embed(self, text, counts=None):
        rows = np.zeros((len(text), WIDTH), np.float32)
        for row, line in enumerate(text):
            if line != "empty":
                side, number = line.split()
                rows[row] = VECTORS["st".index(side), int(number)]
        return rows


def cosines():
    """The cosines of all sources (rows) and targets (columns)."""
    units = VECTORS / np.linalg.norm(VECTORS, axis=2, keepdims=True)
    return units[0] @ units[1].T


def margins(margin: str, k: int) -> np.ndarray:
    """The scores of PAIRS by the formula, with the k nearest of each side."""
    table = cosines()
    source_means = np.sort(table)[:, -k:].mean(axis=1)
    target_means = np.sort(table.T)[:, -k:].mean(axis=1)
    mean = (source_means + target_means) / 2
    cosine = table.diagonal()
    scores = {"ratio": cosine / mean, "distance": cosine - mean, "absolute": cosine}[margin]
    numbers = [int(source.split()[1]) for source, *_ in PAIRS]
    return scores[numbers]


def collect(scored):
    """All pairs and scores of an iterator over blocks."""
    pairs = []
    scores = []
    for block, scores_of_block in scored:
        pairs += block
        scores.append(scores_of_block)
    return pairs, np.concatenate(scores)


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
def test_scores_of_pairs_among_themselves_are_those_of_the_formula(margin, monkeypatch):
    """A pair that occurs three times counts once among the neighbours."""
    # In blocks that 32 pairs and 30 vectors do not fill evenly.
    monkeypatch.setattr("fairseq_lxsr.search.pairs.PAIR_BLOCK", 7)
    monkeypatch.setattr("fairseq_lxsr.search.pairs.SEARCH_ROWS", 11)
    scoring = PairScoring(margin, k=3)

    scored = score_pairs_among_themselves(lambda: PAIRS, PairEncoder(Numbers()), scoring)
    pairs, scores = collect(scored)

    assert pairs == PAIRS
    np.testing.assert_allclose(scores, margins(margin, 3), rtol=1e-5, atol=1e-6)


def test_scores_against_indexes_of_the_same_text_are_those_among_themselves(tmp_path):
    indexes = []
    for side in ("s", "t"):
        sentences = [f"{side} {number}" for number in range(NUM_LINES)]
        path = tmp_path / side
        indexes.append(CorpusIndex.build(path, sentences, Numbers().embed, "numbers", plain=True))

    scored = score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring("ratio", k=3), tuple(indexes))
    _, scores = collect(scored)

    np.testing.assert_allclose(scores, margins("ratio", 3), rtol=1e-5)


def test_fewer_pairs_than_neighbours_are_refused():
    """The default number of neighbours is 4."""
    with pytest.raises(InputError, match=r"k is 4; .*2"):
        next(score_pairs_among_themselves(lambda: PAIRS[:2], PairEncoder(Numbers())))


def test_the_error_for_an_index_of_another_model_names_both_models(tmp_path):
    index = CorpusIndex.build(
        tmp_path / "index", ["s 1", "s 2"], Numbers().embed, "another", plain=True
    )

    with pytest.raises(InputError, match=r"\banother\b.*\bnumbers\b"):
        next(score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring("ratio", k=1), (index, index)))


# The second has two sentences, and so three vectors in an index that is not plain.
LINES_OF_SENTENCES = ["s 1", "The first of two sentences is here. The second of them is there."]


def embed_ones(sentences):
    return np.ones((len(sentences), WIDTH))


@pytest.mark.parametrize(
    ("lines", "plain"),
    [(LINES_OF_SENTENCES, True), (["s 1", "s 2"], False)],
    ids=["plain", "one sentence each"],
)
def test_margins_are_computed_with_an_index_of_one_vector_for_each_line(tmp_path, lines, plain):
    index = CorpusIndex.build(tmp_path / "index", lines, embed_ones, "numbers", plain=plain)

    scored = score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring("ratio", k=2), (index, index))
    _, scores = collect(scored)

    assert len(scores) == len(PAIRS)


@pytest.mark.parametrize("is_source", [True, False], ids=["source", "target"])
def test_margins_with_an_index_of_several_vectors_for_a_line_are_refused(tmp_path, is_source):
    """The vectors of a text and of its sentences would count as several neighbours."""
    plain = CorpusIndex.build(
        tmp_path / "plain", LINES_OF_SENTENCES, embed_ones, "numbers", plain=True
    )
    default = CorpusIndex.build(tmp_path / "default", LINES_OF_SENTENCES, embed_ones, "numbers")
    indexes = (default, plain) if is_source else (plain, default)

    with pytest.raises(InputError, match=r"default: 1 .*--plain"):
        next(score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring("ratio", k=1), indexes))


@pytest.mark.parametrize("is_among_themselves", [False, True], ids=["cosine", "margin"])
def test_pairs_with_a_side_without_a_known_word_score_zero_and_are_counted(is_among_themselves):
    unknown_pairs = [("empty", "t 1", ""), ("s 1", "empty", "")]
    pairs = [*PAIRS[:5], *unknown_pairs]
    encode = PairEncoder(Numbers())

    if is_among_themselves:
        scored = score_pairs_among_themselves(lambda: pairs, encode, PairScoring("ratio", k=2))
    else:
        scored = score_pairs(pairs, encode)
    _, scores = collect(scored)

    assert (scores[:5] > 0).all()
    assert (scores[5:] == 0).all()
    assert encode.unknown_pairs == 2


class NarrowFrench(Numbers):
    """As Numbers, but with five dimensions for French."""

    def embed(self, text, counts=None):
        width = 5 if text.language == "fr" else WIDTH
        return super().embed(text)[:, :width]


def test_the_error_for_the_cosines_of_sides_of_two_widths_names_both():
    encode = PairEncoder(NarrowFrench(), ("en", "fr"))

    with pytest.raises(InputError, match=r"sources\b.*\b8\b.*targets\b.*\b5\b"):
        next(score_pairs(PAIRS, encode))


def test_the_error_for_the_margins_of_sides_of_two_widths_names_both():
    encode = PairEncoder(NarrowFrench(), ("en", "fr"))

    with pytest.raises(InputError, match=r"queries\b.*\b8\b.*candidates\b.*\b5\b"):
        next(score_pairs_among_themselves(lambda: PAIRS, encode))


@pytest.mark.parametrize("margin", ["ratio", "distance"])
def test_a_margin_without_indexes_is_refused(margin):
    with pytest.raises(InputError, match=margin):
        next(score_pairs(PAIRS, PairEncoder(Numbers()), PairScoring(margin)))
