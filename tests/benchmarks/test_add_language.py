"""The benchmark of adding a language, on toy text."""

import json

import pytest
import small_model
import toy
from conftest import main_here

from benchmarks.quality import add_language

LETTERS = {ord("a") + number: 0x430 + number for number in range(26)}


def write_text(folder, kind, pairs) -> None:
    """Write text of a new language, whose letters are unknown to the model."""
    toy.pack(folder / f"{kind}.en-gl.en", [source for source, _ in pairs])
    toy.pack(folder / f"{kind}.en-gl.gl", [line.lower().translate(LETTERS) for _, line in pairs])


@pytest.mark.slow
@pytest.mark.usefixtures("python_is_a_fork")
def test_a_new_language_is_trained_and_measured_once(tmp_path, monkeypatch):
    """The scores are those of held-out text, of another kind of text, and of an old language."""
    monkeypatch.setattr(add_language, "TEST_PAIRS", 60)
    write_text(tmp_path, "help", toy.sentences(700))
    write_text(tmp_path, "game", toy.sentences(60, 2))
    pairs = toy.sentences(60, 3)
    english = [source for source, _ in pairs]
    toy.pack(tmp_path / "eval/pud.en", english)
    toy.pack(tmp_path / "eval/pud.fr", [target for _, target in pairs])
    for side in ("eng", "glg"):
        toy.pack(tmp_path / f"eval/tatoeba-v1.glg-eng.{side}", english)
    model = small_model.write_folder(tmp_path / "old", num_layers=0, gated=True)
    output = tmp_path / "scores.json"
    words = ["--data", tmp_path, "--work", tmp_path / "work", "--output", output, "--model", model]
    words += ["--new", "gl", "--pairs", 600, "--seeds", 1, "--ways", "from"]
    words += ["--options", "--max-update 3 --batch-size 64 --num-workers 0"]
    main_here(add_language, *words)
    scores = json.loads(output.read_text())
    [row] = scores["rows"]
    assert (row["way"], row["pairs"], row["seed"]) == ("from", 600, 1)
    assert row["old languages"]["fr"] == scores["before"]["old languages"]["fr"]
    assert min(row["P@1"]["help"]) > max(scores["before"]["gl"]["help"]) + 20
    assert set(row["P@1"]) == {"help", "game", "Tatoeba"}
    run_scores = tmp_path / "work" / "gl.600.from.1" / "scores.json"
    time_of_first_run = run_scores.stat().st_mtime_ns
    main_here(add_language, *words)
    assert run_scores.stat().st_mtime_ns == time_of_first_run
