"""The mean vector of each language in the benchmarks: what subtracting it changes."""

from types import SimpleNamespace

import numpy as np

from benchmarks.quality.language_means import precision

# Directions of the meanings of two sentences and of a distractor.
MEANINGS = {"dog": (4.0, 0.0, 0.0), "cat": (0.0, 4.0, 0.0), "bee": (3.0, 1.0, 0.0)}
# French has a mean that English lacks.
FRENCH = np.array([0.0, 0.0, 5.0])


class Encoder:
    """Reads a text such as `cat` or `le cat`, which is French."""

    def encode(self, lines, dtype):
        vectors = []
        for line in lines:
            mean = FRENCH if line.startswith("le ") else 0 * FRENCH
            vectors.append(mean + MEANINGS[line.split()[-1]])
        return np.array(vectors, np.float32)


def test_a_mean_of_one_language_hides_translations_until_it_is_subtracted():
    measure = SimpleNamespace(
        sets={"pets": {"en": ["dog", "cat"], "fr": ["le dog", "le cat"]}},
        # Without the mean of French, `bee` is nearer to the English dog than the French one.
        crowd={"en": ["bee"], "fr": ["bee"]},
    )
    none = np.zeros(3)
    as_it_is = precision(Encoder(), measure, {"en": none, "fr": none})
    assert as_it_is["pets"]["en-fr"] == {"P@1": 50.0, "alone": 100.0}
    centred = precision(Encoder(), measure, {"en": none, "fr": FRENCH})
    assert centred["pets"]["en-fr"] == {"P@1": 100.0, "alone": 100.0}
