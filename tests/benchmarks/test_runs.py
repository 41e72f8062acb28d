"""Every run of the benchmarks is a recipe with options that fairseq-train has."""

import shlex

import yaml
from conftest import COMPATIBILITY, ROOT, case
from fairseq_options import read_by_fairseq

from benchmarks.quality import laser_family
from benchmarks.quality.config import resolve
from benchmarks.speed import train
from fairseq_lxsr.recipes import read_recipe, train_command

DATA = str(COMPATIBILITY / "data")
QUALITY = yaml.safe_load((ROOT / "benchmarks" / "quality" / "quality.yaml").read_text())


def phases_of_quality():
    """Yield the recipe and the options of each phase of each run of the quality study."""
    for name in QUALITY:
        for phase in resolve(QUALITY, name).get("phases", ()):
            yield [phase["recipe"], *shlex.split(phase.get("options", ""))]


def test_fairseq_train_accepts_the_recipe_and_options_of_every_run():
    systems = [*phases_of_quality(), *laser_family.SYSTEMS.values(), *train.SYSTEMS.values()]
    for recipe, *options in systems:
        with case(f"{recipe} {' '.join(options)}"):
            read_by_fairseq(train_command(read_recipe(recipe), DATA, ["--cpu", *options]))


def test_a_run_has_its_options_after_those_of_each_phase_of_the_run_that_it_is_like():
    phases = [{"recipe": "paper_small", "options": "--dropout 0"}, {"recipe": "best"}]
    configs = {"base": {"phases": phases}, "run": {"like": "base", "options": "--lr 1"}}

    run = resolve(configs, "run")

    options = [(phase["recipe"], phase["options"].split()) for phase in run["phases"]]
    assert options == [("paper_small", ["--dropout", "0", "--lr", "1"]), ("best", ["--lr", "1"])]


def test_a_run_inherits_from_the_run_that_its_own_base_is_like():
    configs = {
        "first": {"phases": [{"recipe": "paper_small"}]},
        "second": {"like": "first", "corpus": 0.1},
        "third": {"like": "second", "teacher": "best"},
    }

    run = resolve(configs, "third")

    assert run["phases"][0]["recipe"] == "paper_small"
    assert run["corpus"] == 0.1
    assert run["teacher"] == "best"


def test_a_run_replaces_single_entries_of_training_and_loss():
    training = {"batch_size": 2048, "learning_rate": 0.2}
    configs = {
        "base": {"dim": 512, "training": training, "loss": {"scale": 20, "mode": "joint"}},
        "run": {"like": "base", "training": {"learning_rate": 1}, "loss": {"scale": 10}},
    }

    run = resolve(configs, "run")

    assert run["dim"] == 512
    assert run["training"] == {"batch_size": 2048, "learning_rate": 1}
    assert run["loss"] == {"scale": 10, "mode": "joint"}
