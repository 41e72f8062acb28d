"""examples/pretrained/average.py: means of weights, also of trainings with rotated vectors."""

import pytest
import torch
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.encoder.checkpoint import read_checkpoint

VECTORS = "encoder.embed_tokens.weight"
# A linear map from the vectors to those of the teacher.
TEACHER_MAP = "teacher_map.weight"


@pytest.fixture
def script():
    return load_script(ROOT / "examples" / "pretrained" / "average.py")


def write_checkpoint(path, dictionary="x", **weights):
    """Write a checkpoint with weights, and the folder of its dictionary beside it."""
    (path.parent / "text").mkdir(parents=True)
    (path.parent / "text" / "dict.txt").write_text(dictionary)
    state = {
        "model": weights,
        "cfg": {"model": {}, "task": {}, "criterion": {}, "common": {}},
        "task_state": {"dictionary_sha256": dictionary},
        "optimizer_history": [{}],
        "extra_state": {"ema": weights},
        "last_optimizer_state": {"step": 1},
    }
    torch.save(state, path)
    return path


def test_a_checkpoint_named_twice_counts_twice(script, tmp_path):
    first = write_checkpoint(tmp_path / "a" / "checkpoint_last.pt", weight=torch.tensor([1.0]))
    last = write_checkpoint(tmp_path / "b" / "checkpoint_last.pt", weight=torch.tensor([4.0]))

    main_here(script, first, last, last, "--output", tmp_path / "mean.pt")

    mean = read_checkpoint(tmp_path / "mean.pt")["model"]["weight"].item()
    assert mean == (1 + 4 + 4) / 3


def test_a_mean_has_neither_an_optimizer_nor_a_moving_average(script, tmp_path):
    """Those of one training are not those of the mean."""
    checkpoint = write_checkpoint(tmp_path / "a" / "checkpoint_last.pt", weight=torch.ones(2))

    main_here(script, checkpoint, "--output", tmp_path / "mean.pt")

    mean = read_checkpoint(tmp_path / "mean.pt")
    assert mean["last_optimizer_state"] is None
    assert mean["extra_state"] == {}


@pytest.fixture
def rotated_trainings(tmp_path):
    """Two checkpoints whose vectors differ by a rotation, and in length.

    Returns:
        The checkpoints, and the weights of the last one.
    """
    torch.manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(4, 4))
    last_weights = {VECTORS: torch.randn(50, 4), TEACHER_MAP: torch.randn(6, 4)}
    first_weights = {
        VECTORS: 3 * last_weights[VECTORS] @ rotation,
        TEACHER_MAP: last_weights[TEACHER_MAP] @ rotation,
    }
    first = write_checkpoint(tmp_path / "a" / "a.pt", **first_weights)
    last = write_checkpoint(tmp_path / "b" / "b.pt", **last_weights)
    return [first, last], last_weights


def test_with_rotate_the_vectors_and_their_map_to_the_teacher_are_those_of_the_last_training(
    script, tmp_path, rotated_trainings
):
    checkpoints, weights = rotated_trainings

    main_here(script, *checkpoints, "--rotate", "--output", tmp_path / "mean.pt")

    mean = read_checkpoint(tmp_path / "mean.pt")["model"]
    torch.testing.assert_close(mean[VECTORS], weights[VECTORS])
    torch.testing.assert_close(mean[TEACHER_MAP], weights[TEACHER_MAP])


def test_without_rotate_the_mean_of_rotated_vectors_is_another(script, tmp_path, rotated_trainings):
    checkpoints, weights = rotated_trainings

    main_here(script, *checkpoints, "--output", tmp_path / "mean.pt")

    mean = read_checkpoint(tmp_path / "mean.pt")["model"]
    assert (mean[VECTORS] - weights[VECTORS]).abs().max() > 1


def test_checkpoints_with_different_dictionaries_are_refused(script, tmp_path):
    first = write_checkpoint(tmp_path / "a" / "a.pt", dictionary="a", weight=torch.ones(2))
    last = write_checkpoint(tmp_path / "b" / "a.pt", dictionary="b", weight=torch.ones(2))

    done = main_here(script, first, last, "--output", tmp_path / "m.pt", check=False)

    refused(done, f"{first}: ")


def test_a_mean_is_not_written_beside_another_dictionary(script, tmp_path):
    checkpoint = write_checkpoint(tmp_path / "a" / "a.pt", dictionary="a", weight=torch.ones(2))
    write_checkpoint(tmp_path / "b" / "a.pt", dictionary="b", weight=torch.ones(2))
    output = tmp_path / "b" / "mean.pt"

    done = main_here(script, checkpoint, "--output", output, check=False)

    refused(done, f"{output}: ")
    assert (tmp_path / "b" / "text" / "dict.txt").read_text() == "b"


def test_weights_of_different_shapes_are_refused(script, tmp_path):
    first = write_checkpoint(tmp_path / "a" / "checkpoint_last.pt", weight=torch.ones(2))
    last = write_checkpoint(tmp_path / "b" / "checkpoint_last.pt", weight=torch.ones(3))

    done = main_here(script, first, last, "--output", tmp_path / "mean.pt", check=False)

    refused(done, f"{first}: ", "weight")
    assert not (tmp_path / "mean.pt").exists()
