"""Files of version 0.1.0 load and give the same vectors, and training continues from them."""

import json
import shutil
from pathlib import Path

import numpy as np
from conftest import COMPATIBILITY, export, run

from fairseq_lxsr import SentenceEncoder

# Written by version 0.1.0: the options of a training of 6 updates, sentences, their vectors after
# these updates ("vectors"), and after two more updates without dropout ("resumed").
EXPECTED = json.loads((COMPATIBILITY / "runs.json").read_text(encoding="utf-8"))
DATA = COMPATIBILITY / "data"


def largest_difference(model: Path, expected: str) -> float:
    """Return the largest difference of a number in the vectors of a model from the expected one."""
    vectors = SentenceEncoder.from_pretrained(model).encode(EXPECTED["sentences"])
    return float(np.abs(vectors - EXPECTED[expected]).max())


def test_a_model_folder_of_version_0_1_0_gives_the_same_vectors():
    assert largest_difference(COMPATIBILITY / "best.model", "vectors") < 1e-6


def test_a_checkpoint_of_version_0_1_0_is_exported_to_a_model_with_the_same_vectors(tmp_path):
    export(COMPATIBILITY / "best.pt", tmp_path / "model", "--data", DATA)

    assert largest_difference(tmp_path / "model", "vectors") < 1e-6


def test_training_continues_from_a_checkpoint_of_version_0_1_0_to_the_same_vectors(tmp_path):
    """Without dropout the two updates are exact; a lost weight or moment would make 0.01."""
    shutil.copy(COMPATIBILITY / "best.pt", tmp_path / "checkpoint_last.pt")
    options = (*EXPECTED["options"], "--max-update", "8", "--dropout", "0")
    command = (DATA, "--user-dir", "fairseq_lxsr", "--cpu", "--save-dir", tmp_path, *options)

    process = run("fairseq_cli.train", *command)

    assert "@ 6 updates)" in process.stdout
    assert "num_updates 8" in process.stdout
    export(tmp_path / "checkpoint_last.pt", tmp_path / "model", "--data", DATA)
    assert largest_difference(tmp_path / "model", "resumed") < 1e-4
