"""The quality study's sets: minimal pairs by rules, retrieval among many, distractors."""

import gzip

import numpy as np
import pytest
from quality_sets import contrast, distractors, minimal_pairs, negated, renumbered, retrieval, swapped


@pytest.mark.parametrize(
    ("sentence", "changed"),
    [
        ("The dog is in the garden.", "The garden is in the dog."),
        ("A man sees a cat.", None),  # what follows the first noun could be another noun
        ("The dog and the cat are here.", None),  # coordination means the same
        ("The practical needs of the day.", None),  # an adjective is no noun
        ("The dog of a man.", None),  # other articles would have to move too
        ("The dog of the dog.", None),
        ("Dogs bark.", None),
    ],
)
def test_swap(sentence, changed):
    assert swapped(sentence) == changed


def test_negation_and_numbers():
    assert negated("He has seen it.") == "He has not seen it."
    assert negated("Has he seen it?") is None
    assert negated("It is not here.") is None
    assert negated("Dogs bark.") is None
    for sentence in ("In 1984 it was 7.", "7 dogs", "42 of 100"):
        changed = renumbered(sentence)
        assert changed != sentence
        assert len(changed) == len(sentence)
    assert renumbered("12,500 dogs and B52") is None


def bag(sentences):
    """Counts of letters: knows no order."""
    return np.array(
        [[sentence.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for sentence in sentences], float
    )


def test_a_bag_cannot_tell_a_swap():
    english = ["The dog is in the garden.", "The house stands on the hill."]
    sets = {"toy": {"en": english, "fr": english}}
    pairs = minimal_pairs(sets, "fr")
    assert [len(found) for found in pairs.values()] == [1, 1, 0]
    del pairs["number"]
    found = contrast(lambda sentences: bag(sentences).astype(np.float32), pairs)
    assert found == {"swap": 50.0, "negation": 100.0}


def test_retrieval_counts_distractors_and_kinds_of_queries():
    vectors = {"a b": [1, 0], "c": [0, 1], "un": [0.9, 0.1], "deux": [0.1, 0.9], "loin": [-1, 0], "x": [-1, -1]}
    vectors |= {"near": [0.05, 1]}

    def encode(sentences):
        return np.array([vectors[sentence] for sentence in sentences], np.float32)

    sets = {"toy": {"en": ["a b", "c"], "fr": ["un", "deux"]}}
    seen = {"en": {"a", "b"}, "fr": set()}
    result = retrieval(encode, sets, {"en": ["x"], "fr": ["loin", "near"]}, seen)["toy"]
    assert (result["en-fr"]["alone"], result["en-fr"]["P@1"]) == (100, 50)  # `near` beats `deux`
    assert (result["en-fr"]["all seen"], result["en-fr"]["some unseen"]) == (100, 0)
    assert (result["fr-en"]["alone"], result["fr-en"]["P@1"]) == (100, 100)
    assert result["fr-en"]["all seen"] is None


def test_distractors_are_none_of_the_set_and_text_outside_training_comes_first(tmp_path):
    files = {
        "docs/novels.fr.txt.gz": ["novel", "known", "trained"],
        "train/tech.en-fr.fr.txt.gz": ["trained", "more", "known"],
    }
    for name, lines in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with gzip.open(tmp_path / name, "wt") as stream:
            stream.write("".join(f"{line}\n" for line in lines))
    assert distractors(tmp_path, "fr", "en-fr", 2, {"known"}) == ["novel", "trained"]
    assert distractors(tmp_path, "fr", "en-fr", 9, {"known"}) == ["novel", "trained", "more"]
