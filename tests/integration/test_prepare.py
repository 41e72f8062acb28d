"""`lxsr prepare CONFIG.yaml` as a user runs it: killed at any moment, again with another text, and
what it leaves.
"""

import json
import os
import random
import re
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

CONFIG = """
pairs: {en-fr: text/one, en-de: text/two.tsv}
cleaning: {filters: {length: {longest: 40}}, exclude: [text/eval.en], keep_dropped: true}
subwords: {vocab_size: 200}
valid_size: 50
test_size: 60
shards: 2
"""


@pytest.fixture
def folders(tmp_path):
    """Two folders with the same text; the first sentences are evaluation text."""
    pairs = toy.sentences(3000)
    for name in ("killed", "whole"):
        toy.write(tmp_path / name / "text" / "one", pairs * 4)
        (tmp_path / name / "text" / "two.tsv").write_text(
            "".join(f"{en}\tdas {fr}\n" for en, fr in pairs)
        )
        (tmp_path / name / "text" / "eval.en").write_text(
            "".join(f"{en}\n" for en, _ in pairs[:20])
        )
        (tmp_path / name / "config.yaml").write_text(CONFIG)
    return tmp_path


def start(folder, **options):
    command = [sys.executable, "-m", "fairseq_lxsr.cli.main", "prepare", "config.yaml"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes, **options
    )


@pytest.mark.slow
def test_killed_at_any_moment_the_same_bytes(folders):
    begin = time.monotonic()
    whole = start(folders / "whole")
    out, error = whole.communicate(timeout=300)
    seconds = time.monotonic() - begin
    assert whole.returncode == 0, error
    assert (
        "lxsr train work/data-bin/0:work/data-bin/1 --recipe best --save-dir work/checkpoints\n"
        in out
    )
    assert "fairseq-train work/data-bin/0:work/data-bin/1 --user-dir" in out
    dice, ends = random.Random(3), []
    for _ in range(4):
        process = start(folders / "killed")
        time.sleep(dice.uniform(0.2, 0.9) * seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        ends.append(process.returncode)
    assert ends[0] == -signal.SIGKILL
    assert set(ends) <= {0, -signal.SIGKILL}  # what is kept makes the others shorter
    last = start(folders / "killed")
    assert last.wait(timeout=300) == 0
    found = contents(folders / "killed" / "work")
    assert found == contents(folders / "whole" / "work")
    assert {name.split("/")[0] for name in found} == {
        "cleaned",
        "corpus",
        "subwords",
        "data-bin",
        "prepare.json",
    }
    summary = json.loads(found["prepare.json"])
    assert set(summary) == {
        "en-fr",
        "en-de",
        "cleaned en-fr",
        "cleaned en-de",
        "subwords",
        "data-bin",
    }
    assert summary["en-fr"]["report"]["dropped"]["repeated"] > 5_000
    assert summary["en-fr"]["report"]["dropped"]["excluded"] == 80


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["corpus/.en-fr.*.tmp/parts/0", ".subwords.*.tmp"])
def test_an_interrupt_ends_it_in_one_line(tmp_path, stage):
    """Ctrl-C goes to all processes of a terminal, also while SentencePiece trains, which does not
    look at signals.
    """
    letters = random.Random(1)
    words = ["".join(letters.choices("abcdefghijklmnop", k=8)) for _ in range(30_000)]
    lines = [" ".join(letters.choices(words, k=9)) for _ in range(60_000)]
    for language in ("en", "fr"):
        (tmp_path / f"text.{language}").write_text(
            "".join(f"{language} {line}\n" for line in lines)
        )
    (tmp_path / "config.yaml").write_text("pairs: {en-fr: text}\nsubwords: {vocab_size: 15000}\n")
    process = start(tmp_path, start_new_session=True)
    wait_until(lambda: list((tmp_path / "work").glob(stage)), process, seconds=100)
    time.sleep(0.3)  # SentencePiece needs about a second
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=100)
    assert process.returncode == 130, error
    (line,) = [line for line in error.replace("\r", "\n").splitlines() if line.strip()]
    assert line.startswith("lxsr: interrupted")
    assert not [path for path in (tmp_path / "work").rglob("*") if ".tmp" in path.name]
    assert not (tmp_path / "work" / "subwords").exists()


def test_a_corpus_without_text_is_named(tmp_path):
    corpus = tmp_path / "work" / "corpus" / "en-fr"
    corpus.mkdir(parents=True)
    for language in ("en", "fr"):
        (corpus / f"train.{language}").write_text(" \n" * 9)
    done = lxsr_here("prepare", "--work", tmp_path / "work", check=False)
    refused(done, f"{corpus}/train.en, {corpus}/train.fr: ")
    assert not (tmp_path / "work" / "subwords").exists()


def test_stages_one_by_one_and_what_was_made_elsewhere(tmp_path):
    toy.write(tmp_path / "text", toy.sentences(400))
    work, other = tmp_path / "work", tmp_path / "other"
    sizes = ("--valid-size", 20, "--test-size", 20, "--vocab-size", 80)
    command = ("prepare", "--data", tmp_path / "text", *sizes, "--work", work)
    made = []
    for until in (("--until", "clean"), ("--until", "subwords"), ()):
        out = lxsr_here(*command, *until).stdout
        assert out.count("unchanged, kept") == len(made)
        made.append({path.name for path in work.iterdir()})
    assert made == [
        {"corpus"},
        {"corpus", "subwords"},
        {"corpus", "subwords", "data-bin", "prepare.json"},
    ]
    for name in ("corpus/en-fr", "subwords"):
        shutil.copytree(work / name, other / name, ignore=shutil.ignore_patterns("stage.json"))
    out = lxsr_here("prepare", *sizes, "--work", other).stdout
    assert out.count("external") == 2
    assert "360 training pairs" in out
    ours, theirs = contents(work / "data-bin"), contents(other / "data-bin")
    assert ours.pop("stage.json") != theirs.pop("stage.json")
    assert ours == theirs
    given = lxsr_here(*command[:-1], other, check=False)
    refused(given, f"{other / 'corpus' / 'en-fr'} ", "stage.json")


@pytest.mark.parametrize("verb", ["prepare", "run"])
def test_a_work_folder_in_use_is_refused_and_stays_as_it_is(tmp_path, verb):
    toy.write(tmp_path / "text", toy.sentences(40))
    work = tmp_path / "work"
    text = [tmp_path / "text"] if verb == "run" else ["--data", tmp_path / "text"]
    with locked_work_folder(work):
        done = lxsr_here(verb, *text, "--work", work, check=False)
        refused(done, f"{work}: ", os.getpid())
        assert [path.name for path in work.iterdir()] == ["lock"]


def test_nothing_is_held_out_for_training_without_validation(tmp_path):
    toy.write(tmp_path / "text", toy.sentences(200))
    sizes = ("--valid-size", 0, "--test-size", 0, "--vocab-size", 80)
    said = lxsr_here(
        "prepare", "--data", tmp_path / "text", "--work", tmp_path / "work", *sizes, "--workers", 1
    ).stdout
    assert re.search(
        r"\n200 training pairs, .*\nto train: .* --disable-validation .*\n.* --disable-validation",
        said,
    )
    data = tmp_path / "work" / "data-bin"
    done = train_here(data, tmp_path / "save")
    refused(
        done,
        f"{data}: ",
        "valid.en-fr",
        "--valid-size N",
        "--disable-validation",
    )
    assert not list((tmp_path / "save").iterdir())  # it ends before the model is made
    done = train_here(
        data, tmp_path / "save", "--disable-validation", "--no-epoch-checkpoints", max_epoch="1"
    )
    assert done.returncode == 0


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
def test_mistakes_are_found_before_anything_is_written(tmp_path, config, options, fragments):
    toy.write(tmp_path / "text", toy.sentences(300))
    pairs = "" if "pairs" in config else "pairs: {en-fr: text}\n"
    (tmp_path / "c.yaml").write_text(f"{pairs}work: work\n{config}\n")
    work = () if "c.yaml" in options else ("--work", "work")
    refused(lxsr_here("prepare", *work, *options.split(), check=False, folder=tmp_path), *fragments)
    assert not (tmp_path / "work").exists()


def test_corpora_are_listed_and_shown():
    listed = lxsr_here("corpus", "list", "--lang-pair", "fr-de").stdout
    assert "Europarl-v8" in listed
    assert "ParaCrawl" not in listed
    shown = lxsr_here("corpus", "show", "ParaCrawl-v5").stdout
    assert "ParaCrawl-v5" in shown
    assert "CC0" in shown
    refused(
        lxsr_here("corpus", "get", "nope", "--lang-pair", "en-fr", check=False),
        "'nope'",
    )


def test_what_a_corpus_made_elsewhere_holds_out_trains_no_other_pair(tmp_path):
    pytest.importorskip("yaml")
    pairs, corpus = toy.sentences(400), tmp_path / "work" / "corpus" / "en-fr"
    corpus.mkdir(parents=True)
    for split, start, stop in (("train", 0, 300), ("valid", 300, 350), ("test", 350, 400)):
        toy.write(corpus / split, pairs[start:stop])
    toy.write(tmp_path / "text", pairs, ("en", "de"))
    config = f"pairs: {{en-fr: null, en-de: {tmp_path / 'text'}}}\nwork: {tmp_path / 'work'}\n"
    (tmp_path / "c.yaml").write_text(config)
    out = lxsr_here("prepare", tmp_path / "c.yaml", "--until", "clean").stdout
    assert f"{corpus}: external" in out
    trained = set((corpus.parent / "en-de" / "train.en").read_text().splitlines())
    held_out = {pair[0].lower() for pair in pairs[300:]}
    assert len(trained) > 200
    assert not held_out & {line.lower() for line in trained}
