"""What measures a GPU, and what predicts one, on a machine without."""

import json
import sys

import pytest
import torch
from conftest import forked_commands, forked_environment

from benchmarks import gpu
from benchmarks.speed import gpu_predicted


def test_without_a_gpu_it_ends_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "gpu.py: error: no GPU; expected one, or --device cpu --small\n"


def test_every_part_runs_small_on_a_cpu(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(forked_commands() / "python"))
    for name, value in forked_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--small", "--output", str(tmp_path / "gpu.json")])
    gpu.main()
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["train"]["--cpu"]["second"]["num_updates"] == 2 * gpu.UPDATES
    assert len(found["steps"]) == len(gpu.SMALL.batches) * len(gpu.PRECISIONS)
    assert all(found["losses"][name]["agrees"] for name in gpu.PRECISIONS)
    assert all(values["sentences per second"] > 0 for values in found["encode"].values())


def test_another_loss_than_the_cpus_is_told(monkeypatch):
    monkeypatch.setattr(gpu, "TOLERANCES", dict.fromkeys(gpu.PRECISIONS, -1.0))
    assert not any(gpu.losses("cpu", gpu.SMALL)[name]["agrees"] for name in gpu.PRECISIONS)


def test_predictions_grow_with_layers_and_pairs(capsys):
    sizes = {"vocab_size": 500, "pieces": 5}
    one, two, more = gpu_predicted.predictions((1, 2), (8,), **sizes) + gpu_predicted.predictions((1,), (64,), **sizes)
    # of the layer's four matrices of attention and two of the feed-forward block, forward and twice backward
    products = 6 * (2 * 8 * 5) * (4 * 512**2 + 2 * 512 * 1024)
    of_layer = (two["TFLOP"] - one["TFLOP"]) * 1e12
    assert products <= of_layer < 1.02 * products  # and the products of attention
    assert one["peak GB"] < min(two["peak GB"], more["peak GB"])
    assert all(one[name]["ms"] < two[name]["ms"] for name in ("V100", "H100"))
    assert all(one["H100"]["ms"] <= row["V100"]["ms"] for row in (one, two, more))
    gpu_predicted.show([one, two, more])
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3
