"""Text of the benchmarks: its kinds are recorded, also for a share of it."""

import json

import numpy as np
import toy
from conftest import lxsr_here

from benchmarks import corpora
from fairseq_lxsr.training.corpora import read_corpus


def write(folder, name, pairs):
    toy.pack(folder / f"{name}.en", [english for english, _ in pairs])
    toy.pack(folder / f"{name}.fr", [french for _, french in pairs])


def test_files_of_one_kind_are_one_source_of_the_text_and_of_a_share(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "lxsr", lxsr_here)
    pairs = toy.sentences(3000)
    write(tmp_path / "train", "multi30k", pairs[:200])
    write(tmp_path / "train", "tech.en-fr", pairs[200:900])
    write(tmp_path / "large", "ddtp.en-fr", pairs[900:2500])
    write(tmp_path / "large", "new.en-fr", pairs[2500:])
    data = corpora.prepare(tmp_path, tmp_path / "work", ["en-fr"], 200, ["train", "large"])
    sources = json.loads((data / "train.en-fr.sources.json").read_text())
    assert list(sources) == ["captions", "software", "new"]
    assert sum(sources.values()) == 1999
    half = corpora.subset(data, tmp_path / "half", 0.5)
    # Its checksums would refuse the smaller files.
    assert (data / "stage.json").exists()
    assert not (half / "stage.json").exists()
    corpus = read_corpus(half, "train", "en", "fr", 10_000)
    assert list(corpus.sources) == list(sources)
    rows = corpora.chosen_rows(1999, 0.5)
    kinds = np.repeat(np.arange(3), list(sources.values()))[rows]
    assert list(corpus.sources.values()) == np.bincount(kinds).tolist()
