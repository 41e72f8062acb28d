"""The benchmark of adding a language, on toy text of three languages."""

import json
import sys

import toy
from conftest import forked_commands, forked_environment

from benchmarks.quality import add_language
from fairseq_lxsr.files.write import atomic_write

LETTERS = {ord("a") + number: 0x430 + number for number in range(26)}


def pack(path, lines) -> None:
    with atomic_write(f"{path}.txt.gz") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def write_data(data) -> None:
    """Training text of both pairs, and a set of all three languages."""
    for name, size, seed in (("train/made", 2500, 1), ("eval/pud", 100, 2)):
        sides = dict(zip(("en", "fr"), map(list, zip(*toy.sentences(size, seed), strict=True)), strict=True))
        sides["ru"] = [line.lower().translate(LETTERS) for line in sides["fr"]]
        for pair in ("en-fr", "en-ru"):
            for language in pair.split("-"):
                pack(data / (f"{name}.{pair}.{language}" if "train" in name else f"{name}.{language}"), sides[language])


def test_all_ways_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(forked_commands() / "python"))
    for name, value in forked_environment().items():
        monkeypatch.setenv(name, value)
    write_data(tmp_path)
    sizes = ["--vocab-size", 150, "--pieces", 60, "--updates", 6, 3, "--candidates", 50]
    options = "--encoder-embed-dim 16 --batch-size 64 --num-workers 0"
    words = ["--data", tmp_path, "--work", tmp_path / "work", "--output", tmp_path / "found.json"]
    words += ["--old", "en-fr", "--zero-shot", "fr-ru", *sizes, "--options", options]
    monkeypatch.setattr(sys, "argv", ["add_language.py", *map(str, words)])
    add_language.main()
    found = json.loads((tmp_path / "found.json").read_text())
    rows = found["P@1"]
    assert len(rows) == 6
    assert rows["frozen"]["en-fr"] == rows["before"]["en-fr"]
    assert set(rows["rehearsal"]["fr-ru"]["PUD"]) == {"fr-ru", "ru-fr"}
    assert found["sentences split otherwise"] == {"en-fr": {"PUD": {"en": 0, "fr": 0}}}
    assert "149 old entries" in found["extend.py"][0]
