"""The sets of the quality study: minimal pairs by rules, retrieval among many, distractors."""

import math
import string

import numpy as np
import pytest
import toy

from benchmarks.quality.pretrained import (
    clusters,
    hits,
    judged_pairs,
    mean_precision,
    mean_similarities,
    percentages,
    remembering,
    similarities,
)
from benchmarks.quality.sets import contrast, distractors, minimal_pairs, retrieval
from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.evaluation.protocols.minimal_pairs import score_minimal_pairs
from fairseq_lxsr.search.reranker import Reranker

ENGLISH = [
    "The dog is in the garden.",
    "It was found in 1984.",
    "She can see 12 dogs.",
    "A dog of a man.",
]


def count_letters(sentences):
    """Return the number of each letter in each sentence, an embedding without word order."""
    rows = []
    for sentence in sentences:
        rows.append([sentence.lower().count(letter) for letter in string.ascii_lowercase])
    return np.array(rows, np.float32)


# -- minimal pairs


def test_counts_of_letters_prefer_a_sentence_with_swapped_words_in_half_of_the_cases():
    """Equal similarities count as a half."""
    english = ["The dog is in the garden.", "The house stands on the hill."]
    pairs = minimal_pairs({"toy": {"en": english, "fr": english}}, "fr")
    # The second sentence cannot be negated.
    assert {rule: len(pairs[rule]) for rule in pairs} == {"swap": 1, "negation": 1, "number": 0}

    values = contrast(count_letters, {"swap": pairs["swap"], "negation": pairs["negation"]})

    assert values == {"swap": 50.0, "negation": 100.0}


def test_contrast_has_the_values_of_the_protocol_minimal_pairs():
    french = [line.upper() for line in ENGLISH]

    class LetterCounts:
        fingerprint = "letters"

        def embed(self, text):
            return count_letters(text.lines)

    values = contrast(count_letters, minimal_pairs({"toy": {"en": ENGLISH, "fr": french}}, "fr"))

    score, _ = score_minimal_pairs(
        Text(french, "fr"), Text(ENGLISH, "en", "toy.en"), LetterCounts()
    )
    assert values.keys() == {"swap", "negation", "number"}
    assert values == {rule: round(value, 2) for rule, value in score.values.items()}


# -- retrieval

# Two English sentences and their translations. "un" is also the second neighbour of "b", and "deux"
# that of "a". The distractor "near" is nearer to "b" than "deux", and "far" is far from all.
VECTORS = {
    "a": [1, 0],
    "b": [0, 1],
    "un": [0.9, 0.1],
    "deux": [0.1, 0.9],
    "near": [0.05, 1],
    "far": [-1, -1],
}
SETS = {"toy": {"en": ["a", "b"], "fr": ["un", "deux"]}}
DISTRACTORS = {"en": ["far"], "fr": ["far", "near"]}
NO_TRAINED_WORDS = {"en": set(), "fr": set()}


def encode(sentences):
    return np.array([VECTORS[sentence] for sentence in sentences], np.float32)


class AddsOne:
    """A reranker of two candidates that adds 1 to the score of one sentence."""

    depth = 2

    def __init__(self, sentence):
        self.sentence = sentence

    def scores(self, queries, read, cosines, ids):
        is_sentence = [line == self.sentence for line in read(ids.ravel())]
        return cosines + np.reshape(is_sentence, ids.shape)

    best = Reranker.best


def test_retrieval_is_measured_with_and_without_distractors():
    scores = retrieval(encode, SETS, DISTRACTORS, NO_TRAINED_WORDS)["toy"]

    # "b" finds "near" instead of "deux".
    assert (scores["en-fr"]["alone"], scores["en-fr"]["P@1"]) == (100, 50)
    assert (scores["fr-en"]["alone"], scores["fr-en"]["P@1"]) == (100, 100)


def test_retrieval_is_measured_for_queries_whose_words_were_all_trained_and_for_the_rest():
    trained_words = {"en": {"a"}, "fr": set()}

    scores = retrieval(encode, SETS, DISTRACTORS, trained_words)["toy"]

    # "a" finds its translation, "b" does not. No French query has only trained words.
    assert (scores["en-fr"]["all seen"], scores["en-fr"]["some unseen"]) == (100, 0)
    assert (scores["fr-en"]["all seen"], scores["fr-en"]["some unseen"]) == (None, 100)


@pytest.mark.parametrize(
    ("sentence", "alone", "with_distractors"),
    [
        # Both queries find it, which is right for one of them.
        ("un", 50, 50),
        ("deux", 50, 50),
        # "b" finds it, as by cosine.
        ("near", 100, 50),
        # It is not one of the two nearest, which alone are ranked again.
        ("far", 100, 50),
        ("none", 100, 50),
    ],
)
def test_retrieval_ranks_the_nearest_by_the_scores_of_a_reranker(sentence, alone, with_distractors):
    scores = retrieval(encode, SETS, DISTRACTORS, NO_TRAINED_WORDS, AddsOne(sentence))["toy"]

    assert scores["en-fr"]["alone"] == alone
    assert scores["en-fr"]["P@1"] == with_distractors


@pytest.mark.parametrize(
    ("reranker", "value"),
    [(None, 100), (AddsOne("a"), 100), (AddsOne("b"), 0)],
    ids=["cosine", "prefers-a", "prefers-b"],
)
def test_contrast_compares_the_scores_of_a_reranker(reranker, value):
    # The translation, its true sentence, which is nearer, and the changed sentence.
    pairs = {"rule": [("un", "a", "b")]}

    assert contrast(encode, pairs, reranker) == {"rule": value}


@pytest.fixture
def french_text(tmp_path):
    """A novel, training text, and further text, three sentences each; each has "known"."""
    toy.pack(tmp_path / "docs" / "novels.fr", ["novel", "known", "trained"])
    toy.pack(tmp_path / "train" / "tech.en-fr.fr", ["trained", "more", "known"])
    toy.pack(tmp_path / "large" / "law.en-fr.fr", ["novel", "known", "article"])
    return tmp_path


@pytest.mark.parametrize(
    ("count", "further_folders", "expected"),
    [
        # "trained" of the novel comes only with the training text.
        (2, [], ["novel", "trained"]),
        (9, [], ["novel", "trained", "more"]),
        (9, ["large"], ["novel", "trained", "more", "article"]),
    ],
)
def test_distractors_are_first_text_outside_training_then_training_text_then_further_folders(
    french_text, count, further_folders, expected
):
    sentences_of_set = {"known"}

    lines = distractors(french_text, "fr", "en-fr", count, sentences_of_set, further_folders)

    assert lines == expected


# -- semantic similarity


def write_judged_pairs(folder, language, *pairs):
    """Write pairs of sentences as LEFT,RIGHT,SCORE, with the score of humans."""
    (folder / "sts").mkdir(exist_ok=True)
    lines = "".join(f"{pair}\n" for pair in pairs)
    (folder / "sts" / f"stsb-{language}-test.csv").write_text(lines)


def test_cosines_in_the_order_of_the_human_scores_have_a_correlation_of_100(tmp_path):
    # Equal letters, two of three, and none.
    write_judged_pairs(tmp_path, "en", "abc,xyz,0", "abc,abd,3", "abc,abc,5")
    write_judged_pairs(tmp_path, "de", "abc,zyx,0", "abc,dba,3", "abc,cba,5")

    correlations = similarities(*judged_pairs(count_letters, tmp_path))

    assert correlations["within"] == {"de": 100, "en": 100}
    assert correlations["English"] == {"de": 100, "en": 100}


def test_similarities_with_english_compare_its_first_sentence_with_the_second_of_a_language(
    tmp_path,
):
    write_judged_pairs(tmp_path, "en", "abc,xyz,0", "abc,abd,3", "abc,abc,5")
    # The first sentence of the last pair is wrong.
    write_judged_pairs(tmp_path, "de", "abc,xyz,0", "abc,abd,3", "xyz,abc,5")

    correlations = similarities(*judged_pairs(count_letters, tmp_path))

    assert correlations["English"]["de"] == 100
    assert correlations["within"]["de"] < 100


# Scores of 200 pairs, the same in each language, and cosines in their order, in the reverse order
# (English) and in their order in each half alone (French).
HUMAN_SCORES = {language: np.arange(200.0) for language in ("en", "de", "fr")}
COSINES = {"en": -np.arange(200.0), "de": np.arange(200.0), "fr": np.arange(200.0) % 100}


def test_the_mean_similarity_excludes_english():
    by_language = similarities({"within": COSINES}, HUMAN_SCORES)["within"]

    mean, _ = mean_similarities({"within": COSINES}, HUMAN_SCORES)["within"]

    assert by_language["en"] == -100
    assert mean == (by_language["de"] + by_language["fr"]) / 2


def test_the_interval_of_the_mean_similarity_is_about_that_of_the_formula():
    """The standard error of a correlation r of N pairs is about (1 - r²) / √N."""
    # That of German, 1, has an error of 0; the mean of both has half of the error of French.
    french = similarities({"within": COSINES}, HUMAN_SCORES)["within"]["fr"] / 100
    standard_error = (1 - french**2) / math.sqrt(200) / 2

    _, half_width = mean_similarities({"within": COSINES}, HUMAN_SCORES)["within"]

    # In percent, for 95 % confidence.
    formula = 100 * 1.96 * standard_error
    assert formula / 2 < half_width < 2 * formula


def test_without_judged_pairs_there_is_no_mean_similarity():
    assert mean_similarities({"within": {}}, {}) == {}


# -- hits and their means


def test_a_row_is_a_hit_if_its_nearest_neighbour_is_its_translation():
    source = np.eye(4, dtype=np.float32)
    # The last translation is the third one.
    target = source[[0, 1, 2, 2]]

    from_source, _ = hits(source, target)

    assert from_source.tolist() == [True, True, True, False]
    assert percentages(hits(source, target))[0] == 75


# Hits of four sentences in both directions.
ALL_HITS = np.array([[1, 1, 1, 1], [1, 1, 1, 1]])
HALF_OF_HITS = np.array([[1, 1, 0, 0], [1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("hits_by_language", "has_same_sentences", "mean", "standard_error"),
    [
        # Of 50 % among four sentences: 100 * sqrt(0.5 * 0.5 / 4).
        ([HALF_OF_HITS], False, 50, 25),
        # The mean with an error of 0 has half of it.
        ([HALF_OF_HITS, ALL_HITS], False, 75, 12.5),
        # Two independent errors.
        ([HALF_OF_HITS, HALF_OF_HITS], False, 50, 25 / math.sqrt(2)),
        # The same sentences fail in both languages, so a second language does not reduce the error.
        ([HALF_OF_HITS, HALF_OF_HITS], True, 50, 25),
    ],
    ids=["one", "with-all-hits", "other-sentences", "same-sentences"],
)
def test_the_mean_precision_has_an_interval_of_1_96_standard_errors(
    hits_by_language, has_same_sentences, mean, standard_error
):
    interval = mean_precision(hits_by_language, has_same_sentences)

    assert interval == (mean, round(1.96 * standard_error, 2))


# -- encoding, clusters


def test_each_text_is_encoded_once():
    encoded = []

    def encode_and_record(texts):
        encoded.extend(texts)
        return count_letters(texts)

    cached_encode = remembering(encode_and_record)
    first = cached_encode(["a", "b", "a"])
    second = cached_encode(["b", "c"])

    assert encoded == ["a", "b", "c"]
    np.testing.assert_array_equal(first, count_letters(["a", "b", "a"]))
    np.testing.assert_array_equal(second, count_letters(["b", "c"]))


def write_pud(folder, language, *lines):
    toy.pack(folder / "eval" / f"pud.{language}", lines)


def test_clusters_score_100_if_each_has_a_sentence_in_all_its_languages(tmp_path):
    # Only the first three sentences are used.
    write_pud(tmp_path, "en", "aaa", "bbb", "ccc", "left out")
    write_pud(tmp_path, "de", "aaa", "bbb", "ccc", "left out")

    assert clusters(count_letters, tmp_path, 3) == 100


def test_clusters_score_less_if_they_mix_sentences(tmp_path):
    write_pud(tmp_path, "en", "aaa", "bbb", "ccc")
    write_pud(tmp_path, "de", "ccc", "bbb", "aaa")

    assert clusters(count_letters, tmp_path, 3) < 100


def test_without_files_clusters_have_no_score(tmp_path):
    assert clusters(count_letters, tmp_path, 3) is None
