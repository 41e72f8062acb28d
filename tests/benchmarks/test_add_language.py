"""The benchmark of adding a language, on toy text."""

import json

import pytest
import small_model
import toy
from conftest import main_here

from benchmarks.quality import add_language

LETTERS = {ord("a") + number: 0x430 + number for number in range(26)}


def write_data(data) -> None:
    """Text of a new language, its set, and a set of an old language."""
    sides = dict(zip(("en", "hu"), map(list, zip(*toy.sentences(700), strict=True)), strict=True))
    sides["hu"] = [line.lower().translate(LETTERS) for line in sides["hu"]]
    for language, lines in sides.items():
        toy.pack(data / f"more/made.en-hu.{language}", lines)
        toy.pack(
            data / f"eval/tatoeba-v1.hun-eng.{ {'en': 'eng', 'hu': 'hun'}[language] }", lines[:60]
        )
    for language, lines in zip(("en", "fr"), zip(*toy.sentences(60, 2), strict=True), strict=True):
        toy.pack(data / f"eval/pud.{language}", lines)


@pytest.mark.usefixtures("python_is_a_fork")
def test_both_ways_are_measured_once(tmp_path):
    write_data(tmp_path)
    model = small_model.write_folder(tmp_path / "old", num_layers=0, gated=True)
    words = [
        "--data",
        tmp_path,
        "--work",
        tmp_path / "work",
        "--output",
        tmp_path / "found.json",
        "--model",
        model,
    ]
    words += [
        "--new",
        "hu",
        "--pairs",
        600,
        "--options",
        "--max-update 3 --batch-size 64 --num-workers 0",
    ]
    main_here(add_language, *words, "--ways", "from")
    found = json.loads((tmp_path / "found.json").read_text())
    [row] = found["rows"]
    assert (row["way"], row["pairs"]) == ("from", 600)
    assert row["P@1"]["fr"] == found["before"]["fr"]
    assert min(row["P@1"]["hu"]["Tatoeba"]) > 50
    assert main_here(add_language, *words, "--ways", "from").stdout == ""
