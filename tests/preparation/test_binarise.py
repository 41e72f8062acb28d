"""`binarise` writes the same bytes as fairseq-preprocess, with any number of processes and shards."""

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
    """Binarise the corpus; return the content of each .bin and .idx file by its name."""
    binarise(folder, {("en", "fr"): prepared / "corpus"}, prepared / "subwords", **options)
    files = {}
    for name, content in contents(folder).items():
        if name.endswith((".bin", ".idx")):
            files[name] = content
    return files


def test_an_empty_test_split_has_no_files(prepared, tmp_path):
    source = find_source(str(prepared / "text"), "en", "fr")
    report = make_corpus(tmp_path / "corpus", ("en", "fr"), source, held_out=HeldOut(20, 0))
    assert report["pairs"] == {"train": 380, "valid": 20, "test": 0}

    binarise(tmp_path / "data", {("en", "fr"): tmp_path / "corpus"}, prepared / "subwords")

    splits = {path.name.split(".")[0] for path in (tmp_path / "data").glob("*.bin")}
    assert splits == {"train", "valid"}


def test_files_have_the_same_bytes_as_those_of_fairseq_preprocess(prepared, tmp_path):
    subwords = prepared / "subwords"
    text_options = TextOptions.load(subwords / "text.json")
    tokenizer = Tokenizer(subwords / "sentencepiece.model", text_options)
    for path in (prepared / "corpus").glob("*.??"):
        lines = path.read_text(encoding="utf-8").splitlines()
        with open(tmp_path / path.name, "w", encoding="utf-8") as stream:
            for pieces in tokenizer.pieces(lines):
                stream.write(" ".join(pieces) + "\n")
    options = ["--source-lang", "en", "--target-lang", "fr"]
    for split in SPLITS:
        options += [f"--{split}pref", tmp_path / split]
    options += ["--srcdict", subwords / "dict.txt", "--joined-dictionary"]
    options += ["--destdir", tmp_path / "fairseq"]
    run("fairseq_cli.preprocess", *options, preloaded=FAIRSEQ)

    files = build(prepared, tmp_path / "data")

    assert len(files) == 12
    for name in (*files, "dict.en.txt"):
        content = (tmp_path / "data" / name).read_bytes()
        assert content == (tmp_path / "fairseq" / name).read_bytes(), name


@pytest.mark.parametrize("shards", [1, 3])
def test_the_output_is_the_same_for_any_number_of_processes_and_size_of_blocks(
    prepared, tmp_path, monkeypatch, shards
):
    whole = build(prepared, tmp_path / "whole", workers=1, shards=shards)
    monkeypatch.setattr("fairseq_lxsr.preparation.binarise.in_blocks", partial(in_blocks, size=50))
    monkeypatch.setattr("fairseq_lxsr.preparation.binarise.SMALL_TEXT", 0)
    in_blocks_of_50 = build(prepared, tmp_path / "blocks", workers=2, shards=shards)
    assert in_blocks_of_50 == whole


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_four_language_pairs_start_as_many_processes_as_one(
    prepared, tmp_path, monkeypatch, workers
):
    """Each call of `ordered_map` starts processes. The tokenizer, too, is loaded once."""
    counts = Counter()

    def count_calls_of(name, function):
        def call(*arguments):
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(f"fairseq_lxsr.preparation.binarise.{name}", call)

    count_calls_of("_load_tokenizer", _load_tokenizer)
    count_calls_of("ordered_map", ordered_map)
    monkeypatch.setattr("fairseq_lxsr.preparation.binarise.SMALL_TEXT", 0)
    build(prepared, tmp_path / "one", workers=workers)
    calls_for_one_pair = dict(counts)
    counts.clear()
    # The same corpus as four pairs of languages.
    languages = ("de", "es", "it", "pt")
    for language in languages:
        shutil.copytree(prepared / "corpus", tmp_path / language)
        for path in (tmp_path / language).glob("*.fr"):
            path.rename(path.with_suffix(f".{language}"))
    corpora = {("en", language): tmp_path / language for language in languages}
    binarise(tmp_path / "many", corpora, prepared / "subwords", workers=workers)
    assert counts == calls_for_one_pair
    for split in SPLITS:
        french = (tmp_path / "one" / f"{split}.en-fr.fr.bin").read_bytes()
        for language in languages:
            path = tmp_path / "many" / f"{split}.en-{language}.{language}.bin"
            assert path.read_bytes() == french, path.name


def read_training_pairs(folder):
    english = data_utils.load_indexed_dataset(f"{folder}/train.en-fr.en", None)
    french = data_utils.load_indexed_dataset(f"{folder}/train.en-fr.fr", None)
    pairs = []
    for source, target in zip(english, french, strict=True):
        pairs.append((source.tolist(), target.tolist()))
    return pairs


def test_each_training_pair_is_in_one_shard(prepared, tmp_path):
    build(prepared, tmp_path / "whole")
    build(prepared, tmp_path / "parts", shards=3)

    folders = list(shard_folders(tmp_path / "parts"))

    assert [folder.name for folder in folders] == ["0", "1", "2"]
    pairs = []
    for folder in folders:
        pairs += read_training_pairs(folder)
    assert sorted(pairs) == sorted(read_training_pairs(tmp_path / "whole"))
    assert (folders[0] / "valid.en-fr.en.bin").is_file()
    assert not (folders[1] / "valid.en-fr.en.bin").exists()


@pytest.mark.parametrize("shards", [1, 3])
def test_each_shard_has_the_numbers_of_pairs_by_source(copied, shards):
    sources = {"first": 200, "none": 0, "last": 150}
    (copied / "corpus" / "sources.json").write_text(json.dumps(sources))

    build(copied, copied / "out", shards=shards)

    shard_of_pair = shard_numbers(0, 350, shards)
    folders = list(shard_folders(copied / "out"))
    assert len(folders) == shards
    for shard, folder in enumerate(folders):
        expected = {
            "first": int((shard_of_pair[:200] == shard).sum()),
            "none": 0,
            "last": int((shard_of_pair[200:] == shard).sum()),
        }
        assert json.loads((folder / "train.en-fr.sources.json").read_text()) == expected
        assert read_corpus(folder, "train", "fr", "en", 10_000).sources == expected


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
def test_numbers_by_source_that_do_not_fit_the_text_are_refused(copied, content, message):
    build(copied, copied / "data")
    for path in (copied / "corpus" / "sources.json", copied / "data" / "train.en-fr.sources.json"):
        path.write_text(content)
    with pytest.raises(InputError, match=rf"corpus/sources\.json: {message}"):
        build(copied, copied / "out")
    assert not (copied / "out").exists()
    with pytest.raises(InputError, match=rf"train\.en-fr\.sources\.json: {message}"):
        read_corpus(copied / "data", "train", "en", "fr", 10_000)


def test_shards_have_about_the_same_size_and_do_not_depend_on_blocks():
    numbers = shard_numbers(0, 30_000, 4)
    assert np.abs(np.bincount(numbers) - 7_500).max() < 100
    parts = [shard_numbers(start, 10_000, 4) for start in (0, 10_000, 20_000)]
    assert np.concatenate(parts).tolist() == numbers.tolist()


@pytest.fixture
def copied(prepared, tmp_path):
    """A copy of the corpus and the subwords, which a test may damage."""
    for name in ("corpus", "subwords"):
        shutil.copytree(prepared / name, tmp_path / name)
    return tmp_path


def keep_lines(path, count):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:count]))


@pytest.mark.parametrize("split", SPLITS)
def test_sides_of_different_lengths_and_an_empty_training_text_are_refused(copied, split):
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
        written_splits = {path.name.split(".")[0] for path in (copied / "out").glob("*.idx")}
        assert written_splits == {*SPLITS} - {split}


@pytest.mark.parametrize("shards", [512, 300])
def test_more_shards_than_pairs_are_refused(prepared, tmp_path, shards):
    with pytest.raises(InputError, match=rf"shards {shards}: .*en-fr.*\b350\b"):
        build(prepared, tmp_path / "out", shards=shards)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    ["subwords/dict.txt", "subwords/sentencepiece.model", "subwords/text.json", "corpus/train.en"],
)
def test_a_missing_file_is_named(copied, name):
    (copied / name).unlink()
    with pytest.raises(InputError, match=rf"{name}: "):
        build(copied, copied / "out")
    assert not (copied / "out").exists()


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_a_dictionary_of_another_model_is_refused(copied):
    """Folders that `lxsr prepare` did not write have no manifest that would show it."""
    (copied / "subwords" / "stage.json").unlink()
    dictionary = copied / "subwords" / "dict.txt"
    lines = dictionary.read_text(encoding="utf-8").splitlines()

    # fairseq-preprocess leaves out pieces that its text does not have.
    write_lines(dictionary, [*lines[20:], "madeupword0000 0"])
    build(copied, copied / "out")

    write_lines(dictionary, [*lines, "stranger 1", "other 1"])
    with pytest.raises(InputError, match=r"dict\.txt: .*\b2\b.*'stranger'.*\.model"):
        build(copied, copied / "out")

    keep_lines(dictionary, 5)
    with pytest.raises(InputError, match=r"\b200\b.*dict"):
        build(copied, copied / "out")
