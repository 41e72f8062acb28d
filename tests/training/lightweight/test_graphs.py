"""Batches as CUDA graphs: their inputs and results, without a GPU."""

import pytest
import torch
from conftest import refused, train_here
from pair_batches import EOS, PAD, VOCABULARY, corpus
from test_lightweight_criterion import build_model, make_batch, make_criterion, make_model

from fairseq_lxsr.modules import transformer
from fairseq_lxsr.training.lightweight.dataset import SentencePairDataset
from fairseq_lxsr.training.lightweight.graphs import (
    MAX_GRAPHS,
    OCCURRENCES,
    PAD_MULTIPLE,
    GraphedCriterion,
    flatten,
    unflatten,
)
from fairseq_lxsr.training.lightweight.parts.hard_negatives import HardNegatives
from fairseq_lxsr.training.lightweight.parts.masking import Masking
from fairseq_lxsr.training.lightweight.task import XlingSentTask


class FakeGraphs:
    """Runs modules as graphs do: each reads and writes the same memory in all calls."""

    def __init__(self):
        self.num_captured = 0

    def __call__(self, module, inputs):
        self.num_captured += 1
        module(*inputs)
        logged = None

        def run(*tensors):
            nonlocal logged
            for memory, value in zip(inputs, tensors, strict=True):
                memory.copy_(value)
            loss, values = module(*inputs)
            logged = values if logged is None else logged.copy_(values)
            return loss, logged

        return run


@pytest.fixture
def model():
    return make_model().train()


def step(model, criterion, batch):
    """The loss, sample size, logged values and gradients of a batch."""
    model.zero_grad()
    loss, sample_size, logged = criterion(model, batch)
    loss.backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    return loss.detach().clone(), sample_size, logged, gradients


def test_losses_logged_values_and_gradients_are_those_of_the_criterion(model):
    graphs = FakeGraphs()
    criterion = make_criterion()
    graphed = GraphedCriterion(model, make_criterion(), graphs)
    for rows in ([0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 1, 2, 3]):
        batch = make_batch(rows=rows)
        expected_loss, expected_size, expected_logged, expected_gradients = step(
            model, criterion, batch
        )
        loss, sample_size, logged, gradients = step(model, graphed, batch)
        torch.testing.assert_close(loss, expected_loss)
        assert sample_size == expected_size
        assert logged.keys() == expected_logged.keys()
        for name, value in logged.items():
            assert float(value) == pytest.approx(float(expected_logged[name]), rel=1e-6), name
        torch.testing.assert_close(gradients, expected_gradients)
    assert graphs.num_captured == len(graphed._graphs) == 1


def test_the_logged_number_of_tokens_is_that_of_the_batch(model):
    batch = make_batch(rows=[0, 1, 2])
    graphed = GraphedCriterion(model, make_criterion(), FakeGraphs())
    for num_tokens in (batch["ntokens"], batch["ntokens"], batch["ntokens"] - 1):
        batch["ntokens"] = num_tokens
        _, _, logged, _ = step(model, graphed, batch)
        assert logged["ntokens"] == num_tokens


def test_no_more_shapes_than_the_limit_are_captured(model):
    graphs = FakeGraphs()
    graphed = GraphedCriterion(model, make_criterion(), graphs)
    for extra in range(MAX_GRAPHS + 3):
        batch = make_batch(rows=[0, 1], extra=extra)
        for _ in range(OCCURRENCES):
            graphed(model, batch)
    assert graphs.num_captured == MAX_GRAPHS


def test_the_tensors_of_a_batch_are_flattened_and_replaced():
    batch = {"a": torch.ones(1), "inner": {"b": torch.zeros(2), "c": 3}, "d": "text"}
    tensors = flatten(batch)
    assert list(tensors) == ["a", "inner.b"]
    replaced = unflatten(batch, tuple(value + 1 for value in tensors.values()))
    assert replaced["a"].tolist() == [2]
    assert replaced["inner"]["b"].tolist() == [1, 1]
    assert (replaced["inner"]["c"], replaced["d"]) == (3, "text")


def data_with_multiple(pad_multiple, max_positions):
    """20 pairs of up to 19 pieces, padded to a multiple."""
    return SentencePairDataset(
        [corpus("x-y", 20, longest=19)],
        [Masking("one", VOCABULARY)],
        padding_idx=PAD,
        eos_idx=EOS,
        max_positions=max_positions,
        pad_multiple=pad_multiple,
    )


@pytest.mark.parametrize(("max_positions", "allowed_widths"), [(200, {8, 16, 24}), (13, {8, 13})])
def test_both_sides_are_padded_to_one_multiple_within_the_length_limit(
    max_positions, allowed_widths
):
    data = data_with_multiple(8, max_positions)
    for row in range(20):
        batch = data.collater([data[row]])
        widths = {batch["source_tokens"].shape[1], batch["target_tokens"].shape[1]}
        widths.update(tokens.shape[1] for tokens in batch["net_input"].values())
        assert len(widths) == 1
        assert widths <= allowed_widths


@pytest.mark.parametrize("max_positions", [200, 13])
def test_a_batch_that_is_padded_to_a_multiple_differs_only_by_padding(max_positions):
    data = data_with_multiple(8, max_positions)
    unpadded_data = data_with_multiple(1, max_positions)
    for row in range(20):
        batch = data.collater([data[row]])
        unpadded_batch = unpadded_data.collater([unpadded_data[row]])
        for side, tokens in unpadded_batch["net_input"].items():
            padded = batch["net_input"][side]
            width = tokens.shape[1]
            assert torch.equal(padded[:, :width], tokens)
            assert (padded[:, width:] == PAD).all()


@pytest.mark.parametrize("layers", [0, 2])
def test_a_step_on_a_gpu_with_graphs_is_a_step_on_a_cpu(layers, monkeypatch):
    text = [corpus("x-y", 8, longest=19)]
    options = {"padding_idx": PAD, "eos_idx": EOS, "max_positions": 50}
    model = build_model(encoder_layers=layers, dropout=0.0).train()
    results = []
    for pad_multiple, on_cpu in ((1, True), (PAD_MULTIPLE, False)):
        # A GPU encodes both sides together, and it has an attention kernel of its own.
        monkeypatch.setattr(transformer, "on_cpu", lambda _, value=on_cpu: value)
        parts = [Masking("one", VOCABULARY)]
        data = SentencePairDataset(text, parts, pad_multiple=pad_multiple, **options)
        batch = data.collater([data[row] for row in range(8)])
        results.append(step(model, make_criterion(), batch))
    (loss, *_, gradients), (loss_on_gpu, *_, gradients_on_gpu) = results
    torch.testing.assert_close(loss_on_gpu, loss)
    # The losses of a batch are summed up, so that gradients are about 10.
    torch.testing.assert_close(gradients_on_gpu, gradients, rtol=1e-5, atol=1e-4)


def test_hard_negatives_are_padded_to_the_same_multiple():
    parts = [HardNegatives("edit", VOCABULARY.starts_word)]
    text = [corpus("x-y", 20, longest=19)]
    data = SentencePairDataset(
        text, parts, padding_idx=PAD, eos_idx=EOS, max_positions=200, pad_multiple=8
    )
    batch = data.collater([data[row] for row in range(20)])
    assert batch["net_input"]["negative"].shape[1] % 8 == 0


@pytest.mark.parametrize(
    ("options", "has_gpu", "value"),
    [
        ({}, False, "GPU"),
        ({"update_freq": "2"}, True, "--update-freq 2"),
        ({"objective": "mlm"}, True, "--objective mlm"),
    ],
)
def test_runs_that_cannot_use_graphs_are_refused(
    toy_work, tmp_path, monkeypatch, options, has_gpu, value
):
    if has_gpu:
        monkeypatch.setattr(XlingSentTask, "has_gpu", True)
    data_bin = toy_work / "data-bin"
    done = train_here(data_bin, tmp_path / "run", "--cuda-graphs", **options)
    refused(done, "--cuda-graphs", value)
