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
def prepare_output(tmp_path_factory):
    """A work folder whose text has a large and a small source, and the output of preparing it.

    600 pairs are law, in two files, and 100 are speech. 20 pairs each are for validation and tests.
    """
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
    return work, output


@pytest.fixture(scope="module")
def data(prepare_output):
    work, _ = prepare_output
    return work / "data-bin"


def read_counts(data):
    """The number of training pairs of each source."""
    return json.loads((data / "train.en-fr.sources.json").read_text())


def test_preparing_counts_and_reports_the_training_pairs_of_each_source(prepare_output):
    work, output = prepare_output
    counts = read_counts(work / "data-bin")
    assert list(counts) == ["law", "speech"]
    assert counts["law"] + counts["speech"] == 700 - 20 - 20
    assert counts["speech"] <= 100
    assert f"law {counts['law']}, speech {counts['speech']}" in output
    report = json.loads((work / "prepare.json").read_text())["en-fr"]["report"]
    assert report["sources"] == counts


def train_without_saving(data, save_dir, **options):
    flags = ("--no-save", "--disable-validation")
    return train_here(data, save_dir, *flags, max_update=2, **options)


@pytest.fixture
def data_copy(data, tmp_path):
    return shutil.copytree(data, tmp_path / "work" / "data-bin")


def test_training_logs_the_number_of_pairs_of_each_source(data, tmp_path):
    counts = read_counts(data)
    done = train_without_saving(data, tmp_path / "save")
    assert re.findall("source .*", done.stdout) == [
        f"source law, {counts['law']} pairs",
        f"source speech, {counts['speech']} pairs",
    ]


def test_an_infinite_source_temperature_draws_equally_many_pairs_of_each_source(data, tmp_path):
    counts = read_counts(data)
    done = train_without_saving(data, tmp_path / "save", source_temperature="inf")
    half = round((counts["law"] + counts["speech"]) / 2)
    assert re.findall("source .*", done.stdout) == [
        f"source law, {counts['law']} pairs, {half} drawn per epoch",
        f"source speech, {counts['speech']} pairs, {half} drawn per epoch",
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


@pytest.fixture
def data_with_two_validation_texts(data_copy):
    """As fairseq-preprocess writes it for `--validpref one,two`."""
    for path in data_copy.glob("valid.*.*.*"):
        shutil.copy(path, path.with_name(path.name.replace("valid", "valid1", 1)))
    return data_copy


def train_with_validation(data, save_dir, *flags, **options):
    return train_here(data, save_dir, "--no-save", *flags, max_update=2, **options)


def test_a_second_validation_text_must_be_named(data_with_two_validation_texts, tmp_path):
    done = train_with_validation(data_with_two_validation_texts, tmp_path / "save")
    refused(done, "valid1", "--valid-subset valid,valid1")


def test_a_second_validation_text_that_is_named_is_used(data_with_two_validation_texts, tmp_path):
    subsets = {"valid_subset": "valid,valid1"}
    done = train_with_validation(data_with_two_validation_texts, tmp_path / "save", **subsets)
    assert "valid on 'valid1'" in done.stdout + done.stderr


def test_validation_texts_cannot_be_combined(data_with_two_validation_texts, tmp_path):
    data = data_with_two_validation_texts
    done = train_with_validation(data, tmp_path / "save", "--combine-val")
    refused(done, f"{data}/valid1.en-fr.en.idx: ")


def test_the_limits_of_a_batch_are_logged(caplog):
    data = dataset(corpus("en-fr", 100))
    data.set_epoch(1)
    with caplog.at_level("INFO"):
        data.batch_by_size(data.ordered_indices(), max_tokens=512, max_sentences=16)
    assert "16 pairs" in caplog.text
    assert "512 tokens" in caplog.text


@pytest.mark.parametrize(
    ("sources", "is_half"),
    [
        # At this temperature, the four pairs are drawn about 800 times, each in another batch.
        ({"a": 4000, "b": 4}, True),
        ({"a": 3000, "b": 1004}, False),
    ],
    ids=["four pairs", "many pairs"],
)
def test_a_warning_tells_if_a_small_source_halves_the_size_of_batches(caplog, sources, is_half):
    data = dataset(corpus("en-fr", 4004, sources=sources), source_temperature=5.0)
    data.set_epoch(1)

    batches = data.batch_by_size(data.ordered_indices(), max_sentences=512)

    mean_size = len(data.ordered_indices()) / len(batches)
    assert (mean_size < 512 / 2) == is_half
    assert ("--source-temperature 5" in caplog.text) == is_half
