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


@pytest.fixture(scope="module")
def results_on_cpu(tmp_path_factory, python_is_a_fork):
    """The results of all parts, run small on a CPU."""
    output = tmp_path_factory.mktemp("gpu") / "gpu.json"
    main_here(gpu, "--device", "cpu", "--small", "--output", output)
    return json.loads(output.read_text())


@pytest.mark.slow
def test_every_part_runs_small_on_a_cpu_without_failures(results_on_cpu):
    assert set(results_on_cpu) == {"machine", *gpu.PARTS}
    assert gpu.failures(results_on_cpu) == []


@pytest.mark.slow
def test_steps_are_measured_for_every_batch_size_in_every_precision(results_on_cpu):
    combinations = len(gpu.SMALL.batches) * len(gpu.PRECISIONS)

    assert len(results_on_cpu["steps"]) == combinations


@pytest.mark.slow
def test_losses_agree_with_float32_in_every_precision(results_on_cpu):
    for precision in gpu.PRECISIONS:
        assert results_on_cpu["losses"][precision]["agrees"], precision


@pytest.mark.slow
def test_encoding_has_a_speed_for_every_model(results_on_cpu):
    for name, values in results_on_cpu["encode"].items():
        assert values["sentences per second"] > 0, name


@pytest.mark.slow
def test_all_objectives_are_trained(results_on_cpu):
    assert set(results_on_cpu["objectives"]) == set(gpu.SMALL.objectives)


@pytest.mark.slow
def test_a_repeated_and_an_interrupted_training_end_with_the_same_weights(results_on_cpu):
    runs = results_on_cpu["precisions"]

    assert not runs["float32"]["resumed"]
    assert runs["again"]["weights equal float32"]
    assert runs["interrupted"]["resumed"]
    assert runs["interrupted"]["weights equal float32"]


@pytest.mark.slow
def test_a_loss_beyond_the_tolerance_is_a_failure(monkeypatch, tmp_path):
    # No difference is below a negative tolerance.
    monkeypatch.setattr(gpu, "TOLERANCES", dict.fromkeys(gpu.PRECISIONS, -1.0))
    setting = gpu.Setting("cpu", gpu.SMALL, tmp_path, tmp_path)

    results = gpu.run_parts(["losses"], setting, None)

    assert gpu.failures(results) == [f"losses/{name}" for name in gpu.PRECISIONS]


@pytest.mark.slow
def test_after_a_part_that_fails_the_next_part_runs(monkeypatch, tmp_path):
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


class Predictions:
    """Predictions for one and two layers with a batch of 8 pairs, and for one with 64 pairs.

    The sentences have 5 pieces, and the vocabulary has 500.
    """

    def __init__(self):
        # The memory tracker of torch takes a second to import.
        from benchmarks.speed import gpu_predicted

        sizes = {"vocab_size": 500, "pieces": 5}
        self.one_layer, self.two_layers = gpu_predicted.predictions((1, 2), (8,), **sizes)
        [self.large_batch] = gpu_predicted.predictions((1,), (64,), **sizes)


@pytest.fixture(scope="module")
def predicted():
    return Predictions()


def test_the_predicted_operations_of_a_layer_are_those_of_its_matrix_products(predicted):
    # Both sides of 8 pairs.
    pieces = 2 * 8 * 5
    # Four matrices of attention, and two of the feed-forward block.
    weights = 4 * 512 * 512 + 2 * 512 * 1024
    # A multiplication and an addition, once in the forward and twice in the backward pass.
    of_products = 2 * 3 * pieces * weights

    of_layer = 1e12 * (predicted.two_layers["TFLOP"] - predicted.one_layer["TFLOP"])

    # The products of queries and keys are few.
    assert of_products <= of_layer < 1.02 * of_products


def test_the_predicted_memory_grows_with_layers_and_batch_size(predicted):
    memory = predicted.one_layer["peak GB"]

    assert predicted.two_layers["peak GB"] > memory
    assert predicted.large_batch["peak GB"] > memory


@pytest.mark.parametrize("gpu_name", ["V100", "H100"])
def test_the_predicted_time_grows_with_layers(predicted, gpu_name):
    assert predicted.two_layers[gpu_name]["ms"] > predicted.one_layer[gpu_name]["ms"]


def test_an_h100_is_predicted_to_be_at_least_as_fast_as_a_v100(predicted):
    for row in (predicted.one_layer, predicted.two_layers, predicted.large_batch):
        assert row["H100"]["ms"] <= row["V100"]["ms"]


def test_the_table_of_predictions_has_a_row_for_each(predicted, capsys):
    from benchmarks.speed import gpu_predicted

    gpu_predicted.show([predicted.one_layer, predicted.two_layers, predicted.large_batch])

    _, _, *rows = capsys.readouterr().out.splitlines()
    # The columns of layers and pairs.
    assert [row.split(" | ")[:2] for row in rows] == [["| 1", "8"], ["| 2", "8"], ["| 1", "64"]]
