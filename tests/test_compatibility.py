"""Files of version 0.1.0: the model folder, the checkpoint and the data folder load, training goes
on, and the vectors are the same.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from conftest import COMPATIBILITY, export, run

from fairseq_lxsr import SentenceEncoder

EXPECTED = json.loads((COMPATIBILITY / "runs.json").read_text(encoding="utf-8"))
DATA = COMPATIBILITY / "data"


def differs_by(model: Path, values: str) -> float:
    vectors = SentenceEncoder.from_pretrained(model).encode(EXPECTED["sentences"])
    return float(np.abs(vectors - EXPECTED[values]).max())


def test_the_model_folder_gives_the_same_vectors():
    assert differs_by(COMPATIBILITY / "best.model", "vectors") < 1e-6


def test_the_checkpoint_is_exported_to_the_same_vectors(tmp_path):
    export(COMPATIBILITY / "best.pt", tmp_path / "model", "--data", DATA)
    assert differs_by(tmp_path / "model", "vectors") < 1e-6


def test_training_goes_on_from_the_checkpoint_as_it_did(tmp_path):
    """Without dropout the two updates are the same; a weight or moment that is lost makes 0.01 of
    difference.
    """
    shutil.copy(COMPATIBILITY / "best.pt", tmp_path / "checkpoint_last.pt")
    options = (*EXPECTED["options"], "--max-update", "8", "--dropout", "0")
    command = (DATA, "--user-dir", "fairseq_lxsr", "--cpu", "--save-dir", tmp_path, *options)
    done = run("fairseq_cli.train", *command)
    assert "@ 6 updates)" in done.stdout
    assert "num_updates 8" in done.stdout
    export(tmp_path / "checkpoint_last.pt", tmp_path / "model", "--data", DATA)
    assert differs_by(tmp_path / "model", "resumed") < 1e-4
