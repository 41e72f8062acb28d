"""Which sentences of a pair are on the map, and where they are."""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.report import measure_sample
from fairseq_lxsr.report.charts import map_chart
from fairseq_lxsr.report.sample import MAP_PAIRS, sample_rows


def test_rows_are_spread_over_the_text():
    rows = list(range(0, 3000, 2))
    selected = sample_rows(rows, "test.en")
    assert len(set(selected)) == MAP_PAIRS
    assert (selected[0], selected[-1]) == (0, 2998)
    assert set(selected) <= set(rows)
    assert sample_rows(rows[:20], "test.en") == rows[:20]


def test_too_little_text_is_refused():
    with pytest.raises(InputError, match=r"test\.en: 9 .*\b10\b"):
        sample_rows(range(9), "test.en")


def test_a_line_joins_each_sentence_and_its_translation():
    source = [f"s{i}" for i in range(12)]
    target = [f"t{i}" for i in range(12)]
    sample = measure_sample((source, target), (np.eye(12), np.eye(12)), ("en", "fr"), 3400)
    chart = map_chart(sample)
    lines, left, right = chart.figure.data
    assert chart.title == "Map of 12 of 3,400 sentence pairs, en and fr"
    assert (list(left.text), list(right.text)) == (source, target)
    for number in range(12):
        ends = np.array(
            [lines.x[3 * number : 3 * number + 3], lines.y[3 * number : 3 * number + 3]]
        )
        np.testing.assert_array_equal(ends[:, 0], (left.x[number], left.y[number]))
        np.testing.assert_array_equal(ends[:, 1], (right.x[number], right.y[number]))
        assert np.isnan(ends[:, 2]).all()
