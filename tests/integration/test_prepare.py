"""`lxsr prepare` with files of configuration: kills, interrupts, single stages and wrong input."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import toy
from conftest import ROOT, contents, lxsr_here, refused, train_here, wait_until

from fairseq_lxsr.files.locks import locked_work_folder

pytest.importorskip("yaml")

# Two language pairs, each sentence of which may occur once; en-fr has every pair four times.
CONFIG = """
pairs: {en-fr: text/one, en-de: text/two.tsv}
cleaning: {filters: {length: {longest: 40}}, exclude: [text/eval.en], keep_dropped: true}
subwords: {vocab_size: 200}
valid_size: 50
test_size: 60
shards: 2
"""
SIZES = ("--valid-size", 20, "--test-size", 20, "--vocab-size", 80)


@pytest.fixture
def folders(tmp_path):
    """Two folders with the same text; the first sentences are evaluation text."""
    pairs = toy.sentences(3000)
    rows = [f"{english}\tdas {french}\n" for english, french in pairs]
    evaluation_text = [f"{english}\n" for english, _ in pairs[:20]]
    for name in ("killed", "whole"):
        text = tmp_path / name / "text"
        toy.write(text / "one", pairs * 4)
        (text / "two.tsv").write_text("".join(rows))
        (text / "eval.en").write_text("".join(evaluation_text))
        (tmp_path / name / "config.yaml").write_text(CONFIG)
    return tmp_path


def start(folder, **options):
    """Start `lxsr prepare` in a folder."""
    command = [sys.executable, "-m", "fairseq_lxsr.cli.main", "prepare", "config.yaml"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes, **options
    )


@pytest.mark.slow
def test_a_run_that_is_killed_four_times_ends_with_the_bytes_of_one_that_is_not(folders):
    # A run that is not killed, and its duration.
    start_time = time.monotonic()
    process = start(folders / "whole")
    output, error = process.communicate(timeout=300)
    seconds = time.monotonic() - start_time
    assert process.returncode == 0, error
    shards = "work/data-bin/0:work/data-bin/1"
    assert f"lxsr train {shards} --recipe best --save-dir work/checkpoints\n" in output
    assert f"fairseq-train {shards} --user-dir" in output

    # Four runs that are killed after a part of this time, and one that ends.
    random_numbers = random.Random(3)
    statuses = []
    for _ in range(4):
        process = start(folders / "killed")
        time.sleep(random_numbers.uniform(0.2, 0.9) * seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        statuses.append(process.returncode)
    assert statuses[0] == -signal.SIGKILL
    # Later runs are shorter, since stages are kept, and may end before they are killed.
    assert set(statuses) <= {0, -signal.SIGKILL}
    assert start(folders / "killed").wait(timeout=300) == 0

    # The same files, with a report of what was left out.
    files = contents(folders / "killed" / "work")
    assert files == contents(folders / "whole" / "work")
    folders_of_files = {name.split("/")[0] for name in files}
    assert folders_of_files == {"cleaned", "corpus", "subwords", "data-bin", "prepare.json"}
    summary = json.loads(files["prepare.json"])
    corpora = {"en-fr", "en-de", "cleaned en-fr", "cleaned en-de"}
    assert set(summary) == corpora | {"subwords", "data-bin"}
    # Of four times 3,000 pairs, at least 6,000 are repeated, and four times 20 are evaluation text.
    assert summary["en-fr"]["report"]["dropped"]["repeated"] > 5_000
    assert summary["en-fr"]["report"]["dropped"]["excluded"] == 80


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["corpus/.en-fr.*.tmp/parts/0", ".subwords.*.tmp"])
def test_an_interrupt_ends_with_one_line_and_no_temporary_files(tmp_path, stage):
    """Ctrl-C goes to all processes of a terminal, also while SentencePiece trains, which ignores
    signals.
    """
    random_numbers = random.Random(1)
    words = ["".join(random_numbers.choices("abcdefghijklmnop", k=8)) for _ in range(30_000)]
    lines = [" ".join(random_numbers.choices(words, k=9)) for _ in range(60_000)]
    for language in ("en", "fr"):
        text = "".join(f"{language} {line}\n" for line in lines)
        (tmp_path / f"text.{language}").write_text(text)
    (tmp_path / "config.yaml").write_text("pairs: {en-fr: text}\nsubwords: {vocab_size: 15000}\n")
    process = start(tmp_path, start_new_session=True)
    wait_until(lambda: list((tmp_path / "work").glob(stage)), process, seconds=100)
    # SentencePiece needs about a second.
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=100)
    assert process.returncode == 130, error
    (message,) = [line for line in error.replace("\r", "\n").splitlines() if line.strip()]
    assert message.startswith("lxsr: interrupted")
    for path in (tmp_path / "work").rglob("*"):
        assert ".tmp" not in path.name
    assert not (tmp_path / "work" / "subwords").exists()


def test_a_corpus_without_text_is_named(tmp_path):
    corpus = tmp_path / "work" / "corpus" / "en-fr"
    corpus.mkdir(parents=True)
    for language in ("en", "fr"):
        (corpus / f"train.{language}").write_text(" \n" * 9)

    result = lxsr_here("prepare", "--work", tmp_path / "work", check=False)

    refused(result, f"{corpus}/train.en, {corpus}/train.fr: ")
    assert not (tmp_path / "work" / "subwords").exists()


def test_stages_may_run_one_by_one_and_finished_ones_are_kept(tmp_path):
    toy.write(tmp_path / "text", toy.sentences(400))
    work = tmp_path / "work"
    command = ("prepare", "--data", tmp_path / "text", "--work", work, *SIZES)
    # Options, number of stages that are finished before, and what the work folder has afterwards.
    runs = [
        (("--until", "clean"), 0, {"corpus"}),
        (("--until", "subwords"), 1, {"corpus", "subwords"}),
        ((), 2, {"corpus", "subwords", "data-bin", "prepare.json"}),
    ]

    for until, kept_stages, names in runs:
        output = lxsr_here(*command, *until).stdout
        assert output.count("unchanged, kept") == kept_stages
        assert {path.name for path in work.iterdir()} == names


@pytest.fixture
def work(tmp_path):
    """The work folder of a finished run on 400 pairs."""
    toy.write(tmp_path / "text", toy.sentences(400))
    lxsr_here("prepare", "--data", tmp_path / "text", *SIZES, "--work", tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def external(work):
    """A work folder with the corpus and the subwords of that run, without their manifests."""
    folder = work.with_name("external")
    for name in ("corpus/en-fr", "subwords"):
        shutil.copytree(work / name, folder / name, ignore=shutil.ignore_patterns("stage.json"))
    return folder


def test_folders_of_stages_without_a_manifest_are_external_and_used(work, external):
    output = lxsr_here("prepare", *SIZES, "--work", external).stdout

    assert output.count(": external") == 2
    # Of 400 pairs, 20 each are for validation and the test.
    assert "360 training pairs" in output
    data = contents(work / "data-bin")
    data_of_external = contents(external / "data-bin")
    # The manifest has checksums of the stages before.
    assert data.pop("stage.json") != data_of_external.pop("stage.json")
    assert data == data_of_external


def test_an_external_folder_is_not_replaced_by_other_text(work, external, tmp_path):
    command = ("prepare", "--data", tmp_path / "text", *SIZES, "--work", external)

    result = lxsr_here(*command, check=False)

    refused(result, f"{external / 'corpus' / 'en-fr'} ", "stage.json")


@pytest.mark.parametrize("verb", ["prepare", "run"])
def test_a_work_folder_in_use_is_refused_and_not_changed(tmp_path, verb):
    toy.write(tmp_path / "text", toy.sentences(40))
    work = tmp_path / "work"
    text = [tmp_path / "text"] if verb == "run" else ["--data", tmp_path / "text"]

    # This process is named as the one that uses it.
    with locked_work_folder(work):
        result = lxsr_here(verb, *text, "--work", work, check=False)
        refused(result, f"{work}: ", os.getpid())
        assert [path.name for path in work.iterdir()] == ["lock"]


@pytest.fixture
def prepared_without_held_out_text(tmp_path):
    """The data folder of 200 training pairs and no others, and what `lxsr prepare` has printed."""
    toy.write(tmp_path / "text", toy.sentences(200))
    command = ["prepare", "--data", tmp_path / "text", "--work", tmp_path / "work"]
    command += ["--valid-size", 0, "--test-size", 0, "--vocab-size", 80, "--workers", 1]
    output = lxsr_here(*command).stdout
    return tmp_path / "work" / "data-bin", output


def test_without_held_out_text_the_commands_to_train_are_without_validation(
    prepared_without_held_out_text,
):
    _, output = prepared_without_held_out_text

    assert "\n200 training pairs, " in output
    # Those of lxsr and of fairseq-train.
    lxsr_train, fairseq_train, *_ = output.partition("\nto train: ")[2].splitlines()
    assert " --disable-validation " in lxsr_train
    assert " --disable-validation" in fairseq_train


def test_without_held_out_text_training_with_validation_is_refused_before_it_begins(
    prepared_without_held_out_text, tmp_path
):
    data, _ = prepared_without_held_out_text
    save_dir = tmp_path / "save"

    result = train_here(data, save_dir)

    refused(result, f"{data}: ", "valid.en-fr", "--valid-size N", "--disable-validation")
    assert not list(save_dir.iterdir())


def test_without_held_out_text_training_without_validation_succeeds(
    prepared_without_held_out_text, tmp_path
):
    data, _ = prepared_without_held_out_text
    flags = ("--disable-validation", "--no-epoch-checkpoints")

    result = train_here(data, tmp_path / "save", *flags, max_epoch="1")

    assert result.returncode == 0


@pytest.mark.parametrize(
    ("config", "options", "fragments"),
    [
        (
            "cleaning: {filters: {lenght: {}}}",
            "c.yaml",
            ("filter 'lenght'",),
        ),
        ("pairs: {en-fr: text, en-de: none}", "c.yaml", ("none.en: ",)),
        ("", "c.yaml --exclude x", ("--exclude", "c.yaml")),
        ("", "c.yaml --seed 1", ("--seed", "c.yaml")),
        ("", "--data text --exclude none.txt", ("none.txt: ",)),
        (
            "",
            "--data law=text --data text",
            ("--data text ", "NAME=PREFIX"),
        ),
        ("", "--data law=text --data a/b=text", ("--data a/b=text ",)),
        (
            "",
            "--data law=text --data speech=",
            ("en-fr speech", "''"),
        ),
        ("", "--data law=text --data speech=none", ("none.en: ",)),
        (
            "",
            "--lang-pairs en-fr,en-de --data law={pair} --data x=text",
            ("--data x=text ", "{pair}"),
        ),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(tmp_path, config, options, fragments):
    toy.write(tmp_path / "text", toy.sentences(300))
    pairs = "" if "pairs" in config else "pairs: {en-fr: text}\n"
    (tmp_path / "c.yaml").write_text(f"{pairs}work: work\n{config}\n")
    work = () if "c.yaml" in options else ("--work", "work")

    result = lxsr_here("prepare", *work, *options.split(), check=False, folder=tmp_path)

    refused(result, *fragments)
    assert not (tmp_path / "work").exists()


def test_corpora_are_listed_by_language_pair():
    names = lxsr_here("corpus", "list", "--lang-pair", "fr-de").stdout

    assert "Europarl-v8" in names
    # It has only pairs with English.
    assert "ParaCrawl" not in names


def test_a_corpus_is_shown_with_its_licence():
    description = lxsr_here("corpus", "show", "ParaCrawl-v5").stdout

    assert "ParaCrawl-v5" in description
    assert "CC0" in description


def test_an_unknown_corpus_is_refused():
    result = lxsr_here("corpus", "get", "nope", "--lang-pair", "en-fr", check=False)

    refused(result, "'nope'")


def test_sentences_held_out_by_an_external_corpus_are_not_trained_on_in_another_pair(tmp_path):
    """The text of en-de has the English sentences of the corpus of en-fr."""
    pairs = toy.sentences(400)
    corpus = tmp_path / "work" / "corpus" / "en-fr"
    corpus.mkdir(parents=True)
    toy.write(corpus / "train", pairs[:300])
    toy.write(corpus / "valid", pairs[300:350])
    toy.write(corpus / "test", pairs[350:])
    toy.write(tmp_path / "text", pairs, ("en", "de"))
    config = f"pairs: {{en-fr: null, en-de: {tmp_path / 'text'}}}\nwork: {tmp_path / 'work'}\n"
    (tmp_path / "c.yaml").write_text(config)

    output = lxsr_here("prepare", tmp_path / "c.yaml", "--until", "clean").stdout

    assert f"{corpus}: external" in output
    text = (corpus.parent / "en-de" / "train.en").read_text().lower()
    training_sentences = set(text.splitlines())
    held_out = {english.lower() for english, _ in pairs[300:]}
    assert len(training_sentences) > 200
    assert not held_out & training_sentences
