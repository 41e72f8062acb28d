"""The sets of the quality study: minimal pairs by rules, retrieval among many, distractors."""

import string

import numpy as np
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


def bag(sentences):
    """Return the counts of letters, which do not depend on their order."""
    rows = []
    for sentence in sentences:
        rows.append([sentence.lower().count(letter) for letter in string.ascii_lowercase])
    return np.array(rows, np.float32)


def test_a_bag_of_letters_cannot_recognise_a_swap():
    english = ["The dog is in the garden.", "The house stands on the hill."]
    sets = {"toy": {"en": english, "fr": english}}
    pairs = minimal_pairs(sets, "fr")
    assert [len(rule_pairs) for rule_pairs in pairs.values()] == [1, 1, 0]
    del pairs["number"]
    assert contrast(bag, pairs) == {"swap": 50.0, "negation": 100.0}


def test_the_protocol_minimal_pairs_has_the_same_values():
    sets = {"toy": {"en": ENGLISH, "fr": [line.upper() for line in ENGLISH]}}
    values = contrast(bag, minimal_pairs(sets, "fr"))

    class Bag:
        fingerprint = "bag"

        def embed(self, text):
            return bag(text.lines)

    foreign = Text(sets["toy"]["fr"], "fr")
    score, _ = score_minimal_pairs(foreign, Text(ENGLISH, "en", "toy.en"), Bag())
    assert {name: round(value, 2) for name, value in score.values.items()} == values
    assert values.keys() == {"swap", "negation", "number"}


def encoder_of(vectors):
    return lambda sentences: np.array([vectors[sentence] for sentence in sentences], np.float32)


class AddsOne:
    """A reranker that adds 1 to the score of one sentence."""

    depth = 2

    def __init__(self, sentence):
        self.sentence = sentence

    def scores(self, queries, read, cosines, ids):
        is_sentence = [line == self.sentence for line in read(ids.ravel())]
        return cosines + np.reshape(is_sentence, ids.shape)

    best = Reranker.best


def test_retrieval_and_minimal_pairs_use_the_scores_of_a_reranker():
    vectors = {
        "a": [1, 0],
        "b": [0, 1],
        "un": [0.9, 0.1],
        "deux": [0.1, 0.9],
        "near": [0.05, 1],
        "far": [-1, -1],
    }
    encode = encoder_of(vectors)
    sets = {"toy": {"en": ["a", "b"], "fr": ["un", "deux"]}}
    distractor_texts = {"en": ["far"], "fr": ["far", "near"]}
    trained_words = {"en": set(), "fr": set()}
    # "un" is the translation of "a" and the second neighbour of "b", and "deux" the other way round.
    # "far" is no candidate of the reranker.
    for line, expected in {"un": 50, "deux": 50, "near": 100, "far": 100, "none": 100}.items():
        results = retrieval(encode, sets, distractor_texts, trained_words, AddsOne(line))
        values = results["toy"]["en-fr"]
        assert (values["alone"], values["P@1"]) == (expected, 50), line
    pairs = {"rule": [("un", "a", "b")]}
    assert contrast(encode, pairs, AddsOne("b")) == {"rule": 0}
    assert contrast(encode, pairs, AddsOne("a")) == contrast(encode, pairs) == {"rule": 100}


def test_retrieval_among_distractors_by_whether_all_words_were_trained():
    vectors = {
        "a b": [1, 0],
        "c": [0, 1],
        "un": [0.9, 0.1],
        "deux": [0.1, 0.9],
        "loin": [-1, 0],
        "x": [-1, -1],
    }
    encode = encoder_of(vectors | {"near": [0.05, 1]})
    sets = {"toy": {"en": ["a b", "c"], "fr": ["un", "deux"]}}
    trained_words = {"en": {"a", "b"}, "fr": set()}
    distractor_texts = {"en": ["x"], "fr": ["loin", "near"]}
    result = retrieval(encode, sets, distractor_texts, trained_words)["toy"]
    # "near" is nearer to "c" than "deux".
    assert (result["en-fr"]["alone"], result["en-fr"]["P@1"]) == (100, 50)
    assert (result["en-fr"]["all seen"], result["en-fr"]["some unseen"]) == (100, 0)
    assert (result["fr-en"]["alone"], result["fr-en"]["P@1"]) == (100, 100)
    assert result["fr-en"]["all seen"] is None


def test_distractors_come_first_from_text_outside_training_and_not_from_the_set(tmp_path):
    toy.pack(tmp_path / "docs" / "novels.fr", ["novel", "known", "trained"])
    toy.pack(tmp_path / "train" / "tech.en-fr.fr", ["trained", "more", "known"])
    toy.pack(tmp_path / "large" / "law.en-fr.fr", ["novel", "known", "article"])
    assert distractors(tmp_path, "fr", "en-fr", 2, {"known"}) == ["novel", "trained"]
    assert distractors(tmp_path, "fr", "en-fr", 9, {"known"}) == ["novel", "trained", "more"]
    large = distractors(tmp_path, "fr", "en-fr", 9, {"known"}, ["large"])
    assert large == ["novel", "trained", "more", "article"]


def test_similarities_within_a_language_and_with_english(tmp_path):
    (tmp_path / "sts").mkdir()
    (tmp_path / "sts" / "stsb-en-test.csv").write_text("abc,xyz,0\nabc,abd,3\nabc,abc,5\n")
    (tmp_path / "sts" / "stsb-de-test.csv").write_text("abc,zyx,0\nabc,dba,3\nabc,cba,5\n")
    assert similarities(*judged_pairs(bag, tmp_path)) == {
        "within": {"de": 100, "en": 100},
        "English": {"de": 100, "en": 100},
    }
    (tmp_path / "sts" / "stsb-de-test.csv").write_text("abc,xyz,0\nabc,abd,3\nxyz,abc,5\n")
    # English first sentences with German second ones.
    assert similarities(*judged_pairs(bag, tmp_path))["English"] == {"de": 100, "en": 100}
    assert similarities(*judged_pairs(bag, tmp_path))["within"]["de"] < 100


def test_the_mean_similarity_excludes_english():
    scores = {"en": np.arange(200.0), "de": np.arange(200.0), "fr": np.arange(200.0)}
    cosines = {"en": -scores["en"], "de": scores["de"], "fr": scores["fr"] % 100}
    expected = similarities({"within": cosines}, scores)["within"]
    assert expected["en"] == -100
    mean, half = mean_similarities({"within": cosines}, scores)["within"]
    assert mean == (expected["de"] + expected["fr"]) / 2
    # The standard error of a correlation r of N pairs is about (1 - r²) / √N.
    assert 0.5 < half / (1.96 * 50 * (1 - (expected["fr"] / 100) ** 2) / 200**0.5) < 2
    assert mean_similarities({"within": {}}, {}) == {}


def test_hits_and_their_mean():
    source = np.eye(4, dtype=np.float32)
    target = source[[0, 1, 2, 2]]
    hits_at = hits(source, target)
    assert hits_at[1].tolist() == [True, True, True, False]
    assert percentages(hits_at)[1] == 75
    whole = np.array([[1, 1, 1, 1], [1, 1, 1, 1]])
    half = np.array([[1, 1, 0, 0], [1, 1, 0, 0]])
    # Of four sentences 50 % has a standard error of 25 points; its mean with an error of 0 has half.
    assert mean_precision([half], False) == (50, 49)
    assert mean_precision([half, whole], False) == (75, 24.5)
    # The same sentences fail in both languages, so a second language does not reduce the error.
    assert mean_precision([half, half], True) == (50, 49)
    assert mean_precision([half, half], False) == (50, 34.65)


def test_a_text_is_encoded_once():
    encoded = []

    def encode(texts):
        encoded.extend(texts)
        return bag(texts)

    cached_encode = remembering(encode)
    assert (cached_encode(["a", "b", "a"]) == bag(["a", "b", "a"])).all()
    assert (cached_encode(["b", "c"]) == bag(["b", "c"])).all()
    assert encoded == ["a", "b", "c"]


def test_clusters_are_sentences_in_all_languages(tmp_path):
    assert clusters(bag, tmp_path, 3) is None
    for code in ("en", "de"):
        toy.pack(tmp_path / "eval" / f"pud.{code}", ["aaa", "bbb", "ccc", "left out"])
    assert clusters(bag, tmp_path, 3) == 100
    toy.pack(tmp_path / "eval" / "pud.de", ["ccc", "bbb", "aaa"])
    assert clusters(bag, tmp_path, 3) < 100
