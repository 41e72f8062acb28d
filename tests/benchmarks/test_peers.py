"""The table of public models is that of the file of results, and its scores are complete."""

import pytest

from benchmarks.pictures import PEERS, read_json
from benchmarks.quality import peers

RESULTS = read_json(PEERS)


def test_the_page_has_the_table_of_the_present_results():
    page = peers.PAGE.read_text(encoding="utf-8")
    assert peers.table(RESULTS) in page, "run python -m benchmarks.quality.peers"


@pytest.mark.parametrize("task", ["Tatoeba", "NTREXBitextMining"])
def test_all_models_have_scores_of_all_languages_and_directions_of_a_bitext_task(task):
    expected = set()
    for direction in peers.TASKS[task].directions:
        expected.update(peers.TASKS[task].names(direction))

    for model, scores in RESULTS["scores"].items():
        # Our model has no scores of a task whose text was missing when it was measured.
        if model == RESULTS["model"] and task not in scores:
            continue
        assert set(scores[task]) == expected, model


def test_a_mean_is_that_of_the_scores_of_all_languages():
    scores = {"de->en": 80.0, "fr->en": 91.0}

    assert peers.mean(scores, ["de->en", "fr->en"]) == "85.5"


def test_a_mean_is_a_dash_if_a_language_has_no_score():
    assert peers.mean({"de->en": 80.0}, ["de->en", "fr->en"]) == "-"


def test_writing_the_table_changes_only_the_text_between_its_marks(tmp_path, monkeypatch):
    page = tmp_path / "choose.md"
    page.write_text(f"before\n{peers.BEGIN}old table\n{peers.END}\nafter\n")
    monkeypatch.setattr(peers, "PAGE", page)

    peers.write_page(RESULTS)

    text = page.read_text()
    assert text.startswith(f"before\n{peers.BEGIN}")
    assert text.endswith(f"{peers.END}\nafter\n")
    assert "old table" not in text
