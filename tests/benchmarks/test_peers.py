"""The table of public models is that of the file of results, and its scores are complete."""

from benchmarks.pictures import PEERS, read_json
from benchmarks.quality import peers

RESULTS = read_json(PEERS)


def test_the_table_of_the_page_is_that_of_the_results():
    page = peers.PAGE.read_text(encoding="utf-8")
    assert peers.table(RESULTS) in page, "run python -m benchmarks.quality.peers"


def test_all_models_have_all_languages_of_the_bitext_tasks():
    for name, scores in RESULTS["scores"].items():
        for task in ("Tatoeba", "NTREXBitextMining"):
            expected = {
                score
                for way in peers.TASKS[task].directions
                for score in peers.TASKS[task].names(way)
            }
            if name == RESULTS["model"] and task not in scores:
                continue
            assert set(scores[task]) == expected, (name, task)


def test_a_mean_needs_all_languages():
    assert peers.mean({"de->en": 80.0, "fr->en": 91.0}, ["de->en", "fr->en"]) == "85.5"
    assert peers.mean({"de->en": 80.0}, ["de->en", "fr->en"]) == "-"


def test_other_text_of_the_page_stays(tmp_path, monkeypatch):
    page = tmp_path / "choose.md"
    page.write_text(f"before\n{peers.BEGIN}old\n{peers.END}\nafter\n")
    monkeypatch.setattr(peers, "PAGE", page)
    peers.write_page(RESULTS)
    text = page.read_text()
    assert text.startswith(f"before\n{peers.BEGIN}")
    assert text.endswith(f"{peers.END}\nafter\n")
    assert "old" not in text
