"""The table of numbers of layers on the page of results."""

from benchmarks.quality.layers_table import PAGE, cell, read_table


def scores(*precisions):
    """Return the scores of a training on one set, by direction."""
    directions = {f"direction {n}": {"P@1": value} for n, value in enumerate(precisions)}
    return {"PUD": directions}


def test_the_table_of_the_page_is_that_of_the_results():
    assert read_table() in PAGE.read_text(encoding="utf-8")


def test_a_cell_has_the_mean_of_both_directions_and_the_range_of_the_trainings():
    assert cell([scores(60, 70)], "PUD") == "65.0"
    assert cell([scores(60, 70), scores(70, 80)], "PUD") == "70.0 (65.0 to 75.0)"
    assert cell([], "PUD") == ""
