"""Bi-Sent2Vec by its authors' program: its input, and embeddings of sentences from its words."""

from pathlib import Path

import numpy as np

from benchmarks.released.bisent2vec import encoders, marked


def test_words_and_punctuation_are_marked_with_their_language():
    assert marked("L'eau, ici!", "fr") == "l_fr '_fr eau_fr ,_fr ici_fr !_fr"


def test_sentences_are_means_of_words_with_equal_or_idf_weights(tmp_path):
    (tmp_path / "model.vec").write_text("3 2\nthe_en 1 0\ndog_en 0 1\n</s> 5 5\n")
    text = tmp_path / "text"
    text.write_text("the_en dog_en <<split>> le_fr\nthe_en the_en <<split>> le_fr\n")
    encode = encoders(Path("program"), tmp_path / "model.bin", text, ngrams=1)
    sentences = ["the_en dog_en", "dog_en other_en", "other_en"]
    np.testing.assert_allclose(encode["mean"](sentences), [[0.5, 0.5], [0, 1], [0, 0]])
    # `dog` is in one pair of two, `the` in both.
    idf = np.log(2)
    directions = encode["idf"](sentences)
    np.testing.assert_allclose(directions, [[0, idf / 2], [0, idf], [0, 0]], rtol=1e-6)
