"""fairseq-hydra-train with YAML uses presets, and refuses wrong options in one line."""

import pytest
import yaml
from conftest import ROOT, refused, run
from forks import FAIRSEQ

from fairseq_lxsr.encoder.checkpoint import read_checkpoint


@pytest.fixture
def train_with_hydra(tmp_path, toy_work):
    """A function that trains two updates; its arguments change options of groups."""
    groups = {
        "common": {"user_dir": str(ROOT / "fairseq_lxsr"), "cpu": True},
        "task": {"_name": "xling_sent", "data": str(toy_work / "data-bin")},
        "criterion": {"_name": "xling_sent_loss"},
        "dataset": {"batch_size": 32, "disable_validation": True},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
        "optimization": {"lr": [0.005], "max_update": 2},
        "checkpoint": {"save_dir": str(tmp_path / "save")},
    }

    def train(**changes):
        merged = dict(groups)
        for group, options in changes.items():
            merged[group] = groups.get(group, {}) | options
        (tmp_path / "small.yaml").write_text("# @package _global_\n" + yaml.safe_dump(merged))
        words = ["--config-dir", tmp_path, "--config-name", "small"]
        words.append(f"hydra.run.dir={tmp_path / 'out'}")
        # The plugin sets up hydra when it is imported.
        return run("fairseq_cli.hydra_train", *words, check=False, preloaded=FAIRSEQ)

    return train


def test_options_of_yaml_replace_those_of_the_preset(train_with_hydra, tmp_path):
    other_groups = {
        "task": {
            "batches": "shuffled",
            "drop_last": True,
            "target_ids": "masked",
            "target_overlap": "translation",
        },
        "optimizer": {"_name": "torch_adam", "amsgrad": True},
        "lr_scheduler": {"warmup_updates": 9},
        "optimization": {"lr": [0.005, 0.0005]},
    }
    model_options = {
        "encoder_layers": 1,
        "dropout": 0.25,
        "layer_norm_eps": 1e-12,
        "init_weights": "released",
    }

    result = train_with_hydra(model={"_name": "lxsr_tiny", **model_options}, **other_groups)

    assert result.returncode == 0, result.stderr[-2000:]
    state = read_checkpoint(tmp_path / "save" / "checkpoint_last.pt")
    # From the preset:
    assert state["model"]["encoder.embed_tokens.weight"].shape[1] == 32
    options = state["cfg"]["model"]
    assert options["encoder_ffn_embed_dim"] == 64
    # From the YAML file:
    for name, value in model_options.items():
        assert options[name] == value
    for name, value in other_groups["task"].items():
        assert state["cfg"]["task"][name] == value
    assert state["last_optimizer_state"]["param_groups"][0]["amsgrad"]


@pytest.mark.slow
def test_the_yaml_of_the_page_on_training_trains(tmp_path, toy_work, train_with_hydra):
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    groups = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    # The paths of the page depend on the environment.
    for group, name in (("common", "user_dir"), ("task", "data"), ("checkpoint", "save_dir")):
        del groups[group][name]
    # A shorter training.
    groups["dataset"]["batch_size"] = 32
    groups["optimization"]["max_update"] = 2

    result = train_with_hydra(**groups)

    assert result.returncode == 0, result.stderr[-2000:]
    assert (tmp_path / "save" / "checkpoint_last.pt").is_file()


def test_an_option_in_the_wrong_group_is_refused(train_with_hydra):
    # An option of the task.
    result = train_with_hydra(model={"_name": "lxsr_tiny", "init_embeddings": "lsi"})

    refused(result, "option init_embeddings ")


def test_the_error_of_a_wrong_value_names_the_option_as_in_yaml(train_with_hydra, tmp_path):
    result = train_with_hydra(model={"_name": "lxsr_tiny", "dropout": 1.5})

    refused(result, "model.dropout 1.5")
    assert not list(tmp_path.rglob("*.pt"))
