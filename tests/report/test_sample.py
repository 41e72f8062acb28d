"""The sentences on the map, and their positions."""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.report import measure_sample
from fairseq_lxsr.report.charts import map_chart
from fairseq_lxsr.report.sample import MAP_PAIRS, sample_rows


def test_the_sentences_of_the_map_are_spread_over_the_text():
    rows = list(range(0, 3000, 2))
    selected = sample_rows(rows, "test.en")
    assert len(set(selected)) == MAP_PAIRS
    assert selected[0] == 0
    assert selected[-1] == 2998
    assert set(selected) <= set(rows)
    assert sample_rows(rows[:20], "test.en") == rows[:20]


def test_too_little_text_is_refused():
    with pytest.raises(InputError, match=r"test\.en: 9 .*\b10\b"):
        sample_rows(range(9), "test.en")


def test_a_line_joins_each_sentence_and_its_translation():
    source = [f"s{number}" for number in range(12)]
    target = [f"t{number}" for number in range(12)]
    sample = measure_sample((source, target), (np.eye(12), np.eye(12)), ("en", "fr"), 3400)
    chart = map_chart(sample)
    lines, left, right = chart.figure.data
    assert chart.title == "Map of 12 of 3,400 sentence pairs, en and fr"
    assert list(left.text) == source
    assert list(right.text) == target
    # Each line has two ends and a gap.
    for number in range(12):
        start, end, gap = range(3 * number, 3 * number + 3)
        assert lines.x[start] == left.x[number]
        assert lines.y[start] == left.y[number]
        assert lines.x[end] == right.x[number]
        assert lines.y[end] == right.y[number]
        assert np.isnan(lines.x[gap])
        assert np.isnan(lines.y[gap])
