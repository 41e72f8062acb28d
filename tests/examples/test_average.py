"""examples/pretrained/average.py: means of weights, also of trainings whose units mean other
things.
"""

import pytest
import torch
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.encoder.checkpoint import read_checkpoint

VECTORS, MAP = "encoder.embed_tokens.weight", "teacher_map.weight"


@pytest.fixture
def script():
    return load_script(ROOT / "examples" / "pretrained" / "average.py")


def write(path, dictionary="x", **weights):
    (path.parent / "text").mkdir(parents=True)
    (path.parent / "text" / "dict.txt").write_text(dictionary)
    state = {"model": weights, "cfg": {"model": {}, "task": {}, "criterion": {}, "common": {}}}
    state["task_state"] = {"dictionary_sha256": dictionary}
    extra = {"extra_state": {"ema": weights}, "last_optimizer_state": {"step": 1}}
    torch.save(state | {"optimizer_history": [{}]} | extra, path)
    return path


def test_a_name_given_twice_counts_twice(script, tmp_path):
    first, last = (
        write(tmp_path / name / "checkpoint_last.pt", weight=torch.tensor([number]))
        for name, number in {"a": 1.0, "b": 4.0}.items()
    )
    main_here(script, first, last, last, "--output", tmp_path / "mean.pt")
    mean = read_checkpoint(tmp_path / "mean.pt")
    assert mean["model"]["weight"].item() == 3
    assert mean["last_optimizer_state"] is None
    assert mean["extra_state"] == {}  # no average of one training alone


def test_rotated_vectors_are_those_before_the_rotation(script, tmp_path):
    """And what the map to the teacher makes of them."""
    torch.manual_seed(0)
    vectors, to_teacher = torch.randn(50, 4), torch.randn(6, 4)
    turn = torch.linalg.qr(torch.randn(4, 4))[0]
    first = write(tmp_path / "a" / "a.pt", **{VECTORS: vectors @ turn * 3, MAP: to_teacher @ turn})
    last = write(tmp_path / "b" / "b.pt", **{VECTORS: vectors, MAP: to_teacher})
    main_here(script, first, last, "--rotate", "--output", tmp_path / "mean.pt")
    mean = read_checkpoint(tmp_path / "mean.pt")["model"]
    torch.testing.assert_close(mean[VECTORS], vectors)
    torch.testing.assert_close(mean[MAP], to_teacher)
    main_here(script, first, last, "--output", tmp_path / "mean.pt")
    assert (read_checkpoint(tmp_path / "mean.pt")["model"][VECTORS] - vectors).abs().max() > 1


def test_other_dictionaries_are_refused(script, tmp_path):
    first, last = (write(tmp_path / name / "a.pt", name, weight=torch.ones(2)) for name in "ab")
    refused(
        main_here(script, first, last, "--output", tmp_path / "m.pt", check=False),
        f"{first}: ",
    )
    refused(
        main_here(script, first, "--output", tmp_path / "b" / "mean.pt", check=False),
        f"{tmp_path / 'b' / 'mean.pt'}: ",
    )
    assert (tmp_path / "b" / "text" / "dict.txt").read_text() == "b"


def test_weights_of_other_shapes_are_refused(script, tmp_path):
    first, last = (
        write(tmp_path / name / "checkpoint_last.pt", weight=torch.ones(size))
        for name, size in {"a": 2, "b": 3}.items()
    )
    refused(
        main_here(script, first, last, "--output", tmp_path / "mean.pt", check=False),
        f"{first}: ",
        "weight",
    )
    assert not (tmp_path / "mean.pt").exists()
