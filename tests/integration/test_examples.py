"""The examples run as written, on a small text."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import toy
import yaml
from conftest import ROOT, checked, forked_environment, load_script, main_here, refused

from fairseq_lxsr.evaluation.score import read_scores
from fairseq_lxsr.evaluation.tables import CAUTION
from fairseq_lxsr.files.open import sha256


def run_example(folder, name: str, *arguments, **variables) -> str:
    """Run a copy in `folder`. Next to the original, there may be a .venv, whose commands would be
    used instead of the forked ones.
    """
    for part in ("examples", "preprocess"):
        shutil.copytree(ROOT / part, folder / "root" / part)
    command = ["bash", folder / "root" / "examples" / name / "run.sh", *map(str, arguments)]
    environment = forked_environment(**{key: str(value) for key, value in variables.items()})
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    return checked(result).stdout


def train_commands(output: str) -> list[str]:
    """Return the commands that `lxsr train` has printed."""
    commands = []
    for line in output.splitlines():
        if line.startswith("fairseq-train ") and " --arch " in line:
            commands.append(line)
    return commands


def assert_options(output: str, options: str) -> None:
    """Check that the only command of `lxsr train` has all options of a list with commas."""
    [command] = train_commands(output)
    for option in options.split(", --"):
        assert f" --{option.removeprefix('--')} " in f"{command} ", option


# The number of updates after which a recipe finds translations.
@pytest.mark.smoke
@pytest.mark.parametrize(("recipe", "updates"), [("best", 8), ("paper", 30)])
def test_quickstart_trains_and_evaluates_a_model_of_the_text_of_the_user(tmp_path, recipe, updates):
    toy.write(tmp_path / "text", toy.sentences(1200), ("en", "xx"))
    work = tmp_path / "work"
    variables = {
        "DATA": tmp_path / "text",
        "SRC": "en",
        "TGT": "xx",
        "WORK": work,
        "RECIPE": recipe,
        "UPDATES": updates,
        "VOCAB": 200,
        "HELD_OUT": 100,
    }

    output = run_example(tmp_path, "quickstart", **variables)

    untrained = read_scores(work / "untrained.jsonl")
    trained = read_scores(work / "trained.jsonl")
    # Two directions by each of three metrics.
    assert [score.task for score in trained] == ["en->xx", "xx->en"] * 3
    for before, after in zip(untrained, trained, strict=True):
        assert after.values["P@1"] > before.values["P@1"] + 30
    # The other outputs: held-out text, the log, embeddings and the report.
    assert "100 test" in output
    log = (work / "checkpoints" / "train.log").read_text()
    assert "| valid on 'valid' subset | loss " in log
    assert (work / "test.xx.npy").exists()
    assert "xx-&gt;en" in (work / "report.html").read_text()


def test_quickstart_refuses_a_folder_with_checkpoints(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    program = ["env", f"WORK={tmp_path}", "bash", ROOT / "examples" / "quickstart" / "run.sh"]
    refused(subprocess.run(program, capture_output=True, text=True), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


# A source of a table: a file acts.en-fr with three pairs.
ACTS = {"name": "acts", "files": "acts.{pair}", "pairs": {"en-fr": 3}, "kind": "law"}


@pytest.mark.smoke
def test_pretrained_collects_trains_and_describes_a_model_in_its_smoke_mode(tmp_path):
    """One source is the lines of a file with a tag, another is a whole file."""
    data = tmp_path / "data"
    pairs = toy.sentences(900)
    english = [source for source, _ in pairs]
    french = [target for _, target in pairs]
    for pair, language in (("en-fr", "fr"), ("en-de", "de")):
        toy.pack(data / "train" / f"tech.{pair}.en", english)
        toy.pack(data / "train" / f"tech.{pair}.{language}", french)
        toy.pack(data / "train" / f"tech.{pair}.source", ["a", "b", "a"] * 300)
    for language, code, lines in (("en", "eng", english), ("fr", "fra", french)):
        law = [f"{line} {line}" for line in lines[:100]]
        pud = [f"{line} {lines[0]}" for line in lines[:50]]
        tatoeba = [f"{lines[0]} {line}" for line in lines[:50]]
        toy.pack(data / "large" / f"acts.en-fr.{language}", law)
        toy.pack(data / "eval" / f"pud.{language}", pud)
        toy.pack(data / "eval" / f"tatoeba-v1.fra-eng.{code}", tatoeba)
    about = {
        "about": "x",
        "url": "https://example.org",
        "licence": "CC BY 4.0",
        "attribution": "somebody",
    }
    manuals = {
        "name": "one",
        "kind": "manuals",
        "files": "train/tech.{pair}",
        "tag": "a",
        "pairs": {"en-fr": 600, "en-de": 600},
    }
    law = {
        "name": "two",
        "kind": "law",
        "files": "large/acts.{pair}",
        "pairs": {"en-fr": 100},
    }
    sources = {"note": "A note.", "sources": [about | manuals, about | law]}
    (tmp_path / "sources.json").write_text(json.dumps(sources))
    work = tmp_path / "work"
    variables = {
        "DATA": data,
        "WORK": work,
        "SOURCES": tmp_path / "sources.json",
        "SMOKE": 1,
        "PAIRS": "en-fr,en-de",
        "WEAK": "de",
        "PUD": "en-fr",
        "TATOEBA": "fr:fra",
    }

    output = run_example(tmp_path, "pretrained", **variables)

    # The collected text, the training on its sources, the card with its scores, and the archive.
    assert f"{work}/text/law.en-fr: 100 pairs" in output
    log = (work / "checkpoints" / "1" / "1" / "train.log").read_text()
    assert "en-fr: source law, " in log
    card = (work / "lxsr-static" / "README.md").read_text()
    row = "| one: x, https://example.org | CC BY 4.0 | somebody | en-de 600, en-fr 600 |"
    for fragment in ("A note.", row, "| xsr fr->en |", "| tatoeba fr->en |"):
        assert fragment in card
    assert sha256(work / "lxsr-static.tar.gz") in output


def test_names_of_folders_are_quoted_for_yaml(tmp_path):
    """In YAML, # after a space begins a comment. The script stops at an lxsr that does nothing."""
    shutil.copytree(ROOT / "examples" / "pretrained", tmp_path / "examples" / "pretrained")
    data = tmp_path / 'a "b" #1'
    work = tmp_path / "run #2" / "\U0001f600"
    for name in ("acts.en-fr.en", "acts.en-fr.fr", "eval/pud.en"):
        toy.pack(data / name, ["a line"])
    sources = {"sources": [ACTS | {"pairs": {"en-fr": 1}}]}
    (tmp_path / "sources.json").write_text(json.dumps(sources))
    (tmp_path / "lxsr").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "lxsr").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "DATA": str(data),
        "WORK": str(work),
        "SOURCES": str(tmp_path / "sources.json"),
    }
    command = ["bash", tmp_path / "examples" / "pretrained" / "run.sh"]

    result = subprocess.run(command, capture_output=True, env=os.environ | variables)

    assert result.returncode == 3, result.stderr
    config = yaml.safe_load((work / "prepare.yaml").read_text(encoding="utf-8"))
    assert config["work"] == str(work)
    assert config["cleaning"]["exclude"] == [str(data / "eval" / "pud.en.txt.gz")]
    assert config["pairs"] == {"en-fr": {"law": str(work / "text" / "law.en-fr")}}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("sources", "sources.json: "),
        ('{"sources": {}}', "sources.json"),
        (
            '{"sources": [{"name": "acts", "files": "acts", "pairs": {}}]}',
            "sources.json, source 1: ",
        ),
        # The file has two pairs instead of three.
        (json.dumps({"sources": [ACTS]}), "acts.en-fr: 2 "),
    ],
    ids=["no-json", "no-list", "no-kind", "number-of-pairs"],
)
def test_an_invalid_table_of_sources_is_refused(tmp_path, table, message):
    for name in ("en", "fr"):
        toy.pack(tmp_path / f"acts.en-fr.{name}", ["a line", "another"])
    (tmp_path / "sources.json").write_text(table)
    collect = load_script(ROOT / "examples" / "pretrained" / "collect.py")
    words = ["--data", tmp_path, "--sources", tmp_path / "sources.json"]
    words += ["--output", tmp_path / "text"]

    result = main_here(collect, *words, check=False)

    refused(result, message)
    assert not list(tmp_path.glob("text/*"))


@pytest.mark.smoke
@pytest.mark.parametrize("language", ["fr", "it"])
def test_the_example_of_the_paper_trains_with_its_settings_and_evaluates_in_its_smoke_mode(
    tmp_path, language
):
    toy.write(tmp_path / "text", toy.sentences(600), ("en", language))
    toy.write(tmp_path / f"Europarl.en-{language}", toy.sentences(2100, seed=2), ("en", language))
    shutil.copytree(ROOT / "tests" / "golden" / "mldoc", tmp_path / "mldoc")
    for path in (tmp_path / "mldoc").glob("fr.*"):
        path.rename(path.with_name(path.name.replace("fr", language, 1)))
    variables = {
        "SMOKE": 1,
        "WORK": tmp_path / "work",
        "EUROPARL": tmp_path / "Europarl.{pair}",
        "MLDOC": tmp_path / "mldoc",
    }

    output = run_example(tmp_path, "paracrawl", language, tmp_path / "text", **variables)

    # The settings of the paper that the smoke mode does not change.
    settings = (
        "--objective ugt, --lr 0.001, --weight-decay 1e-5, --max-positions 200, --dropout 0.1, "
        "--arch lxsr_tiny"
    )
    # Table 4 has the losses ugt + align + sim, table 3 ugt alone.
    table_4, table_3 = train_commands(output)
    assert_options(table_4, f"{settings}, --align-weight 2, --sim-weight 2")
    assert_options(table_3, f"{settings}, --align-weight 0, --sim-weight 0")
    assert CAUTION in output
    # At most 50 queries of the test text, and 2,000 of Europarl, whose 2,100 are the candidates.
    scores = read_scores(tmp_path / "work" / "xsr.jsonl")
    assert scores[0].settings["queries"] <= 50
    assert scores[-1].settings["queries"] == 2000
    assert scores[-1].settings["candidates"] == 2100
    # Documents are classified by the model of the other table.
    documents = read_scores(tmp_path / "work" / "mldoc.jsonl")
    assert documents[0].settings["model"] != scores[0].settings["model"]
    tasks = {f"en->{language}", f"{language}->en", "en->en", f"{language}->{language}"}
    assert {score.task for score in documents} == tasks


@pytest.mark.smoke
@pytest.mark.parametrize("system", ["claser_6", "ctlaser"])
def test_the_example_of_the_laser_family_trains_a_system_with_its_settings_and_evaluates_it(
    tmp_path, system
):
    for number, pair in enumerate(("de-en", "de-es", "en-es", "fr-en", "fr-es", "it-en", "it-es")):
        toy.write(tmp_path / "text" / pair, toy.sentences(120, seed=number), tuple(pair.split("-")))
    variables = {"SMOKE": 1, "SMOKE_WORK": tmp_path / "work", "TEXT": tmp_path / "text" / "{pair}"}

    output = run_example(tmp_path, "europarl_laser", system, **variables)

    work = tmp_path / "work" / system
    log = (work / "train.log").read_text()
    assert "de-en, de-es, en-es, es-en, fr-en, fr-es, it-en, it-es; dictionary" in log
    learning_rate = "0.0005" if system == "ctlaser" else "0.001"
    settings = (
        "--constraint norm, --constraint-weight 0.25, --label-smoothing 0.1, --weight-decay 1e-4, "
        f"--max-positions 750, --lr {learning_rate}, --adam-betas '(0.9, 0.98)'"
    )
    assert_options(output, settings)
    # Eight directions, three metrics.
    assert len(read_scores(work / "xsr.jsonl")) == 8 * 3
    # The checkpoint of every epoch is kept.
    assert (work / "checkpoint1.pt").exists()
