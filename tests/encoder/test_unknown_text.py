# ruff: noqa: RUF001 (letters of many scripts)
"""A sentence without a known word gives a zero vector and counts as empty."""

from collections import Counter

import numpy as np
import pytest
import small_model

from fairseq_lxsr import SentenceEncoder

# The dictionary of the small models is English and French: no letter of these scripts is in it, and
# no emoji, private character or quotation mark.
UNREADABLE = ["สวัสดีครับ", "🚀", "שלום, מה שלומך?", "Τι κάνεις;", "\ue000 \ue001", "«»"]
# Sentences with a known word.
READABLE = ["the dog sleeps", "the 🚀 dog", "a", "dog สวัสดี"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    bag = {"num_layers": 0, "gated": True}
    return {
        "transformer": small_model.write_folder(folder / "transformer", "transformer"),
        "bag": small_model.write_folder(folder / "bag", "transformer", **bag),
        "laser": small_model.write_folder(folder / "laser", "laser"),
        "tlaser": small_model.write_folder(folder / "tlaser", "tlaser"),
    }


KINDS = ["transformer", "bag", "laser", "tlaser"]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sentence_without_a_known_word_gives_zeros_and_counts_as_empty(folders, name, dtype):
    encoder = SentenceEncoder.from_pretrained(folders[name], "cpu")
    empty = ["", *UNREADABLE]
    counts = Counter()

    embeddings = encoder.encode([*empty, *READABLE], dtype=dtype, counts=counts)

    assert not embeddings[: len(empty)].any()
    assert embeddings[len(empty) :].any(axis=1).all()
    assert counts["empty"] == len(empty)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("text", UNREADABLE)
def test_a_sentence_without_a_known_word_gives_zeros_alone_too(folders, name, text):
    """A text alone takes another path than a batch."""
    encoder = SentenceEncoder.from_pretrained(folders[name], "cpu")

    assert not encoder.encode([text], on_long="split-mean", normalize=True).any()


@pytest.mark.parametrize("name", KINDS)
def test_a_sentence_without_a_known_word_has_no_pieces(folders, name):
    encoder = SentenceEncoder.from_pretrained(folders[name], "cpu")

    _, unreadable_lengths = encoder.split(UNREADABLE)
    _, readable_lengths = encoder.split(READABLE)

    assert (unreadable_lengths == 0).all()
    assert (readable_lengths > 0).all()


def test_unknown_pieces_next_to_a_known_word_count_in_the_mean(folders):
    encoder = SentenceEncoder.from_pretrained(folders["bag"], "cpu")
    ids, _ = encoder.tokenizer.encode_flat(["dog สวัสดี"])
    assert encoder.tokenizer.unknown in ids

    [embedding] = encoder.encode(["dog สวัสดี"])

    # A bag scales the mean by the root of its width.
    expected = encoder.table[ids].mean(axis=0) * encoder.output_dim**0.5
    np.testing.assert_allclose(embedding, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("გამარჯობა", id="Georgian"),
        pytest.param("សួស្តី", id="Khmer"),
        pytest.param("Բարեւ ձեզ", id="Armenian"),
        pytest.param("வணக்கம்", id="Tamil"),
        pytest.param("নমস্কার", id="Bengali"),
        pytest.param("ሰላም", id="Amharic"),
        pytest.param("👍🏽👍", id="emoji"),
        pytest.param("\ue000", id="private character"),
    ],
)
def test_the_packaged_model_gives_zeros_for_scripts_that_it_was_not_trained_on(packaged, text):
    assert not packaged.encode([text]).any()
    # Not so next to a word of a language of the model.
    assert packaged.encode([f"{text} hello"]).any()
