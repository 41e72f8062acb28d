# ruff: noqa: RUF001 (letters of many scripts)
"""A sentence without a known word gives a zero vector and counts as empty."""

from collections import Counter

import numpy as np
import pytest
import small_model

from fairseq_lxsr import SentenceEncoder

# Sentences for the dictionary of the small model, which is English and French.
UNREADABLE = ["สวัสดีครับ", "🚀", "שלום, מה שלומך?", "Τι κάνεις;", "\ue000 \ue001", "«»"]
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


@pytest.mark.parametrize("name", ["transformer", "bag", "laser", "tlaser"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sentence_without_a_known_word_gives_zeros_and_is_counted(folders, name, dtype):
    encoder = SentenceEncoder.from_pretrained(folders[name], "cpu")
    counts = Counter()
    embeddings = encoder.encode(["", *UNREADABLE, *READABLE], dtype=dtype, counts=counts)
    assert not embeddings[: 1 + len(UNREADABLE)].any()
    assert embeddings[1 + len(UNREADABLE) :].any(axis=1).all()
    assert counts["empty"] == 1 + len(UNREADABLE)
    # A text alone takes another path than a batch.
    for text in UNREADABLE:
        assert not encoder.encode([text], on_long="split-mean", normalize=True).any()
    _, lengths = encoder.split([*UNREADABLE, *READABLE])
    assert (lengths > 0).tolist() == [False] * len(UNREADABLE) + [True] * len(READABLE)


def test_unknown_pieces_next_to_a_known_word_count_in_the_mean(folders):
    encoder = SentenceEncoder.from_pretrained(folders["bag"], "cpu")
    ids, _ = encoder.tokenizer.encode_flat(["dog สวัสดี"])
    assert encoder.tokenizer.unknown in ids
    expected = encoder.table[ids].mean(axis=0) * encoder.output_dim**0.5
    np.testing.assert_allclose(encoder.encode(["dog สวัสดี"])[0], expected, rtol=1e-5)


def test_the_packaged_model_gives_zeros_for_scripts_that_it_was_not_trained_on(packaged):
    texts = ["გამარჯობა", "សួស្តី", "Բարեւ ձեզ", "வணக்கம்", "নমস্কার", "ሰላም", "👍🏽👍", "\ue000"]
    for text in texts:
        assert not packaged.encode([text]).any(), text
        assert packaged.encode([f"{text} hello"]).any(), text
