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
    """Run a copy in `folder`: beside it no .venv, whose commands would come before the forked
    ones.
    """
    for part in ("examples", "preprocess"):
        shutil.copytree(ROOT / part, folder / "root" / part)
    command = ["bash", folder / "root" / "examples" / name / "run.sh", *map(str, arguments)]
    environment = forked_environment(**{key: str(value) for key, value in variables.items()})
    return checked(
        subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    ).stdout


def train_commands(output: str) -> list[str]:
    """Return the commands that `lxsr train` has printed."""
    return [
        line
        for line in output.splitlines()
        if line.startswith("fairseq-train ") and " --arch " in line
    ]


def assert_options(output: str, options: str) -> None:
    """The only command that `lxsr train` printed has all of the options, which have commas between
    them.
    """
    [command] = train_commands(output)
    for option in options.split(", --"):
        assert f" --{option.removeprefix('--')} " in f"{command} ", option


@pytest.mark.smoke
@pytest.mark.parametrize(("recipe", "updates"), [("best", 8), ("paper", 30)])
def test_quickstart_on_own_text(tmp_path, recipe, updates):
    toy.write(tmp_path / "text", toy.sentences(1200), ("en", "xx"))
    names = {
        "DATA": tmp_path / "text",
        "SRC": "en",
        "TGT": "xx",
        "WORK": tmp_path / "work",
        "RECIPE": recipe,
    }
    output = run_example(tmp_path, "quickstart", **names, UPDATES=updates, VOCAB=200, HELD_OUT=100)
    untrained, trained = (
        read_scores(tmp_path / "work" / f"{name}.jsonl") for name in ("untrained", "trained")
    )
    assert [score.task for score in trained] == ["en->xx", "xx->en"] * 3  # by three metrics
    for before, after in zip(untrained, trained, strict=True):
        assert after.values["P@1"] > before.values["P@1"] + 30
    assert "100 test" in output
    assert (
        "| valid on 'valid' subset | loss "
        in (tmp_path / "work" / "checkpoints" / "train.log").read_text()
    )
    assert (tmp_path / "work" / "test.xx.npy").exists()
    page = (tmp_path / "work" / "report.html").read_text()
    assert "xx-&gt;en" in page


def test_quickstart_spares_the_checkpoints_of_others(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    program = ["env", f"WORK={tmp_path}", "bash", ROOT / "examples" / "quickstart" / "run.sh"]
    refused(subprocess.run(program, capture_output=True, text=True), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


ACTS = {"name": "acts", "files": "acts.{pair}", "pairs": {"en-fr": 3}, "kind": "law"}


@pytest.mark.smoke
def test_pretrained_in_its_smoke_mode(tmp_path):
    """A source is a file, another those lines of a file that have its tag."""
    data = tmp_path / "data"
    sides = [[*map(str, side)] for side in zip(*toy.sentences(900), strict=True)]
    tags = ["a", "b", "a"] * 300
    for pair, language in (("en-fr", "fr"), ("en-de", "de")):
        for name, lines in (("en", sides[0]), (language, sides[1]), ("source", tags)):
            toy.pack(data / "train" / f"tech.{pair}.{name}", lines)
    for name, lines in (("en", sides[0]), ("fr", sides[1])):
        toy.pack(data / "large" / f"acts.en-fr.{name}", [f"{line} {line}" for line in lines[:100]])
        toy.pack(data / "eval" / f"pud.{name}", [f"{line} {lines[0]}" for line in lines[:50]])
        codes = {"en": "eng", "fr": "fra"}
        toy.pack(
            data / "eval" / f"tatoeba-v1.fra-eng.{codes[name]}",
            [f"{lines[0]} {line}" for line in lines[:50]],
        )
    about = {
        "about": "x",
        "url": "https://example.org",
        "licence": "CC BY 4.0",
        "attribution": "somebody",
    }
    sources = [
        {
            "name": "one",
            "files": "train/tech.{pair}",
            "tag": "a",
            "pairs": {"en-fr": 600, "en-de": 600},
        },
        {"name": "two", "files": "large/acts.{pair}", "pairs": {"en-fr": 100}},
    ]
    sources = [
        about | source | {"kind": kind}
        for source, kind in zip(sources, ("manuals", "law"), strict=True)
    ]
    (tmp_path / "sources.json").write_text(json.dumps({"note": "A note.", "sources": sources}))
    variables = {
        "DATA": data,
        "WORK": tmp_path / "work",
        "SOURCES": tmp_path / "sources.json",
        "SMOKE": 1,
    }
    output = run_example(
        tmp_path,
        "pretrained",
        **variables,
        PAIRS="en-fr,en-de",
        WEAK="de",
        PUD="en-fr",
        TATOEBA="fr:fra",
    )
    assert f"{tmp_path}/work/text/law.en-fr: 100 pairs" in output
    assert (
        "en-fr: source law, "
        in (tmp_path / "work" / "checkpoints" / "1" / "1" / "train.log").read_text()
    )
    model = tmp_path / "work" / "lxsr-static"
    card = (model / "README.md").read_text()
    for fragment in (
        "A note.",
        "| one: x, https://example.org | CC BY 4.0 | somebody | en-de 600, en-fr 600 |",
    ):
        assert fragment in card
    for name in ("xsr fr->en", "tatoeba fr->en"):
        assert f"| {name} |" in card, name
    digest = sha256(tmp_path / "work" / "lxsr-static.tar.gz")
    assert digest in output


def test_names_of_folders_are_quoted_for_yaml(tmp_path):
    """What stands behind a blank and # is a comment there; the script stops at an lxsr that does
    nothing.
    """
    shutil.copytree(ROOT / "examples" / "pretrained", tmp_path / "examples" / "pretrained")
    data, work = tmp_path / 'a "b" #1', tmp_path / "run #2" / "\U0001f600"
    for name in ("acts.en-fr.en", "acts.en-fr.fr", "eval/pud.en"):
        toy.pack(data / name, ["a line"])
    (tmp_path / "sources.json").write_text(
        json.dumps({"sources": [ACTS | {"pairs": {"en-fr": 1}}]})
    )
    (tmp_path / "lxsr").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "lxsr").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    names = {
        "PATH": path,
        "PYTHONPATH": ROOT,
        "DATA": data,
        "WORK": work,
        "SOURCES": tmp_path / "sources.json",
    }
    words = ["env", *(f"{name}={value}" for name, value in names.items())]
    done = subprocess.run(
        [*words, "bash", tmp_path / "examples" / "pretrained" / "run.sh"], capture_output=True
    )
    assert done.returncode == 3, done.stderr
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
        (json.dumps({"sources": [ACTS]}), "acts.en-fr: 2 "),
    ],
)
def test_a_table_that_is_none_or_not_of_the_text_is_refused(tmp_path, table, message):
    for name in ("en", "fr"):
        toy.pack(tmp_path / f"acts.en-fr.{name}", ["a line", "another"])
    (tmp_path / "sources.json").write_text(table)
    collect = load_script(ROOT / "examples" / "pretrained" / "collect.py")
    words = (
        "--data",
        tmp_path,
        "--sources",
        tmp_path / "sources.json",
        "--output",
        tmp_path / "text",
    )
    refused(main_here(collect, *words, check=False), message)
    assert not list(tmp_path.glob("text/*"))


@pytest.mark.smoke
@pytest.mark.parametrize("language", ["fr", "it"])
def test_recipe_of_the_paper_in_its_smoke_mode(tmp_path, language):
    toy.write(tmp_path / "text", toy.sentences(600), ("en", language))
    toy.write(tmp_path / f"Europarl.en-{language}", toy.sentences(2100, seed=2), ("en", language))
    shutil.copytree(ROOT / "tests" / "golden" / "mldoc", tmp_path / "mldoc")
    for path in (tmp_path / "mldoc").glob("fr.*"):
        path.rename(path.with_name(path.name.replace("fr", language, 1)))
    tables = {"EUROPARL": tmp_path / "Europarl.{pair}", "MLDOC": tmp_path / "mldoc"}
    output = run_example(
        tmp_path,
        "paracrawl",
        language,
        tmp_path / "text",
        SMOKE=1,
        WORK=tmp_path / "work",
        **tables,
    )
    # the settings of the paper that the smoke mode leaves alone
    settings = (
        "--objective ugt, --lr 0.001, --weight-decay 1e-5, --max-positions 200, --dropout 0.1, "
        "--arch lxsr_tiny"
    )
    of_xsr, of_mldoc = train_commands(output)
    # Table 4 is of ugt + align + sim, table 3 of ugt alone.
    assert_options(of_xsr, f"{settings}, --align-weight 2, --sim-weight 2")
    assert_options(of_mldoc, f"{settings}, --align-weight 0, --sim-weight 0")
    assert CAUTION in output
    scores = read_scores(tmp_path / "work" / "xsr.jsonl")
    assert scores[0].settings["queries"] <= 50
    # at most 200,000
    assert (scores[-1].settings["queries"], scores[-1].settings["candidates"]) == (2000, 2100)
    documents = read_scores(tmp_path / "work" / "mldoc.jsonl")
    assert documents[0].settings["model"] != scores[0].settings["model"]
    assert {score.task for score in documents} == {
        f"{a}->{b}" for a in ("en", language) for b in ("en", language)
    }


@pytest.mark.smoke
@pytest.mark.parametrize("system", ["claser_6", "ctlaser"])
def test_recipe_of_the_laser_family_in_its_smoke_mode(tmp_path, system):
    for number, pair in enumerate(("de-en", "de-es", "en-es", "fr-en", "fr-es", "it-en", "it-es")):
        toy.write(tmp_path / "text" / pair, toy.sentences(120, seed=number), tuple(pair.split("-")))
    variables = {"SMOKE": 1, "SMOKE_WORK": tmp_path / "work", "TEXT": tmp_path / "text" / "{pair}"}
    output = run_example(tmp_path, "europarl_laser", system, **variables)
    log = (tmp_path / "work" / system / "train.log").read_text()
    assert "de-en, de-es, en-es, es-en, fr-en, fr-es, it-en, it-es; dictionary" in log
    settings = (
        "--constraint norm, --constraint-weight 0.25, --label-smoothing 0.1, --weight-decay 1e-4"
    )
    lr = "0.0005" if system == "ctlaser" else "0.001"
    assert_options(
        output, f"{settings}, --max-positions 750, --lr {lr}, --adam-betas '(0.9, 0.98)'"
    )
    assert len(read_scores(tmp_path / "work" / system / "xsr.jsonl")) == 8 * 3
    assert (tmp_path / "work" / system / "checkpoint1.pt").exists()  # every epoch is kept
