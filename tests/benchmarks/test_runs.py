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


def runs_of_quality():
    """Yield the recipe and options of each phase of each system."""
    for name in QUALITY:
        for phase in resolve(QUALITY, name).get("phases", ()):
            yield [phase["recipe"], *shlex.split(phase.get("options", ""))]


def test_runs_are_recipes_with_options():
    for run in [*runs_of_quality(), *laser_family.SYSTEMS.values(), *train.SYSTEMS.values()]:
        recipe, *options = run
        with case(" ".join(run)):
            read_by_fairseq(train_command(read_recipe(recipe), DATA, ["--cpu", *options]))


def test_a_run_inherits_the_phases_of_another():
    run = resolve(QUALITY, "layers_0_corpus_3")["phases"][0]
    assert run["recipe"] == "paper_small"
    assert resolve(QUALITY, "paper")["phases"][0]["recipe"] == "paper_small"
    assert run["options"].split()[-2:] == ["--encoder-layers", "0"]
    assert resolve(QUALITY, "small_corpus_10_and_teacher")["corpus"] == 0.1


def test_a_baseline_inherits_values_that_it_does_not_change():
    run = resolve(QUALITY, "st_static_both_scale_10")
    assert run["dim"] == 512
    assert run["training"] == {"batch_size": 2048, "learning_rate": 0.2}
    assert run["loss"]["scale"] == 10
    assert run["loss"]["partition_mode"] == "per_direction"
