"""The table of numbers of layers on the page of results."""

from benchmarks.quality.layers_table import PAGE, cell, read_table


def scores_on_pud(english_to_french: float, french_to_english: float):
    """Return the scores of one training."""
    directions = {"en-fr": {"P@1": english_to_french}, "fr-en": {"P@1": french_to_english}}
    return {"PUD": directions}


def test_the_page_has_the_table_of_the_present_results():
    assert read_table() in PAGE.read_text(encoding="utf-8")


def test_a_cell_has_the_mean_of_both_directions_and_the_range_of_the_trainings():
    # Means of both directions: 65 and 75.
    first = scores_on_pud(60, 70)
    second = scores_on_pud(70, 80)

    assert cell([first], "PUD") == "65.0"
    assert cell([first, second], "PUD") == "70.0 (65.0 to 75.0)"


def test_a_cell_without_trainings_is_empty():
    assert cell([], "PUD") == ""
