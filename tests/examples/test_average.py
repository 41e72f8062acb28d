"""examples/pretrained/average.py: means of weights, also of trainings with rotated vectors."""

import pytest
import torch
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.encoder.checkpoint import read_checkpoint

VECTORS = "encoder.embed_tokens.weight"
MAP = "teacher_map.weight"


@pytest.fixture
def script():
    return load_script(ROOT / "examples" / "pretrained" / "average.py")


def write(path, dictionary="x", **weights):
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
    first = write(tmp_path / "a" / "checkpoint_last.pt", weight=torch.tensor([1.0]))
    last = write(tmp_path / "b" / "checkpoint_last.pt", weight=torch.tensor([4.0]))
    main_here(script, first, last, last, "--output", tmp_path / "mean.pt")
    mean = read_checkpoint(tmp_path / "mean.pt")
    assert mean["model"]["weight"].item() == 3
    assert mean["last_optimizer_state"] is None
    # The moving average of one training is not that of the mean.
    assert mean["extra_state"] == {}


def test_rotated_trainings_are_rotated_back_with_their_map_to_the_teacher(script, tmp_path):
    torch.manual_seed(0)
    vectors = torch.randn(50, 4)
    to_teacher = torch.randn(6, 4)
    rotation = torch.linalg.qr(torch.randn(4, 4))[0]
    rotated = {VECTORS: vectors @ rotation * 3, MAP: to_teacher @ rotation}
    first = write(tmp_path / "a" / "a.pt", **rotated)
    last = write(tmp_path / "b" / "b.pt", **{VECTORS: vectors, MAP: to_teacher})
    main_here(script, first, last, "--rotate", "--output", tmp_path / "mean.pt")
    mean = read_checkpoint(tmp_path / "mean.pt")["model"]
    torch.testing.assert_close(mean[VECTORS], vectors)
    torch.testing.assert_close(mean[MAP], to_teacher)
    main_here(script, first, last, "--output", tmp_path / "mean.pt")
    assert (read_checkpoint(tmp_path / "mean.pt")["model"][VECTORS] - vectors).abs().max() > 1


def test_checkpoints_and_folders_with_different_dictionaries_are_refused(script, tmp_path):
    first = write(tmp_path / "a" / "a.pt", "a", weight=torch.ones(2))
    last = write(tmp_path / "b" / "a.pt", "b", weight=torch.ones(2))
    done = main_here(script, first, last, "--output", tmp_path / "m.pt", check=False)
    refused(done, f"{first}: ")
    output = tmp_path / "b" / "mean.pt"
    refused(main_here(script, first, "--output", output, check=False), f"{output}: ")
    assert (tmp_path / "b" / "text" / "dict.txt").read_text() == "b"


def test_weights_of_different_shapes_are_refused(script, tmp_path):
    first = write(tmp_path / "a" / "checkpoint_last.pt", weight=torch.ones(2))
    last = write(tmp_path / "b" / "checkpoint_last.pt", weight=torch.ones(3))
    done = main_here(script, first, last, "--output", tmp_path / "mean.pt", check=False)
    refused(done, f"{first}: ", "weight")
    assert not (tmp_path / "mean.pt").exists()
