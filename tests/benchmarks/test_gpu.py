"""What measures a GPU, and what predicts one, on a machine without."""

import json

import pytest
import torch
from conftest import main_here

from benchmarks import gpu


def test_without_a_gpu_it_ends_with_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = main_here(gpu, check=False)
    said = "gpu.py: error: no GPU; expected one, or --device cpu --small\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.slow
@pytest.mark.usefixtures("python_is_a_fork")
def test_every_part_runs_small_on_a_cpu(tmp_path):
    main_here(gpu, "--device", "cpu", "--small", "--output", tmp_path / "gpu.json")
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert set(found) == {"machine", *gpu.PARTS}
    assert gpu.failures(found) == []
    assert len(found["steps"]) == len(gpu.SMALL.batches) * len(gpu.PRECISIONS)
    assert all(found["losses"][name]["agrees"] for name in gpu.PRECISIONS)
    assert all(values["sentences per second"] > 0 for values in found["encode"].values())
    assert set(found["objectives"]) == set(gpu.SMALL.objectives)
    runs = found["precisions"]
    assert runs["again"]["weights equal float32"]
    assert runs["interrupted"]["weights equal float32"]
    assert runs["interrupted"]["resumed"]
    assert not runs["float32"]["resumed"]


@pytest.mark.slow
def test_another_loss_than_the_cpus_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "TOLERANCES", dict.fromkeys(gpu.PRECISIONS, -1.0))
    setting = gpu.Setting("cpu", gpu.SMALL, tmp_path, tmp_path)
    results = gpu.run_parts(["losses"], setting, None)
    assert gpu.failures(results) == [f"losses/{name}" for name in gpu.PRECISIONS]


@pytest.mark.slow
def test_a_part_that_fails_leaves_its_error_and_the_others_run(monkeypatch, tmp_path):
    def fail(setting):
        raise RuntimeError("no memory")

    monkeypatch.setitem(gpu.PARTS, "encode", fail)
    setting = gpu.Setting("cpu", gpu.SMALL, tmp_path, tmp_path)
    output = tmp_path / "gpu.json"
    results = gpu.run_parts(["encode", "vectors"], setting, output)
    assert gpu.failures(results) == ["encode"]
    written = json.loads(output.read_text())
    assert "no memory" in written["encode"]["error"]
    assert "vectors" in written


def test_predictions_grow_with_layers_and_pairs(capsys):
    from benchmarks.speed import gpu_predicted  # torch's tracker of memory takes a second to import

    sizes = {"vocab_size": 500, "pieces": 5}
    one, two, more = gpu_predicted.predictions((1, 2), (8,), **sizes) + gpu_predicted.predictions(
        (1,), (64,), **sizes
    )
    # of the layer's four matrices of attention and two of the feed-forward block, forward and twice
    # backward
    products = 6 * (2 * 8 * 5) * (4 * 512**2 + 2 * 512 * 1024)
    of_layer = (two["TFLOP"] - one["TFLOP"]) * 1e12
    assert products <= of_layer < 1.02 * products  # and the products of attention
    assert one["peak GB"] < min(two["peak GB"], more["peak GB"])
    assert all(one[name]["ms"] < two[name]["ms"] for name in ("V100", "H100"))
    assert all(one["H100"]["ms"] <= row["V100"]["ms"] for row in (one, two, more))
    gpu_predicted.show([one, two, more])
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3
