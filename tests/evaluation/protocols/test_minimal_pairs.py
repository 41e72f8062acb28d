"""Minimal pairs: the rules that change a sentence, ties, and the values of the score."""

import numpy as np
import pytest
from conftest import lxsr_here, refused
from golden_vectors import GOLDEN, Vectors

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols.minimal_pairs import (
    nearer,
    negated,
    renumbered,
    score_minimal_pairs,
    swapped,
)
from fairseq_lxsr.evaluation.score import read_scores


@pytest.mark.parametrize(
    ("rule", "sentence", "changed"),
    [
        (swapped, "The dog is in the garden.", "The garden is in the dog."),
        # The word after the first noun could be another noun.
        (swapped, "A man sees a cat.", None),
        # A swapped coordination has the same meaning.
        (swapped, "The dog and the cat are here.", None),
        # An adjective is no noun.
        (swapped, "The practical needs of the day.", None),
        # Different articles would have to move too.
        (swapped, "The dog of a man.", None),
        (swapped, "The dog of the dog.", None),
        (swapped, "Dogs bark.", None),
        (negated, "He has seen it.", "He has not seen it."),
        (negated, "Has he seen it?", None),
        (negated, "It is not here.", None),
        (negated, "Dogs bark.", None),
        (renumbered, "12,500 dogs and B52", None),
    ],
)
def test_a_rule_changes_only_sentences_with_a_new_meaning(rule, sentence, changed):
    assert rule(sentence) == changed


def test_a_changed_number_has_as_many_digits():
    for sentence in ("In 1984 it was 7.", "7 dogs", "42 of 100"):
        changed = renumbered(sentence)
        assert changed != sentence
        assert len(changed) == len(sentence)


def test_a_tie_counts_half():
    foreign = np.array([[1.0, 0], [1, 0], [1, 0]])
    english = np.array([[2.0, 0], [0, 1], [3, 3]])
    # Farther than the original, nearer, and at the same distance.
    changed = np.array([[0.0, 1], [1, 0], [5, 5]])
    assert nearer(foreign, english, changed).hits == [1, 0, 0.5]
    assert nearer(foreign, english, changed).value == 50


# Vectors of a sentence, its negation and another number.
SEVEN = {
    "sept": [0, 1],
    "He was 7.": [0.2, 1],
    "He was not 7.": [0, 1],
    renumbered("He was 7."): [1, 0],
}


def test_each_rule_has_an_accuracy():
    vectors = SEVEN | {
        "le chien": [1, 0],
        "chiens": [1, 1],
        "The dog is in the garden.": [1, 0.1],
        "The garden is in the dog.": [1, 0.1],
        "The dog is not in the garden.": [0.5, 1],
    }
    french = Text(["le chien", "chiens", "sept"], "fr", "s.fr")
    english = Text(["The dog is in the garden.", "Dogs bark.", "He was 7."], "en", "s.en")
    score, pairs = score_minimal_pairs(french, english, Vectors(vectors))
    assert score.values == {"swap": 50, "negation": 50, "number": 100}
    assert score.task == "fr->en"
    signature = (
        "minimal-pairs|metric:cosine|norm:l2|ties:half|pairs:1 swap,2 negation,1 number|text:"
    )
    assert score.signature.startswith(signature)
    assert pairs["negation"].rows == [0, 2]


def test_a_rule_without_pairs_has_no_value():
    score, _ = score_minimal_pairs(Text(["sept"], "fr"), Text(["He was 7."], "en"), Vectors(SEVEN))
    assert score.values.keys() == {"negation", "number"}


def test_text_without_pairs_is_refused():
    with pytest.raises(InputError, match=r"s\.en: .*swap, negation, number"):
        score_minimal_pairs(Text(["chiens"], "fr"), Text(["Dogs bark."], "en", "s.en"), Vectors())


def test_english_may_be_either_side_and_the_pairs_are_written(tmp_path):
    (tmp_path / "t.en").write_text("The dog is in the house.\nA cat.\n")
    (tmp_path / "t.fr").write_text("Le chien est dans la maison.\nUn chat.\n")
    words = ("eval", "minimal-pairs", "--model", GOLDEN / "compatibility" / "best.model")
    text = ("--data", tmp_path / "t", "--output", tmp_path / "scores.jsonl")
    for pair in ("en-fr", "fr-en"):
        pairs_output = tmp_path / f"{pair}.tsv"
        lxsr_here(*words, *text, "--lang-pairs", pair, "--pairs-output", pairs_output)
    first, second = read_scores(tmp_path / "scores.jsonl")
    assert (first.task, first.signature, first.values) == (
        "fr->en",
        second.signature,
        second.values,
    )
    written = (tmp_path / "en-fr.tsv").read_text()
    assert written == (tmp_path / "fr-en.tsv").read_text()
    assert written.splitlines() == [
        "swap\tLe chien est dans la maison.\tThe dog is in the house.\tThe house is in the dog.",
        "negation\tLe chien est dans la maison.\tThe dog is in the house.\tThe dog is not in the "
        "house.",
    ]
    texts = ("--source", tmp_path / "t.fr", "--target", tmp_path / "t.fr", "--lang-pairs", "fr-de")
    refused(lxsr_here(*words, *texts, check=False), "--lang-pairs fr-de")
