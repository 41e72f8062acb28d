"""fairseq-hydra-train reads YAML: presets hold there too, and what is wrong is refused in one
line.
"""

import pytest
import yaml
from conftest import ROOT, refused, run
from forks import FAIRSEQ

from fairseq_lxsr.encoder.checkpoint import read_checkpoint


@pytest.fixture
def hydra(tmp_path, toy_work):
    """A function that trains two updates with some options changed, in groups."""
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

    def train(**changed):
        merged = {
            group: groups.get(group, {}) | changed.get(group, {}) for group in groups | changed
        }
        (tmp_path / "small.yaml").write_text("# @package _global_\n" + yaml.safe_dump(merged))
        words = (
            "--config-dir",
            tmp_path,
            "--config-name",
            "small",
            f"hydra.run.dir={tmp_path / 'out'}",
        )
        # the plugin sets up hydra at import
        return run("fairseq_cli.hydra_train", *words, check=False, preloaded=FAIRSEQ)

    return train


def test_a_preset_has_its_sizes_and_what_is_given_wins(hydra, tmp_path):
    released = {
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
    sizes = {
        "encoder_layers": 1,
        "dropout": 0.25,
        "layer_norm_eps": 1e-12,
        "init_weights": "released",
    }
    done = hydra(model={"_name": "lxsr_tiny", **sizes}, **released)
    assert done.returncode == 0, done.stderr[-2000:]
    state = read_checkpoint(tmp_path / "save" / "checkpoint_last.pt")
    assert state["model"]["encoder.embed_tokens.weight"].shape[1] == 32
    sizes = [
        state["cfg"]["model"][name]
        for name in ("encoder_ffn_embed_dim", "encoder_layers", "dropout")
    ]
    assert sizes == [64, 1, 0.25]
    assert state["cfg"]["model"]["layer_norm_eps"] == 1e-12
    assert state["last_optimizer_state"]["param_groups"][0]["amsgrad"]


@pytest.mark.slow
def test_the_yaml_of_the_page_trains(tmp_path, toy_work, hydra):
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    groups = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    # The paths of the page depend on the environment.
    for group, name in (("common", "user_dir"), ("task", "data"), ("checkpoint", "save_dir")):
        del groups[group][name]
    groups["dataset"]["batch_size"] = 32
    groups["optimization"]["max_update"] = 2
    done = hydra(**groups)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "save" / "checkpoint_last.pt").is_file()


def test_an_option_in_the_wrong_group_is_refused(hydra):
    done = hydra(model={"_name": "lxsr_tiny", "init_embeddings": "lsi"})
    refused(done, "option init_embeddings ")


def test_a_refusal_is_one_line_and_spells_the_option_as_yaml_does(hydra, tmp_path):
    done = hydra(model={"_name": "lxsr_tiny", "dropout": 1.5})
    refused(done, "model.dropout 1.5")
    assert not list(tmp_path.rglob("*.pt"))
