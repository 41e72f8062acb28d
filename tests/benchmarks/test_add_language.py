"""The benchmark of adding a language, on toy text of three languages."""

import json

import pytest
import toy
from conftest import main_here

from benchmarks.quality import add_language

LETTERS = {ord("a") + number: 0x430 + number for number in range(26)}


def write_data(data) -> None:
    """Training text of both pairs, and a set of all three languages."""
    for name, size, seed in (("train/made", 2500, 1), ("eval/pud", 100, 2)):
        sides = dict(zip(("en", "fr"), map(list, zip(*toy.sentences(size, seed), strict=True)), strict=True))
        sides["ru"] = [line.lower().translate(LETTERS) for line in sides["fr"]]
        for pair in ("en-fr", "en-ru"):
            for language in pair.split("-"):
                name_of = f"{name}.{pair}.{language}" if "train" in name else f"{name}.{language}"
                toy.pack(data / name_of, sides[language])


@pytest.mark.usefixtures("python_is_a_fork")
def test_all_ways_are_measured(tmp_path):
    write_data(tmp_path)
    sizes = ["--vocab-size", 150, "--pieces", 60, "--updates", 6, 3, "--candidates", 50]
    options = "--encoder-embed-dim 16 --batch-size 64 --num-workers 0"
    words = ["--data", tmp_path, "--work", tmp_path / "work", "--output", tmp_path / "found.json"]
    words += ["--old", "en-fr", "--zero-shot", "fr-ru", *sizes, "--options", options]
    main_here(add_language, *words)
    found = json.loads((tmp_path / "found.json").read_text())
    rows = found["P@1"]
    assert len(rows) == 6
    assert rows["frozen"]["en-fr"] == rows["before"]["en-fr"]
    assert set(rows["rehearsal"]["fr-ru"]["PUD"]) == {"fr-ru", "ru-fr"}
    assert found["sentences split otherwise"] == {"en-fr": {"PUD": {"en": 0, "fr": 0}}}
    assert "149 old entries" in found["extend.py"][0]
