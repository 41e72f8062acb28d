"""Draws of sentences: what is kept of them, always the same, and an end where there is nothing
left.
"""

import numpy as np
import pytest

from fairseq_lxsr.context.mining import LazyEmbeddings, MinedPair, mine_draws, precision
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import Lines

SIZES = {"en": 40, "fr": 30, "de": 20}


class Directions:
    """An encoder whose sentences are numbers: n points in direction n, of a few dimensions."""

    output_dim = 8

    def __init__(self):
        self.seen = []

    def encode(self, texts, dtype):
        self.seen += texts
        return np.stack(
            [np.random.default_rng(int(text.split()[1])).standard_normal(8) for text in texts]
        )


@pytest.fixture
def embedded(tmp_path):
    encoder = Directions()
    sides = {}
    for language, size in SIZES.items():
        path = tmp_path / language
        path.write_text("".join(f"{language} {number}\n" for number in range(size)))
        sides[language] = LazyEmbeddings(
            encoder, Lines(path), "float32", tmp_path / f"{language}.raw"
        )
    return sides


def test_translations_are_found_and_every_pair_of_languages_has_its_turn(embedded):
    pairs, seconds = mine_draws(embedded, draw=40, best=15, count=40, seed=1)
    assert len(pairs) == len({(pair.languages, pair.sentences) for pair in pairs}) == 40
    assert {pair.languages for pair in pairs} == {("en", "fr"), ("en", "de"), ("fr", "de")}
    # the same number is the same direction
    assert np.mean([pair.sentences[0] == pair.sentences[1] for pair in pairs]) > 0.9
    for pair in pairs:
        one, other = (
            embedded[language][np.array([number])][0]
            for language, number in zip(pair.languages, pair.sentences, strict=True)
        )
        assert pair.cosine == pytest.approx(float(one @ other), abs=1e-6)
    assert seconds["draws"] == 3


def test_a_sentence_is_encoded_once_and_the_seed_decides(embedded):
    one, again, other = (
        mine_draws(embedded, draw=15, best=5, count=30, seed=seed)[0] for seed in (1, 1, 2)
    )
    assert one == again != other
    seen = embedded["en"].encoder.seen
    assert len(seen) == len(set(seen))


def test_one_sentence_of_either_side(embedded):
    pairs, seconds = mine_draws(embedded, draw=1, best=1000, count=20, seed=1)
    assert len(pairs) == 20
    assert seconds["draws"] >= 20
    some = {language: embedded[language] for language in ("en", "fr")}
    with pytest.raises(InputError, match=r"pairs 2,000: .*1,200"):
        mine_draws(some, draw=100, best=10_000, count=2000, seed=1)
    # as good as random
    assert np.mean([pair.sentences[0] == pair.sentences[1] for pair in pairs]) < 0.3


def test_each_sentence_has_the_best_of_its_candidates(embedded):
    some = {language: embedded[language] for language in ("en", "fr")}
    # Both samples are all of the text, so the pairs follow from the definition of CSLS.
    pairs, seconds = mine_draws(some, draw=40, best=12, count=12, seed=1, candidates=30)
    cosines = some["en"][np.arange(40)] @ some["fr"][np.arange(30)].T
    english_means = -np.sort(-cosines, axis=1)[:, :10].mean(axis=1)
    french_means = -np.sort(-cosines, axis=0)[:10].mean(axis=0)
    scores = 2 * cosines - english_means[:, None] - french_means
    order = np.argsort(-scores.max(axis=1))[:12]
    expected = [(int(row), int(scores[row].argmax())) for row in order]
    assert [pair.sentences for pair in pairs] == expected
    assert [pair.score for pair in pairs] == pytest.approx(scores.max(axis=1)[order], abs=1e-5)
    assert seconds["draws"] == 1


def test_one_candidate_is_drawn_for_all_sentences(embedded):
    some = {language: embedded[language] for language in ("en", "fr")}
    pairs, _ = mine_draws(some, draw=10, best=1000, count=10, seed=1, candidates=1)
    assert len({pair.sentences[1] for pair in pairs}) == 1


def test_pairs_of_any_languages(embedded):
    pairs, _ = mine_draws(embedded, draw=45, best=40, count=100, seed=1, pair_languages="any")
    kinds = {frozenset(pair.languages) for pair in pairs}
    assert {frozenset({"en"}), frozenset({"en", "fr"}), frozenset({"de", "fr"})} <= kinds
    places = [frozenset(zip(pair.languages, pair.sentences, strict=True)) for pair in pairs]
    assert len(set(places)) == 100
    # No sentence is paired with itself.
    assert {len(place) for place in places} == {2}
    for pair in pairs:
        vectors = [
            embedded[language][np.array([number])][0]
            for language, number in zip(pair.languages, pair.sentences, strict=True)
        ]
        assert pair.cosine == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)


def test_precision_is_of_the_pairs_that_can_be_judged():
    texts = {"en": ["a dog", "a cat", "a bird"], "fr": ["un chien", "un chat", "un oiseau"]}
    gold = frozenset({("a dog", "un chien"), ("un chat", "a cat")})
    pairs = [MinedPair(0, 0, ("en", "fr"), places) for places in ((0, 0), (1, 1), (1, 0), (2, 2))]
    assert precision(pairs, texts, gold) == pytest.approx(2 / 3)
    assert np.isnan(precision(pairs[3:], texts, gold))
