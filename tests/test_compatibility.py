"""Checkpoints and model folders of an older version: they load, export, go on training, and give
the same vectors.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import lxsr_here, refused, run

from fairseq_lxsr import SentenceEncoder

FOLDER = Path(__file__).parent / "golden" / "compatibility"
EXPECTED = json.loads((FOLDER / "runs.json").read_text(encoding="utf-8"))
RUNS = EXPECTED["runs"]


# Sentences that the older version cut. Models without layers now read all of a text.
LONG = {"best": [8, 9]}


def differs_by(model: Path, name: str, values: str = "vectors") -> float:
    vectors = SentenceEncoder.from_pretrained(model).encode(EXPECTED["sentences"])
    differences = np.abs(vectors - RUNS[name][values]).max(axis=1)
    return float(np.delete(differences, LONG.get(name, [])).max())


def export(checkpoint: Path, name: str, output: Path) -> Path:
    data = FOLDER / RUNS[name]["data"]
    lxsr_here("export", "folder", "--checkpoint", checkpoint, "--output", output, "--data", data)
    return output


def train(name: str, checkpoint: str, save_dir: Path, *more: str, check: bool = True):
    """fairseq-train goes on from an older checkpoint, which has 6 updates."""
    shutil.copy(FOLDER / checkpoint, save_dir / "checkpoint_last.pt")
    options = (*RUNS[name]["options"], "--max-update", "8", *more)
    data = FOLDER / RUNS[name]["data"]
    command = (data, "--user-dir", "fairseq_lxsr", "--cpu", "--save-dir", save_dir, *options)
    return run("fairseq_cli.train", *command, check=check)


@pytest.mark.parametrize("name", RUNS)
def test_older_folder_gives_the_same_vectors(name):
    assert differs_by(FOLDER / f"{name}.model", name) < 1e-6


@pytest.mark.parametrize("name", RUNS)
def test_older_checkpoint_is_exported_to_the_same_vectors(name, tmp_path):
    model = export(FOLDER / f"{name}.pt", name, tmp_path / "model")
    assert differs_by(model, name) < 1e-6


@pytest.mark.parametrize("name", [name for name in RUNS if name != "refuted"])
def test_training_goes_on_from_an_older_checkpoint_as_it_did(name, tmp_path):
    """Without dropout the two updates are the same; a weight or moment that is lost makes 0.01 of
    difference.
    """
    done = train(name, f"{name}.pt", tmp_path, "--dropout", "0")
    assert "@ 6 updates)" in done.stdout
    assert "num_updates 8" in done.stdout
    model = export(tmp_path / "checkpoint_last.pt", name, tmp_path / "model")
    assert differs_by(model, name, "resumed") < 1e-4


def test_a_checkpoint_of_options_that_are_gone_is_not_gone_on_from(tmp_path):
    refused(
        train("lxsr", "refuted.pt", tmp_path, check=False),
        "checkpoint_last.pt",
    )
