"""The mean vector of each language in the benchmarks: what subtracting it changes."""

from types import SimpleNamespace

import numpy as np

from benchmarks.quality.language_means import precision

# The first two dimensions are the meaning of a word; "bee" is like "dog". All French sentences have
# the same third dimension, which is their mean.
ENGLISH_MEAN = np.array([0.0, 0.0, 0.0])
FRENCH_MEAN = np.array([0.0, 0.0, 5.0])
VECTORS = {
    "dog": np.array([4.0, 0.0, 0.0]),
    "cat": np.array([0.0, 4.0, 0.0]),
    "bee": np.array([3.0, 1.0, 0.0]),
    "le dog": np.array([4.0, 0.0, 5.0]),
    "le cat": np.array([0.0, 4.0, 5.0]),
}


class Encoder:
    def encode(self, lines, dtype):
        return np.array([VECTORS[line] for line in lines], np.float32)


# Two translations; "bee" is a distractor on both sides.
TEXT = SimpleNamespace(
    sets={"pets": {"en": ["dog", "cat"], "fr": ["le dog", "le cat"]}},
    crowd={"en": ["bee"], "fr": ["bee"]},
)


def test_a_mean_of_one_language_makes_a_distractor_nearer_than_a_translation():
    zeros = np.zeros(3)

    scores = precision(Encoder(), TEXT, {"en": zeros, "fr": zeros})["pets"]["en-fr"]

    # "bee" is nearer to "dog" than "le dog". `alone` is without distractors.
    assert scores == {"P@1": 50.0, "alone": 100.0}


def test_after_subtracting_the_means_translations_are_the_nearest():
    means = {"en": ENGLISH_MEAN, "fr": FRENCH_MEAN}

    scores = precision(Encoder(), TEXT, means)["pets"]["en-fr"]

    assert scores == {"P@1": 100.0, "alone": 100.0}
