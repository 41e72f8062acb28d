"""Sources (kinds of text) of a language pair from `lxsr prepare` to an epoch of fairseq-train."""

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
    texts = {"acts": "law", "speech": "speech", "law": "law"}
    data = [
        word
        for file, name in texts.items()
        for word in ("--data", f"{name}={work}/{file}.{{pair}}")
    ]
    out = lxsr_here("prepare", "--work", work, *data, *SMALL, "--workers", 1).stdout
    sources = json.loads((work / "data-bin" / "train.en-fr.sources.json").read_text())
    assert sources["law"] + sources["speech"] == 660
    assert sources["speech"] <= 100
    assert f"law {sources['law']}, speech {sources['speech']}" in out
    assert json.loads((work / "prepare.json").read_text())["en-fr"]["report"]["sources"] == sources
    return work


def trained(prepared, save_dir, **options):
    return train_here(
        prepared / "data-bin",
        save_dir,
        "--no-save",
        "--disable-validation",
        max_update=2,
        **options,
    )


def test_an_epoch_is_drawn_evenly_from_the_sources_on_demand(prepared, tmp_path):
    sources = json.loads((prepared / "data-bin" / "train.en-fr.sources.json").read_text())
    law, speech = sources.values()
    plain = trained(prepared, tmp_path / "plain").stdout
    assert re.findall("source .*", plain) == [
        f"source law, {law} pairs",
        f"source speech, {speech} pairs",
    ]
    even = trained(prepared, tmp_path / "even", source_temperature="inf").stdout
    half = round((law + speech) / 2)
    assert re.findall("source .*", even) == [
        f"source law, {law} pairs, {half} drawn per epoch",
        f"source speech, {speech} pairs, {half} drawn per epoch",
    ]


def test_a_temperature_without_sources_is_refused(prepared, tmp_path):
    data = tmp_path / "work" / "data-bin"
    shutil.copytree(prepared / "data-bin", data)
    (data / "train.en-fr.sources.json").unlink()
    done = trained(tmp_path / "work", tmp_path / "save", source_temperature="2")
    refused(
        done,
        "--source-temperature 2: ",
        data,
        "--data NAME=PREFIX",
    )


def test_further_parts_of_a_split_are_refused(prepared, tmp_path):
    data = tmp_path / "work" / "data-bin"
    shutil.copytree(prepared / "data-bin", data)
    for language in ("en", "fr"):
        for ending in ("idx", "bin"):
            name = f"en-fr.{language}.{ending}"
            shutil.copy(data / f"train.{name}", data / f"train1.{name}")
    refused(trained(tmp_path / "work", tmp_path / "save"), f"{data}/train1.en-fr.en.idx: ")


def test_further_validation_text_is_read_by_name_or_refused(prepared, tmp_path):
    """fairseq-preprocess writes it for `--validpref one,two`."""
    data = tmp_path / "data-bin"
    shutil.copytree(prepared / "data-bin", data)
    for path in data.glob("valid.*.*.*"):
        shutil.copy(path, path.with_name(path.name.replace("valid", "valid1", 1)))

    def train(*flags, **options):
        return train_here(data, tmp_path / "save", "--no-save", *flags, max_update=2, **options)

    refused(train(), "valid1", "--valid-subset valid,valid1")
    refused(train("--combine-val"), f"{data}/valid1.en-fr.en.idx: ")
    done = train(valid_subset="valid,valid1")
    assert "valid on 'valid1'" in done.stdout + done.stderr


def test_the_limits_of_a_batch_are_logged(caplog):
    data = dataset(corpus("en-fr", 100))
    data.set_epoch(1)
    with caplog.at_level("INFO"):
        data.batch_by_size(data.ordered_indices(), max_tokens=512, max_sentences=16)
    assert "16 pairs" in caplog.text
    assert "512 tokens" in caplog.text


@pytest.mark.parametrize(("sizes", "warned"), [((4000, 4), True), ((3000, 1004), False)])
def test_a_small_source_that_makes_batches_small_is_named(caplog, sizes, warned):
    data = dataset(
        corpus("en-fr", 4004, sources=dict(zip("ab", sizes, strict=True))), source_temperature=5.0
    )
    data.set_epoch(1)
    batches = data.batch_by_size(data.ordered_indices(), max_sentences=512)
    assert (len(data.ordered_indices()) / len(batches) < 256) == warned
    assert ("--source-temperature 5" in caplog.text) == warned
