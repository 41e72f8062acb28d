"""The sentences on the map, and their positions."""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.report import measure_sample
from fairseq_lxsr.report.charts import map_chart
from fairseq_lxsr.report.sample import MAP_PAIRS, sample_rows


def test_the_sentences_of_the_map_are_spread_from_the_first_to_the_last():
    first_row = 0
    last_row = 2998
    rows = list(range(first_row, last_row + 1, 2))

    selected_rows = sample_rows(rows, "test.en")

    assert len(set(selected_rows)) == MAP_PAIRS
    assert selected_rows[0] == first_row
    assert selected_rows[-1] == last_row
    assert set(selected_rows) <= set(rows)


def test_all_sentences_of_a_short_text_are_on_the_map():
    rows = list(range(0, 40, 2))

    assert sample_rows(rows, "test.en") == rows


def test_fewer_than_ten_sentences_are_refused():
    with pytest.raises(InputError, match=r"test\.en: 9 .*\b10\b"):
        sample_rows(range(9), "test.en")


@pytest.fixture
def chart_of_12_pairs():
    source = [f"s{number}" for number in range(12)]
    target = [f"t{number}" for number in range(12)]
    embeddings = np.eye(12)
    sample = measure_sample((source, target), (embeddings, embeddings), ("en", "fr"), 3400)
    return map_chart(sample)


def test_the_map_shows_the_sentences_of_both_languages(chart_of_12_pairs):
    _, left, right = chart_of_12_pairs.figure.data

    assert chart_of_12_pairs.title == "Map of 12 of 3,400 sentence pairs, en and fr"
    assert list(left.text) == [f"s{number}" for number in range(12)]
    assert list(right.text) == [f"t{number}" for number in range(12)]


def test_a_line_joins_each_sentence_and_its_translation(chart_of_12_pairs):
    lines, left, right = chart_of_12_pairs.figure.data

    # All lines are one curve: the two ends of a line, a gap, the ends of the next line, and so on.
    for number in range(12):
        start = 3 * number
        end = start + 1
        gap = start + 2
        assert lines.x[start] == left.x[number]
        assert lines.y[start] == left.y[number]
        assert lines.x[end] == right.x[number]
        assert lines.y[end] == right.y[number]
        assert np.isnan(lines.x[gap])
        assert np.isnan(lines.y[gap])
