"""Bi-Sent2Vec by its authors' program: its input, and embeddings of sentences from its words."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.released.bisent2vec import encoders, marked


def test_words_and_punctuation_are_marked_with_their_language():
    assert marked("L'eau, ici!", "fr") == "l_fr '_fr eau_fr ,_fr ici_fr !_fr"


# The model has vectors of `the` and `dog`, and none of `other`.
SENTENCES = ["the_en dog_en", "dog_en other_en", "other_en"]
THE = np.array([1, 0])
DOG = np.array([0, 1])
ZERO = np.array([0, 0])


@pytest.fixture
def encode_by_weighting(tmp_path):
    """Functions from sentences to vectors, by the weighting of words, for the vectors above."""
    (tmp_path / "model.vec").write_text("3 2\nthe_en 1 0\ndog_en 0 1\n</s> 5 5\n")
    training_text = tmp_path / "text"
    training_text.write_text("the_en dog_en <<split>> le_fr\nthe_en the_en <<split>> le_fr\n")
    # The program is not called for single words.
    return encoders(Path("program"), tmp_path / "model.bin", training_text, ngrams=1)


def test_a_sentence_is_the_mean_of_its_known_words(encode_by_weighting):
    vectors = encode_by_weighting["mean"](SENTENCES)

    np.testing.assert_allclose(vectors, [(THE + DOG) / 2, DOG, ZERO])


def test_words_are_weighted_by_the_logarithm_of_inverse_document_frequency(encode_by_weighting):
    vectors = encode_by_weighting["idf"](SENTENCES)

    # `the` is in both training pairs, `dog` in one of two.
    the = np.log(2 / 2) * THE
    dog = np.log(2 / 1) * DOG
    np.testing.assert_allclose(vectors, [(the + dog) / 2, dog, ZERO], rtol=1e-6)
