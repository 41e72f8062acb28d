"""Sources (kinds of text) of a language pair, from `lxsr prepare` to the batches of an epoch."""

import json
import re
import shutil

import pytest
import toy
from conftest import lxsr_here, refused, train_here
from pair_batches import corpus, dataset

SMALL = ("--valid-size", 20, "--test-size", 20, "--vocab-size", 200)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A work folder whose text has a large and a small source."""
    work = tmp_path_factory.mktemp("sources")
    pairs = toy.sentences(700)
    toy.write(work / "acts.en-fr", pairs[:200])
    toy.write(work / "law.en-fr", pairs[200:600])
    toy.write(work / "speech.en-fr", pairs[600:])
    data = (
        *("--data", f"law={work}/acts.{{pair}}"),
        *("--data", f"speech={work}/speech.{{pair}}"),
        *("--data", f"law={work}/law.{{pair}}"),
    )
    output = lxsr_here("prepare", "--work", work, *data, *SMALL, "--workers", 1).stdout
    sources = json.loads((work / "data-bin" / "train.en-fr.sources.json").read_text())
    assert sources["law"] + sources["speech"] == 660
    assert sources["speech"] <= 100
    assert f"law {sources['law']}, speech {sources['speech']}" in output
    report = json.loads((work / "prepare.json").read_text())["en-fr"]["report"]
    assert report["sources"] == sources
    return work


def train_without_saving(data, save_dir, **options):
    flags = ("--no-save", "--disable-validation")
    return train_here(data, save_dir, *flags, max_update=2, **options)


@pytest.fixture
def data_copy(prepared, tmp_path):
    return shutil.copytree(prepared / "data-bin", tmp_path / "work" / "data-bin")


def test_a_source_temperature_draws_equally_many_pairs_of_each_source(prepared, tmp_path):
    sources = json.loads((prepared / "data-bin" / "train.en-fr.sources.json").read_text())
    law, speech = sources.values()
    done = train_without_saving(prepared / "data-bin", tmp_path / "save")
    assert re.findall("source .*", done.stdout) == [
        f"source law, {law} pairs",
        f"source speech, {speech} pairs",
    ]
    done = train_without_saving(prepared / "data-bin", tmp_path / "save", source_temperature="inf")
    half = round((law + speech) / 2)
    assert re.findall("source .*", done.stdout) == [
        f"source law, {law} pairs, {half} drawn per epoch",
        f"source speech, {speech} pairs, {half} drawn per epoch",
    ]


def test_a_source_temperature_without_sources_is_refused(data_copy, tmp_path):
    (data_copy / "train.en-fr.sources.json").unlink()
    done = train_without_saving(data_copy, tmp_path / "save", source_temperature="2")
    refused(done, "--source-temperature 2: ", data_copy, "--data NAME=PREFIX")


def test_a_second_part_of_the_training_text_is_refused(data_copy, tmp_path):
    for language in ("en", "fr"):
        for suffix in ("idx", "bin"):
            name = f"en-fr.{language}.{suffix}"
            shutil.copy(data_copy / f"train.{name}", data_copy / f"train1.{name}")
    done = train_without_saving(data_copy, tmp_path / "save")
    refused(done, f"{data_copy}/train1.en-fr.en.idx: ")


def test_a_second_validation_text_must_be_named(data_copy, tmp_path):
    """fairseq-preprocess writes it for `--validpref one,two`."""
    for path in data_copy.glob("valid.*.*.*"):
        shutil.copy(path, path.with_name(path.name.replace("valid", "valid1", 1)))

    def train(*flags, **options):
        flags = ("--no-save", *flags)
        return train_here(data_copy, tmp_path / "save", *flags, max_update=2, **options)

    refused(train(), "valid1", "--valid-subset valid,valid1")
    refused(train("--combine-val"), f"{data_copy}/valid1.en-fr.en.idx: ")
    done = train(valid_subset="valid,valid1")
    assert "valid on 'valid1'" in done.stdout + done.stderr


def test_the_limits_of_a_batch_are_logged(caplog):
    data = dataset(corpus("en-fr", 100))
    data.set_epoch(1)
    with caplog.at_level("INFO"):
        data.batch_by_size(data.ordered_indices(), max_tokens=512, max_sentences=16)
    assert "16 pairs" in caplog.text
    assert "512 tokens" in caplog.text


@pytest.mark.parametrize(
    ("sources", "has_warning"),
    [({"a": 4000, "b": 4}, True), ({"a": 3000, "b": 1004}, False)],
)
def test_a_warning_tells_if_a_small_source_halves_the_size_of_batches(caplog, sources, has_warning):
    data = dataset(corpus("en-fr", 4004, sources=sources), source_temperature=5.0)
    data.set_epoch(1)
    batches = data.batch_by_size(data.ordered_indices(), max_sentences=512)
    mean_size = len(data.ordered_indices()) / len(batches)
    assert (mean_size < 256) == has_warning
    assert ("--source-temperature 5" in caplog.text) == has_warning
