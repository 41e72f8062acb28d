"""Files of version 0.1.0 load and give the same vectors, and training continues from them."""

import json
import shutil
from pathlib import Path

import numpy as np
from conftest import COMPATIBILITY, export, run

from fairseq_lxsr import SentenceEncoder

EXPECTED = json.loads((COMPATIBILITY / "runs.json").read_text(encoding="utf-8"))
DATA = COMPATIBILITY / "data"


def largest_difference(model: Path, expected: str) -> float:
    vectors = SentenceEncoder.from_pretrained(model).encode(EXPECTED["sentences"])
    return float(np.abs(vectors - EXPECTED[expected]).max())


def test_the_model_folder_gives_the_same_vectors():
    assert largest_difference(COMPATIBILITY / "best.model", "vectors") < 1e-6


def test_the_checkpoint_is_exported_to_the_same_vectors(tmp_path):
    export(COMPATIBILITY / "best.pt", tmp_path / "model", "--data", DATA)
    assert largest_difference(tmp_path / "model", "vectors") < 1e-6


def test_training_continues_from_the_checkpoint_to_the_same_vectors(tmp_path):
    """Without dropout the two updates are exact; a lost weight or moment would make 0.01."""
    shutil.copy(COMPATIBILITY / "best.pt", tmp_path / "checkpoint_last.pt")
    options = (*EXPECTED["options"], "--max-update", "8", "--dropout", "0")
    command = (DATA, "--user-dir", "fairseq_lxsr", "--cpu", "--save-dir", tmp_path, *options)
    done = run("fairseq_cli.train", *command)
    assert "@ 6 updates)" in done.stdout
    assert "num_updates 8" in done.stdout
    export(tmp_path / "checkpoint_last.pt", tmp_path / "model", "--data", DATA)
    assert largest_difference(tmp_path / "model", "resumed") < 1e-4
