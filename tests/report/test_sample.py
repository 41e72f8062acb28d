"""What the page says about a pair, on vectors worked out by hand."""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.report import measure_sample
from fairseq_lxsr.report.charts import length_chart

SOURCE = ["one", "a b c d", "two", "three words now", *(f"s{i}" for i in range(8))]
TARGET = ["un", "a b c d e", "deux", "trois mots là", *(f"t{i}" for i in range(8))]


def test_accuracy_by_length_and_errors():
    """Source 0 lies nearest to target 2 (0.8), then to its translation (0.6); everything else is
    right.
    """
    left = np.eye(12)
    left[0] = 0.8 * np.eye(12)[2] + 0.6 * np.eye(12)[0]
    sample = measure_sample(SOURCE, TARGET, left, np.eye(12), ("en", "fr"))
    forward, backward = sample.directions
    assert (forward.name, forward.buckets, forward.counts) == ("en->fr", ["1-3", "4-7"], [11, 1])
    assert forward.accuracy == pytest.approx([100 * 10 / 11, 100])
    assert backward.accuracy == [100, 100]
    assert list(length_chart(sample).figure.layout.xaxis.categoryarray)[:3] == [
        "1-3",
        "4-7",
        "8-11",
    ]
    (error,) = sample.errors
    assert (error.query, error.neighbour, error.translation, error.rank) == ("one", "deux", "un", 2)
    assert (error.neighbour_cosine, error.translation_cosine) == pytest.approx((0.8, 0.6))
    assert sample.heatmap[0, 2] == pytest.approx(0.8)
    assert sample.map.shape == (24, 2)
    assert sample.map_sentences == (SOURCE, TARGET)


def test_too_little_text_is_refused():
    with pytest.raises(InputError, match=r"\b9\b.*\b10\b"):
        measure_sample(SOURCE[:9], TARGET[:9], np.eye(9), np.eye(9), ("en", "fr"))
