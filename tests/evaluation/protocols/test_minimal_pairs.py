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
        (negated, "He has seen it.", "He has not seen it."),
    ],
)
def test_a_rule_changes_the_meaning_of_a_sentence(rule, sentence, changed):
    assert rule(sentence) == changed


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        pytest.param(swapped, "A man sees a cat.", id="the word sees could be another noun"),
        pytest.param(swapped, "The dog and the cat are here.", id="swapping has the same meaning"),
        pytest.param(swapped, "The practical needs of the day.", id="practical is no noun"),
        pytest.param(swapped, "The dog of a man.", id="articles would have to move too"),
        pytest.param(swapped, "The dog of the dog.", id="both nouns are the same"),
        pytest.param(swapped, "Dogs bark.", id="no articles"),
        pytest.param(negated, "Has he seen it?", id="question"),
        pytest.param(negated, "It is not here.", id="negated already"),
        pytest.param(negated, "Dogs bark.", id="no auxiliary"),
        pytest.param(renumbered, "12,500 dogs and B52", id="digits are parts of longer words"),
    ],
)
def test_a_rule_leaves_out_sentences_to_which_it_gives_no_other_meaning(rule, sentence):
    assert rule(sentence) is None


@pytest.mark.parametrize("sentence", ["In 1984 it was 7.", "7 dogs", "42 of 100"])
def test_a_changed_number_is_another_one_with_as_many_digits(sentence):
    changed = renumbered(sentence)

    assert changed != sentence
    assert len(changed) == len(sentence)


# Three foreign sentences with their translations. The first changed translation is farther from the
# foreign sentence than the true one, the second is nearer, the third at the same distance.
FOREIGN = np.array([[1.0, 0], [1, 0], [1, 0]])
ENGLISH = np.array([[2.0, 0], [0, 1], [3, 3]])
CHANGED = np.array([[0.0, 1], [1, 0], [5, 5]])


def test_a_nearer_translation_counts_one_and_a_tie_half():
    outcomes = nearer(FOREIGN, ENGLISH, CHANGED)

    assert outcomes.hits == [1, 0, 0.5]
    assert outcomes.value == 100 * (1 + 0 + 0.5) / 3


# Vectors of a French sentence, its translation, and the changed forms of the translation: the
# negation is nearer to the French, the other number is farther.
SEVEN_VECTORS = {
    "sept": [0, 1],
    "He was 7.": [0.2, 1],
    "He was not 7.": [0, 1],
    renumbered("He was 7."): [1, 0],
}
SEVEN_FR = Text(["sept"], "fr")
SEVEN_EN = Text(["He was 7."], "en")


def score_three_sentences():
    """Score three sentences, of which rules change the first and the last.

    The first is as near to the French as its swapped form, and nearer than its negation.
    """
    vectors = SEVEN_VECTORS | {
        "le chien": [1, 0],
        "chiens": [1, 1],
        "The dog is in the garden.": [1, 0.1],
        "The garden is in the dog.": [1, 0.1],
        "The dog is not in the garden.": [0.5, 1],
    }
    french = Text(["le chien", "chiens", "sept"], "fr", "s.fr")
    english = Text(["The dog is in the garden.", "Dogs bark.", "He was 7."], "en", "s.en")
    return score_minimal_pairs(french, english, Vectors(vectors))


def test_each_rule_has_an_accuracy():
    score, _ = score_three_sentences()

    # A tie; one of two negations; the only number.
    assert score.values == {"swap": 50, "negation": 50, "number": 100}


def test_the_pairs_of_a_rule_have_the_rows_of_the_sentences_that_it_changes():
    _, pairs = score_three_sentences()

    assert pairs["negation"].rows == [0, 2]


def test_task_and_signature_have_the_languages_and_the_number_of_pairs_of_each_rule():
    score, _ = score_three_sentences()

    assert score.task == "fr->en"
    counts = "1 swap,2 negation,1 number"
    expected = f"minimal-pairs|metric:cosine|norm:l2|ties:half|pairs:{counts}|text:"
    assert score.signature.startswith(expected)


def test_a_rule_without_pairs_has_no_value():
    score, _ = score_minimal_pairs(SEVEN_FR, SEVEN_EN, Vectors(SEVEN_VECTORS))

    assert score.values.keys() == {"negation", "number"}


def test_text_without_pairs_is_refused():
    english = Text(["Dogs bark."], "en", "s.en")

    with pytest.raises(InputError, match=r"s\.en: .*swap, negation, number"):
        score_minimal_pairs(Text(["chiens"], "fr"), english, Vectors())


COMMAND = ("eval", "minimal-pairs", "--model", GOLDEN / "compatibility" / "best.model")


@pytest.fixture
def text(tmp_path):
    """Files of two sentences in English and French; rules change the first."""
    (tmp_path / "t.en").write_text("The dog is in the house.\nA cat.\n")
    (tmp_path / "t.fr").write_text("Le chien est dans la maison.\nUn chat.\n")
    return tmp_path / "t"


def test_english_may_be_either_side(text, tmp_path):
    output = tmp_path / "scores.jsonl"

    for pair in ("en-fr", "fr-en"):
        lxsr_here(*COMMAND, "--data", text, "--lang-pairs", pair, "--output", output)

    from_english, to_english = read_scores(output)
    assert from_english.task == to_english.task == "fr->en"
    assert from_english.signature == to_english.signature
    assert from_english.values == to_english.values


@pytest.mark.parametrize("pair", ["en-fr", "fr-en"])
def test_the_pairs_are_written_with_rule_translation_sentence_and_changed_sentence(
    text, tmp_path, pair
):
    pairs_output = tmp_path / "pairs.tsv"

    data = ("--data", text, "--lang-pairs", pair)
    lxsr_here(*COMMAND, *data, "--pairs-output", pairs_output)

    french = "Le chien est dans la maison."
    english = "The dog is in the house."
    assert pairs_output.read_text().splitlines() == [
        f"swap\t{french}\t{english}\tThe house is in the dog.",
        f"negation\t{french}\t{english}\tThe dog is not in the house.",
    ]


def test_a_pair_without_english_is_refused(text):
    french = f"{text}.fr"

    options = ("--source", french, "--target", french, "--lang-pairs", "fr-de")
    done = lxsr_here(*COMMAND, *options, check=False)

    refused(done, "--lang-pairs fr-de")
