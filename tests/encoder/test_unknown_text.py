# ruff: noqa: RUF001 (letters of many scripts)
"""A sentence without a known word has no vector of its own, so it is empty."""

from collections import Counter

import numpy as np
import pytest
import small_model

from fairseq_lxsr import SentenceEncoder

# of the small model
UNREADABLE = ["สวัสดีครับ", "🚀", "שלום, מה שלומך?", "Τι κάνεις;", "\ue000 \ue001", "«»"]
READABLE = ["the dog sleeps", "the 🚀 dog", "a", "dog สวัสดี"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    sizes = {"transformer": {}, "bag": {"num_layers": 0, "gated": True}, "laser": {}, "tlaser": {}}
    return {
        name: small_model.write_folder(folder / name, name.replace("bag", "transformer"), **size)
        for name, size in sizes.items()
    }


@pytest.mark.parametrize("name", ["transformer", "bag", "laser", "tlaser"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_gives_zeros_and_is_counted(folders, name, dtype):
    encoder, counts = SentenceEncoder.from_pretrained(folders[name], "cpu"), Counter()
    embeddings = encoder.encode(["", *UNREADABLE, *READABLE], dtype=dtype, counts=counts)
    assert not embeddings[: 1 + len(UNREADABLE)].any()
    assert embeddings[1 + len(UNREADABLE) :].any(axis=1).all()
    assert counts["empty"] == 1 + len(UNREADABLE)
    for text in UNREADABLE:  # alone too, which is another path
        assert not encoder.encode([text], on_long="split-mean", normalize=True).any()
    _, lengths = encoder.split([*UNREADABLE, *READABLE])
    assert (lengths > 0).tolist() == [False] * len(UNREADABLE) + [True] * len(READABLE)


def test_the_vectors_of_others_stay(folders):
    """Unknown pieces beside a known word count as before, by the mean of their rows."""
    encoder = SentenceEncoder.from_pretrained(folders["bag"], "cpu")
    ids, _ = encoder.tokenizer.encode_flat(["dog สวัสดี"])
    assert encoder.tokenizer.unknown in ids
    expected = encoder.table[ids].mean(axis=0) * encoder.output_dim**0.5
    np.testing.assert_allclose(encoder.encode(["dog สวัสดี"])[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "text", ["გამარჯობა", "សួស្តី", "Բարեւ ձեզ", "வணக்கம்", "নমস্কার", "ሰላም", "👍🏽👍", "\ue000"]
)
def test_the_model_of_the_package_reads_none_of_other_scripts(packaged, text):
    assert not packaged.encode([text]).any()
    assert packaged.encode([f"{text} hello"]).any()
