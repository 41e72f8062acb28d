"""The benchmarks that measure and predict a GPU, on a machine without one."""

import json

import pytest
import torch
from conftest import main_here

from benchmarks import gpu


def test_a_missing_gpu_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = main_here(gpu, check=False)
    message = "gpu.py: error: no GPU; expected one, or --device cpu --small\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.slow
@pytest.mark.usefixtures("python_is_a_fork")
def test_every_part_runs_small_on_a_cpu(tmp_path):
    main_here(gpu, "--device", "cpu", "--small", "--output", tmp_path / "gpu.json")
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert set(results) == {"machine", *gpu.PARTS}
    assert gpu.failures(results) == []
    assert len(results["steps"]) == len(gpu.SMALL.batches) * len(gpu.PRECISIONS)
    for name in gpu.PRECISIONS:
        assert results["losses"][name]["agrees"], name
    for name, values in results["encode"].items():
        assert values["sentences per second"] > 0, name
    assert set(results["objectives"]) == set(gpu.SMALL.objectives)
    runs = results["precisions"]
    assert runs["again"]["weights equal float32"]
    assert runs["interrupted"]["weights equal float32"]
    assert runs["interrupted"]["resumed"]
    assert not runs["float32"]["resumed"]


@pytest.mark.slow
def test_a_loss_beyond_the_tolerance_is_a_failure(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "TOLERANCES", dict.fromkeys(gpu.PRECISIONS, -1.0))
    setting = gpu.Setting("cpu", gpu.SMALL, tmp_path, tmp_path)
    results = gpu.run_parts(["losses"], setting, None)
    assert gpu.failures(results) == [f"losses/{name}" for name in gpu.PRECISIONS]


@pytest.mark.slow
def test_after_a_part_that_fails_the_others_run(monkeypatch, tmp_path):
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
    # The memory tracker of torch takes a second to import.
    from benchmarks.speed import gpu_predicted

    sizes = {"vocab_size": 500, "pieces": 5}
    one_layer, two_layers = gpu_predicted.predictions((1, 2), (8,), **sizes)
    [large_batch] = gpu_predicted.predictions((1,), (64,), **sizes)
    # A layer has four matrices of attention and two of the feed-forward block; each is multiplied
    # once in the forward and twice in the backward pass. The products of attention are few.
    products = 6 * (2 * 8 * 5) * (4 * 512**2 + 2 * 512 * 1024)
    operations_of_layer = (two_layers["TFLOP"] - one_layer["TFLOP"]) * 1e12
    assert products <= operations_of_layer < 1.02 * products
    assert one_layer["peak GB"] < two_layers["peak GB"]
    assert one_layer["peak GB"] < large_batch["peak GB"]
    for name in ("V100", "H100"):
        assert one_layer[name]["ms"] < two_layers[name]["ms"]
    rows = [one_layer, two_layers, large_batch]
    for row in rows:
        assert one_layer["H100"]["ms"] <= row["V100"]["ms"]
    gpu_predicted.show(rows)
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3
