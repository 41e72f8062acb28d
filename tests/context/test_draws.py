"""Mining in random draws of sentences: pairs, their scores, repeatability, and the end of the text."""

import numpy as np
import pytest

from fairseq_lxsr.context.mining import LazyEmbeddings, MinedPair, mine_draws, precision
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import Lines

# The number of sentences of each language.
SIZES = {"en": 40, "fr": 30, "de": 20}


class NumberEncoder:
    """An encoder of texts such as `fr 7`, whose embedding depends on the number alone.

    So sentences of two languages with the same number are translations: they have the same
    embedding, and other numbers have random ones.
    """

    output_dim = 8

    def __init__(self):
        self.encoded_texts = []

    def encode(self, texts, dtype):
        self.encoded_texts += texts
        rows = []
        for text in texts:
            number = int(text.split()[1])
            rows.append(np.random.default_rng(number).standard_normal(8))
        return np.stack(rows)


@pytest.fixture
def encoder():
    return NumberEncoder()


@pytest.fixture
def embedded(tmp_path, encoder):
    """The embeddings of the sentences `en 0`, `en 1` ..., `fr 0` ..., `de 0` ..., by language."""
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


def assert_cosine_is_that_of_the_embeddings(embedded, pair):
    first_language, second_language = pair.languages
    first_row, second_row = pair.sentences
    first = embedded[first_language][np.array([first_row])][0]
    second = embedded[second_language][np.array([second_row])][0]
    assert pair.cosine == pytest.approx(float(first @ second), abs=1e-6)


def share_of_translations(pairs):
    """The share of pairs whose sentences have the same number."""
    return np.mean([pair.sentences[0] == pair.sentences[1] for pair in pairs])


def test_translations_of_every_pair_of_languages_are_mined(embedded):
    # The samples are all sentences; each draw of a pair of languages gives at most 15 pairs.
    pairs, seconds = mine_draws(embedded, draw=40, best=15, count=40, seed=1)

    distinct_pairs = {(pair.languages, pair.sentences) for pair in pairs}
    assert len(pairs) == 40
    assert len(distinct_pairs) == 40
    # 40 pairs need three draws, one for each pair of languages.
    assert seconds["draws"] == 3
    assert {pair.languages for pair in pairs} == {("en", "fr"), ("en", "de"), ("fr", "de")}
    assert share_of_translations(pairs) > 0.9


def test_the_cosine_of_a_pair_is_that_of_its_embeddings(embedded):
    pairs, _ = mine_draws(embedded, draw=40, best=15, count=40, seed=1)
    for pair in pairs:
        assert_cosine_is_that_of_the_embeddings(embedded, pair)


def test_a_sentence_is_encoded_only_once(embedded, encoder):
    # Several draws of 15 of the 20 to 40 sentences, so that sentences are drawn again.
    mine_draws(embedded, draw=15, best=5, count=30, seed=1)
    assert len(encoder.encoded_texts) == len(set(encoder.encoded_texts))


def test_the_seed_decides_the_pairs(embedded):
    first, _ = mine_draws(embedded, draw=15, best=5, count=30, seed=1)
    second, _ = mine_draws(embedded, draw=15, best=5, count=30, seed=1)
    pairs_of_other_seed, _ = mine_draws(embedded, draw=15, best=5, count=30, seed=2)
    assert first == second
    assert first != pairs_of_other_seed


def test_draws_of_single_sentences_give_random_pairs(embedded):
    """Each draw has one sentence a language, so it gives the only pair there is."""
    pairs, seconds = mine_draws(embedded, draw=1, best=1000, count=20, seed=1)
    assert len(pairs) == 20
    # More if a pair is drawn again.
    assert seconds["draws"] >= 20
    # Of random pairs, one in 30 or 40 has the same number twice.
    assert share_of_translations(pairs) < 0.3


def test_more_pairs_than_the_text_has_are_refused(two_languages):
    # 40 English and 30 French sentences have 1,200 pairs.
    with pytest.raises(InputError, match=r"pairs 2,000: only 1,200 distinct pairs could be mined"):
        mine_draws(two_languages, draw=100, best=10_000, count=2000, seed=1)


def test_each_sentence_is_paired_with_the_candidate_of_the_highest_csls_score(two_languages):
    """Both samples are all of the text, so the pairs follow from the definition of CSLS."""
    number_of_pairs = 12

    pairs, seconds = mine_draws(
        two_languages, draw=40, best=number_of_pairs, count=number_of_pairs, seed=1, candidates=30
    )

    # CSLS is twice the cosine less the mean cosines of both sentences with their 10 neighbours.
    cosines = two_languages["en"][np.arange(40)] @ two_languages["fr"][np.arange(30)].T
    english_means = -np.sort(-cosines, axis=1)[:, :10].mean(axis=1)
    french_means = -np.sort(-cosines, axis=0)[:10].mean(axis=0)
    scores = 2 * cosines - english_means[:, None] - french_means
    best_scores = scores.max(axis=1)
    best_candidates = scores.argmax(axis=1)
    english_sentences = np.argsort(-best_scores)[:number_of_pairs]
    assert seconds["draws"] == 1
    for pair, sentence in zip(pairs, english_sentences, strict=True):
        assert pair.sentences == (sentence, best_candidates[sentence])
        assert pair.score == pytest.approx(best_scores[sentence], abs=1e-5)


def test_a_single_candidate_is_paired_with_all_sentences_of_the_draw(two_languages):
    pairs, _ = mine_draws(two_languages, draw=10, best=1000, count=10, seed=1, candidates=1)
    assert len({pair.sentences[0] for pair in pairs}) == 10
    assert len({pair.sentences[1] for pair in pairs}) == 1


@pytest.fixture
def pairs_of_any_languages(embedded):
    # Half of the 90 sentences are in one sample, and half in the other.
    pairs, _ = mine_draws(embedded, draw=45, best=40, count=100, seed=1, pair_languages="any")
    return pairs


def test_pairs_of_any_languages_may_be_of_one_language(pairs_of_any_languages):
    kinds = {frozenset(pair.languages) for pair in pairs_of_any_languages}
    assert {"en"} in kinds
    assert {"en", "fr"} in kinds
    assert {"de", "fr"} in kinds


def test_pairs_of_any_languages_are_distinct_and_of_two_sentences(pairs_of_any_languages):
    distinct_pairs = set()
    for pair in pairs_of_any_languages:
        # In either order; a sentence is its language and its number.
        sentences = frozenset(zip(pair.languages, pair.sentences, strict=True))
        assert len(sentences) == 2, "a sentence is paired with itself"
        distinct_pairs.add(sentences)
    assert len(distinct_pairs) == 100


def test_the_cosine_of_a_pair_of_any_languages_is_that_of_its_embeddings(
    embedded, pairs_of_any_languages
):
    for pair in pairs_of_any_languages:
        assert_cosine_is_that_of_the_embeddings(embedded, pair)


TEXTS = {"en": ["a dog", "a cat", "a bird"], "fr": ["un chien", "un chat", "un oiseau"]}
# Reference pairs in either direction; none has a bird.
GOLD = frozenset({("a dog", "un chien"), ("un chat", "a cat")})


def mined_pair(english_row, french_row):
    return MinedPair(0, 0, ("en", "fr"), (english_row, french_row))


def test_precision_is_the_share_of_correct_pairs_among_those_with_a_sentence_of_the_gold():
    correct_pairs = [mined_pair(0, 0), mined_pair(1, 1)]
    # A cat and un chien.
    wrong_pair = mined_pair(1, 0)
    # A bird and un oiseau.
    pair_that_cannot_be_judged = mined_pair(2, 2)
    pairs = [*correct_pairs, wrong_pair, pair_that_cannot_be_judged]
    assert precision(pairs, TEXTS, GOLD) == pytest.approx(2 / 3)


def test_precision_is_not_a_number_if_no_pair_has_a_sentence_of_the_gold():
    assert np.isnan(precision([mined_pair(2, 2)], TEXTS, GOLD))
