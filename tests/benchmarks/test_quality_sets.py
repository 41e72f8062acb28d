"""The quality study's sets: minimal pairs by rules, retrieval among many, distractors."""

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
    """Counts of letters: knows no order."""
    return np.array(
        [[one.lower().count(letter) for letter in string.ascii_lowercase] for one in sentences],
        np.float32,
    )


def test_a_bag_cannot_tell_a_swap():
    english = ["The dog is in the garden.", "The house stands on the hill."]
    sets = {"toy": {"en": english, "fr": english}}
    pairs = minimal_pairs(sets, "fr")
    assert [len(found) for found in pairs.values()] == [1, 1, 0]
    del pairs["number"]
    found = contrast(bag, pairs)
    assert found == {"swap": 50.0, "negation": 100.0}


def test_the_protocol_has_the_same_values():
    sets = {"toy": {"en": ENGLISH, "fr": [line.upper() for line in ENGLISH]}}
    found = contrast(bag, minimal_pairs(sets, "fr"))

    class Bag:
        fingerprint = "bag"

        def embed(self, text):
            return bag(text.lines)

    score, _ = score_minimal_pairs(
        Text(sets["toy"]["fr"], "fr"), Text(ENGLISH, "en", "toy.en"), Bag()
    )
    assert {name: round(value, 2) for name, value in score.values.items()} == found
    assert found.keys() == {"swap", "negation", "number"}


def encoder_of(vectors):
    return lambda sentences: np.array([vectors[sentence] for sentence in sentences], np.float32)


class AddsOne:
    """A reranker that gives one sentence 1 more."""

    depth = 2

    def __init__(self, sentence):
        self.sentence = sentence

    def scores(self, queries, read, cosines, ids):
        return cosines + np.reshape(
            [line == self.sentence for line in read(ids.ravel())], ids.shape
        )

    best = Reranker.best


def test_retrieval_and_minimal_pairs_by_the_scores_of_a_reranker():
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
    arguments = encode, sets, {"en": ["far"], "fr": ["far", "near"]}, {"en": set(), "fr": set()}
    # "un" is of `a`, and among its own the second of `b`, "deux" the other way; "far" is not scored
    # again
    for line, expected in {"un": 50, "deux": 50, "near": 100, "far": 100, "none": 100}.items():
        found = retrieval(*arguments, AddsOne(line))["toy"]["en-fr"]
        assert (found["alone"], found["P@1"]) == (expected, 50), line
    pairs = {"rule": [("un", "a", "b")]}
    assert contrast(encode, pairs, AddsOne("b")) == {"rule": 0}
    assert contrast(encode, pairs, AddsOne("a")) == contrast(encode, pairs) == {"rule": 100}


def test_retrieval_counts_distractors_and_kinds_of_queries():
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
    seen = {"en": {"a", "b"}, "fr": set()}
    result = retrieval(encode, sets, {"en": ["x"], "fr": ["loin", "near"]}, seen)["toy"]
    assert (result["en-fr"]["alone"], result["en-fr"]["P@1"]) == (100, 50)  # `near` beats `deux`
    assert (result["en-fr"]["all seen"], result["en-fr"]["some unseen"]) == (100, 0)
    assert (result["fr-en"]["alone"], result["fr-en"]["P@1"]) == (100, 100)
    assert result["fr-en"]["all seen"] is None


def test_distractors_are_none_of_the_set_and_text_outside_training_comes_first(tmp_path):
    toy.pack(tmp_path / "docs" / "novels.fr", ["novel", "known", "trained"])
    toy.pack(tmp_path / "train" / "tech.en-fr.fr", ["trained", "more", "known"])
    toy.pack(tmp_path / "large" / "law.en-fr.fr", ["novel", "known", "article"])
    assert distractors(tmp_path, "fr", "en-fr", 2, {"known"}) == ["novel", "trained"]
    assert distractors(tmp_path, "fr", "en-fr", 9, {"known"}) == ["novel", "trained", "more"]
    assert distractors(tmp_path, "fr", "en-fr", 9, {"known"}, ["large"]) == [
        "novel",
        "trained",
        "more",
        "article",
    ]


def test_similarities_are_those_of_a_language_and_of_english_beside_it(tmp_path):
    (tmp_path / "sts").mkdir()
    pairs = [("abc", "abc", 5), ("abc", "abd", 3), ("abc", "xyz", 0)]
    for code, rows in (
        ("de", [(one, other[::-1], score) for one, other, score in pairs[::-1]]),
        ("en", pairs[::-1]),
    ):
        text = "".join(f"{one},{other},{score}\n" for one, other, score in rows)
        (tmp_path / "sts" / f"stsb-{code}-test.csv").write_text(text)
    assert similarities(*judged_pairs(bag, tmp_path)) == {
        "within": {"de": 100, "en": 100},
        "English": {"de": 100, "en": 100},
    }
    (tmp_path / "sts" / "stsb-de-test.csv").write_text("abc,xyz,0\nabc,abd,3\nxyz,abc,5\n")
    # its first beside their second
    assert similarities(*judged_pairs(bag, tmp_path))["English"] == {"de": 100, "en": 100}
    assert similarities(*judged_pairs(bag, tmp_path))["within"]["de"] < 100


def test_a_mean_similarity_is_over_the_languages_but_english():
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
    found = hits(source, target)
    assert found[1].tolist() == [True, True, True, False]
    assert percentages(found)[1] == 75
    whole = np.array([[1, 1, 1, 1], [1, 1, 1, 1]])
    half = np.array([[1, 1, 0, 0], [1, 1, 0, 0]])
    # 50 % of four sentences: a standard error of 25 points; half of it beside one without error.
    assert mean_precision([half], False) == (50, 49)
    assert mean_precision([half, whole], False) == (75, 24.5)
    # The same sentences fail in both languages, so a second language tells nothing new.
    assert mean_precision([half, half], True) == (50, 49)
    assert mean_precision([half, half], False) == (50, 34.65)


def test_a_text_is_encoded_once():
    asked = []

    def encode(texts):
        asked.extend(texts)
        return bag(texts)

    remembers = remembering(encode)
    assert (remembers(["a", "b", "a"]) == bag(["a", "b", "a"])).all()
    assert (remembers(["b", "c"]) == bag(["b", "c"])).all()
    assert asked == ["a", "b", "c"]


def test_clusters_are_sentences_in_all_languages(tmp_path):
    assert clusters(bag, tmp_path, 3) is None
    for code in ("en", "de"):
        toy.pack(tmp_path / "eval" / f"pud.{code}", ["aaa", "bbb", "ccc", "left out"])
    assert clusters(bag, tmp_path, 3) == 100
    toy.pack(tmp_path / "eval" / "pud.de", ["ccc", "bbb", "aaa"])
    assert clusters(bag, tmp_path, 3) < 100
