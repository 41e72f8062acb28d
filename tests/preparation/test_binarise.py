"""The files are those of fairseq-preprocess, byte for byte, whatever the number of processes and
shards.
"""

import json
import shutil
from collections import Counter
from functools import partial

import numpy as np
import pytest
import toy
from conftest import contents, run
from fairseq.data import data_utils
from forks import FAIRSEQ

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.blocks import in_blocks
from fairseq_lxsr.preparation.binarise import (
    _load_tokenizer,
    binarise,
    shard_folders,
    shard_numbers,
)
from fairseq_lxsr.preparation.config import SubwordOptions
from fairseq_lxsr.preparation.corpus import make_corpus
from fairseq_lxsr.preparation.formats import find_source
from fairseq_lxsr.preparation.splits import HeldOut
from fairseq_lxsr.preparation.subwords import train_subwords
from fairseq_lxsr.preparation.workers import ordered_map
from fairseq_lxsr.text.tokenizer import TextOptions, Tokenizer
from fairseq_lxsr.training.corpora import read_corpus

SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    work = tmp_path_factory.mktemp("prepared")
    toy.write(work / "text", toy.sentences(400))
    source = find_source(str(work / "text"), "en", "fr")
    make_corpus(work / "corpus", ("en", "fr"), source, held_out=HeldOut(20, 30))
    train_subwords(work / "subwords", [work / "corpus"], SubwordOptions(200))
    return work


def build(prepared, folder, **options):
    binarise(folder, {("en", "fr"): prepared / "corpus"}, prepared / "subwords", **options)
    return {
        name: content
        for name, content in contents(folder).items()
        if name.endswith((".bin", ".idx"))
    }


def test_nothing_held_out_for_testing(prepared, tmp_path):
    source = find_source(str(prepared / "text"), "en", "fr")
    report = make_corpus(tmp_path / "corpus", ("en", "fr"), source, held_out=HeldOut(20, 0))
    assert report["pairs"] == {"train": 380, "valid": 20, "test": 0}
    binarise(tmp_path / "data", {("en", "fr"): tmp_path / "corpus"}, prepared / "subwords")
    assert {path.name.split(".")[0] for path in (tmp_path / "data").glob("*.bin")} == {
        "train",
        "valid",
    }


def test_the_bytes_of_fairseq_preprocess(prepared, tmp_path):
    subwords = prepared / "subwords"
    tokenizer = Tokenizer(
        subwords / "sentencepiece.model", TextOptions.load(subwords / "text.json")
    )
    for path in (prepared / "corpus").glob("*.??"):
        pieces = tokenizer.pieces(path.read_text(encoding="utf-8").splitlines())
        (tmp_path / path.name).write_text(
            "".join(" ".join(line) + "\n" for line in pieces), encoding="utf-8"
        )
    prefixes = [argument for split in SPLITS for argument in (f"--{split}pref", tmp_path / split)]
    options = [
        "--srcdict",
        subwords / "dict.txt",
        "--joined-dictionary",
        "--destdir",
        tmp_path / "theirs",
    ]
    languages = ["--source-lang", "en", "--target-lang", "fr"]
    run("fairseq_cli.preprocess", *languages, *prefixes, *options, preloaded=FAIRSEQ)
    ours = build(prepared, tmp_path / "ours")
    assert len(ours) == 12
    for name in (*ours, "dict.en.txt"):
        assert (tmp_path / "ours" / name).read_bytes() == (
            tmp_path / "theirs" / name
        ).read_bytes(), name


@pytest.mark.parametrize("shards", [1, 3])
def test_processes_and_blocks_change_nothing(prepared, tmp_path, monkeypatch, shards):
    whole = build(prepared, tmp_path / "whole", workers=1, shards=shards)
    monkeypatch.setattr("fairseq_lxsr.preparation.binarise.in_blocks", partial(in_blocks, size=50))
    monkeypatch.setattr("fairseq_lxsr.preparation.binarise.SMALL_TEXT", 0)
    assert whole == build(prepared, tmp_path / "two", workers=2, shards=shards)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_many_pairs_take_one_tokenizer_and_the_same_processes(
    prepared, tmp_path, monkeypatch, workers
):
    counts = Counter()

    def counted(name, function):
        def call(*arguments):
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(f"fairseq_lxsr.preparation.binarise.{name}", call)

    counted("_load_tokenizer", _load_tokenizer)
    counted("ordered_map", ordered_map)
    monkeypatch.setattr("fairseq_lxsr.preparation.binarise.SMALL_TEXT", 0)
    build(prepared, tmp_path / "one", workers=workers)
    one = dict(counts)
    languages = ("de", "es", "it", "pt")
    for language in languages:
        shutil.copytree(prepared / "corpus", tmp_path / language)
        for path in (tmp_path / language).glob("*.fr"):
            path.rename(path.with_suffix(f".{language}"))
    corpora = {("en", language): tmp_path / language for language in languages}
    binarise(tmp_path / "many", corpora, prepared / "subwords", workers=workers)
    assert counts == {name: 2 * count for name, count in one.items()}
    for split in SPLITS:
        first = (tmp_path / "one" / f"{split}.en-fr.fr.bin").read_bytes()
        assert {
            (tmp_path / "many" / f"{split}.en-{other}.{other}.bin").read_bytes()
            for other in languages
        } == {first}


def test_shards_hold_every_pair_once_side_by_side(prepared, tmp_path):
    def pairs(folder):
        sides = (
            data_utils.load_indexed_dataset(f"{folder}/train.en-fr.{name}", None)
            for name in ("en", "fr")
        )
        return [tuple(tuple(ids.tolist()) for ids in pair) for pair in zip(*sides, strict=True)]

    build(prepared, tmp_path / "whole")
    build(prepared, tmp_path / "parts", shards=3)
    folders = list(shard_folders(tmp_path / "parts"))
    assert [folder.name for folder in folders] == ["0", "1", "2"]
    assert sorted(pair for folder in folders for pair in pairs(folder)) == sorted(
        pairs(tmp_path / "whole")
    )
    assert (folders[0] / "valid.en-fr.en.bin").is_file()
    assert not (folders[1] / "valid.en-fr.en.bin").exists()


@pytest.mark.parametrize("shards", [1, 3])
def test_every_shard_knows_the_sources_of_its_pairs(copied, shards):
    sources = {"first": 200, "none": 0, "last": 150}
    (copied / "corpus" / "sources.json").write_text(json.dumps(sources))
    build(copied, copied / "out", shards=shards)
    folders = list(shard_folders(copied / "out"))
    found = [json.loads((folder / "train.en-fr.sources.json").read_text()) for folder in folders]
    numbers = shard_numbers(0, 350, shards)
    assert found == [
        {
            "first": int((numbers[:200] == shard).sum()),
            "none": 0,
            "last": int((numbers[200:] == shard).sum()),
        }
        for shard in range(shards)
    ]
    corpora = [read_corpus(folder, "train", "fr", "en", 10_000) for folder in folders]
    assert [corpus.sources for corpus in corpora] == found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"law": 349}', r"[^\n]*349.*350"),
        ('{"law": -1, "x": 351}', "'law'.* -1"),
        ('{"law": "350"}', "'law'.* '350'"),
        ("[350]", ""),
        ("{", ""),
    ],
)
def test_sources_of_another_text_are_refused(copied, content, message):
    build(copied, copied / "data")
    for path in (copied / "corpus" / "sources.json", copied / "data" / "train.en-fr.sources.json"):
        path.write_text(content)
    with pytest.raises(InputError, match=rf"corpus/sources\.json: {message}"):
        build(copied, copied / "out")
    assert not (copied / "out").exists()
    with pytest.raises(InputError, match=rf"train\.en-fr\.sources\.json: {message}"):
        read_corpus(copied / "data", "train", "en", "fr", 10_000)


def test_shards_are_of_one_size_and_do_not_depend_on_blocks():
    numbers = shard_numbers(0, 30_000, 4)
    assert np.abs(np.bincount(numbers) - 7_500).max() < 100
    parts = [shard_numbers(start, 10_000, 4) for start in (0, 10_000, 20_000)]
    assert np.concatenate(parts).tolist() == numbers.tolist()


@pytest.fixture
def copied(prepared, tmp_path):
    """The corpus and the subwords, to be spoilt."""
    for name in ("corpus", "subwords"):
        shutil.copytree(prepared / name, tmp_path / name)
    return tmp_path


def keep_lines(path, count):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:count]))


@pytest.mark.parametrize("split", SPLITS)
def test_sides_of_different_length_and_empty_ones_are_refused(copied, split):
    keep_lines(copied / "corpus" / f"{split}.fr", 10)
    with pytest.raises(InputError, match=rf"{split}\.en: [\d]+ lines.*{split}\.fr.*\b10\b"):
        build(copied, copied / "out")
    assert not (copied / "out").exists()
    for language in ("en", "fr"):
        keep_lines(copied / "corpus" / f"{split}.{language}", 0)
    if split == "train":
        with pytest.raises(InputError, match=rf"{split}\.en: "):
            build(copied, copied / "out")
    else:
        # The splits valid and test may be empty.
        build(copied, copied / "out")
        assert {path.name.split(".")[0] for path in (copied / "out").glob("*.idx")} == {*SPLITS} - {
            split
        }


@pytest.mark.parametrize("shards", [512, 300])
def test_more_shards_than_pairs_are_refused(prepared, tmp_path, shards):
    with pytest.raises(InputError, match=rf"shards {shards}: .*en-fr.*\b350\b"):
        build(prepared, tmp_path / "out", shards=shards)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    ["subwords/dict.txt", "subwords/sentencepiece.model", "subwords/text.json", "corpus/train.en"],
)
def test_missing_files_are_refused(copied, name):
    (copied / name).unlink()
    with pytest.raises(InputError, match=rf"{name}: "):
        build(copied, copied / "out")
    assert not (copied / "out").exists()


def test_a_dictionary_of_another_model_is_refused(copied):
    """Of an external folder, without a manifest."""
    (copied / "subwords" / "stage.json").unlink()
    dictionary = copied / "subwords" / "dict.txt"
    lines = dictionary.read_text(encoding="utf-8").splitlines()
    dictionary.write_text(
        "".join(f"{line}\n" for line in [*lines[20:], "madeupword0000 0"]), encoding="utf-8"
    )
    # fairseq-preprocess leaves out pieces that its text does not have.
    build(copied, copied / "out")
    dictionary.write_text(
        "".join(f"{line}\n" for line in [*lines, "stranger 1", "other 1"]), encoding="utf-8"
    )
    with pytest.raises(InputError, match=r"dict\.txt: .*\b2\b.*'stranger'.*\.model"):
        build(copied, copied / "out")
    keep_lines(dictionary, 5)
    with pytest.raises(InputError, match=r"\b200\b.*dict"):
        build(copied, copied / "out")
