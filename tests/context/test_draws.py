"""Mining in random draws of sentences: pairs, their scores, repeatability, and the end of the text."""

import numpy as np
import pytest

from fairseq_lxsr.context.mining import LazyEmbeddings, MinedPair, mine_draws, precision
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import Lines

SIZES = {"en": 40, "fr": 30, "de": 20}


class Directions:
    """An encoder of numbered sentences, whose vectors depend on the number alone."""

    output_dim = 8

    def __init__(self):
        self.encoded = []

    def encode(self, texts, dtype):
        self.encoded += texts
        rows = []
        for text in texts:
            number = int(text.split()[1])
            rows.append(np.random.default_rng(number).standard_normal(8))
        return np.stack(rows)


@pytest.fixture
def embedded(tmp_path):
    encoder = Directions()
    sides = {}
    for language, size in SIZES.items():
        path = tmp_path / language
        path.write_text("".join(f"{language} {number}\n" for number in range(size)))
        cache = tmp_path / f"{language}.raw"
        sides[language] = LazyEmbeddings(encoder, Lines(path), "float32", cache)
    return sides


@pytest.fixture
def two_languages(embedded):
    return {language: embedded[language] for language in ("en", "fr")}


def cosine_of(embedded, pair):
    first_language, second_language = pair.languages
    first_row, second_row = pair.sentences
    first = embedded[first_language][np.array([first_row])][0]
    second = embedded[second_language][np.array([second_row])][0]
    return pytest.approx(float(first @ second), abs=1e-6)


def share_of_translations(pairs):
    """Sentences with the same number have the same vector."""
    return np.mean([pair.sentences[0] == pair.sentences[1] for pair in pairs])


def test_translations_of_every_pair_of_languages_are_mined(embedded):
    pairs, seconds = mine_draws(embedded, draw=40, best=15, count=40, seed=1)
    assert len(pairs) == len({(pair.languages, pair.sentences) for pair in pairs}) == 40
    assert {pair.languages for pair in pairs} == {("en", "fr"), ("en", "de"), ("fr", "de")}
    assert share_of_translations(pairs) > 0.9
    for pair in pairs:
        assert pair.cosine == cosine_of(embedded, pair)
    # One draw for each pair of languages: each gives 15 pairs of the 40.
    assert seconds["draws"] == 3


def test_a_sentence_is_encoded_once_and_the_seed_decides_the_pairs(embedded):
    first, _ = mine_draws(embedded, draw=15, best=5, count=30, seed=1)
    second, _ = mine_draws(embedded, draw=15, best=5, count=30, seed=1)
    other_seed, _ = mine_draws(embedded, draw=15, best=5, count=30, seed=2)
    assert first == second
    assert first != other_seed
    encoded = embedded["en"].encoder.encoded
    assert len(encoded) == len(set(encoded))


def test_draws_of_single_sentences_give_random_pairs(embedded):
    pairs, seconds = mine_draws(embedded, draw=1, best=1000, count=20, seed=1)
    assert len(pairs) == 20
    assert seconds["draws"] >= 20
    assert share_of_translations(pairs) < 0.3


def test_more_pairs_than_the_text_has_are_refused(two_languages):
    with pytest.raises(InputError, match=r"pairs 2,000: .*1,200"):
        mine_draws(two_languages, draw=100, best=10_000, count=2000, seed=1)


def test_each_sentence_has_the_best_of_its_candidates(two_languages):
    # Both samples are all of the text, so the pairs follow from the definition of CSLS.
    pairs, seconds = mine_draws(two_languages, draw=40, best=12, count=12, seed=1, candidates=30)
    cosines = two_languages["en"][np.arange(40)] @ two_languages["fr"][np.arange(30)].T
    english_means = -np.sort(-cosines, axis=1)[:, :10].mean(axis=1)
    french_means = -np.sort(-cosines, axis=0)[:10].mean(axis=0)
    scores = 2 * cosines - english_means[:, None] - french_means
    order = np.argsort(-scores.max(axis=1))[:12]
    expected = [(int(row), int(scores[row].argmax())) for row in order]
    assert [pair.sentences for pair in pairs] == expected
    assert [pair.score for pair in pairs] == pytest.approx(scores.max(axis=1)[order], abs=1e-5)
    assert seconds["draws"] == 1


def test_a_single_candidate_is_drawn_for_all_sentences(two_languages):
    pairs, _ = mine_draws(two_languages, draw=10, best=1000, count=10, seed=1, candidates=1)
    assert len({pair.sentences[1] for pair in pairs}) == 1


def test_pairs_may_be_of_any_languages(embedded):
    pairs, _ = mine_draws(embedded, draw=45, best=40, count=100, seed=1, pair_languages="any")
    kinds = {frozenset(pair.languages) for pair in pairs}
    assert {frozenset({"en"}), frozenset({"en", "fr"}), frozenset({"de", "fr"})} <= kinds
    distinct = {frozenset(zip(pair.languages, pair.sentences, strict=True)) for pair in pairs}
    assert len(distinct) == 100
    for sentences in distinct:
        assert len(sentences) == 2, "a sentence is paired with itself"
    for pair in pairs:
        assert pair.cosine == cosine_of(embedded, pair)


def test_precision_counts_only_pairs_with_a_sentence_of_the_gold():
    texts = {"en": ["a dog", "a cat", "a bird"], "fr": ["un chien", "un chat", "un oiseau"]}
    gold = frozenset({("a dog", "un chien"), ("un chat", "a cat")})
    rows = ((0, 0), (1, 1), (1, 0), (2, 2))
    pairs = [MinedPair(0, 0, ("en", "fr"), sentences) for sentences in rows]
    assert precision(pairs, texts, gold) == pytest.approx(2 / 3)
    assert np.isnan(precision(pairs[3:], texts, gold))
