"""The benchmark of adding a language, on toy text."""

import json

import pytest
import small_model
import toy
from conftest import main_here

from benchmarks.quality import add_language

LETTERS = {ord("a") + number: 0x430 + number for number in range(26)}


def write_text(folder, kind, pairs) -> None:
    """Text of a new language, whose letters the model does not know."""
    toy.pack(folder / f"{kind}.en-gl.en", [source for source, _ in pairs])
    toy.pack(folder / f"{kind}.en-gl.gl", [line.lower().translate(LETTERS) for _, line in pairs])


@pytest.mark.slow
@pytest.mark.usefixtures("python_is_a_fork")
def test_a_way_is_measured_once(tmp_path, monkeypatch):
    """On text of its own kind, which is not trained on, on another kind, and on an old language."""
    monkeypatch.setattr(add_language, "TEST_PAIRS", 60)
    write_text(tmp_path, "help", toy.sentences(700))
    write_text(tmp_path, "game", toy.sentences(60, 2))
    english, french = zip(*toy.sentences(60, 3), strict=True)
    toy.pack(tmp_path / "eval/pud.en", english)
    toy.pack(tmp_path / "eval/pud.fr", french)
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
    made = (tmp_path / "work" / "gl.600.from.1" / "scores.json").stat().st_mtime_ns
    main_here(add_language, *words)
    assert (tmp_path / "work" / "gl.600.from.1" / "scores.json").stat().st_mtime_ns == made
