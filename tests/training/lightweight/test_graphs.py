"""Batches as CUDA graphs: what a graph is given, and what it returns, without a GPU."""

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


class Memory:
    """Runs a module as a graph does: it reads and writes the same memory in each call."""

    def __init__(self):
        self.captured = 0

    def __call__(self, module, inputs):
        self.captured += 1
        module(*inputs)
        logged = None

        def run(*tensors):
            nonlocal logged
            for own, value in zip(inputs, tensors, strict=True):
                own.copy_(value)
            loss, values = module(*inputs)
            logged = values if logged is None else logged.copy_(values)
            return loss, logged

        return run


@pytest.fixture
def model():
    return make_model().train()


def of_batches(model, criterion, batches):
    """Losses, logged values and gradients of one batch after the other."""
    results = []
    for batch in batches:
        model.zero_grad()
        loss, size, logged = criterion(model, batch)
        loss.backward()
        gradients = [weight.grad.clone() for weight in model.parameters()]
        results.append((loss.detach().clone(), size, logged, gradients))
    return results


def test_losses_logs_and_gradients_are_those_of_the_criterion(model):
    batches = [make_batch(rows=rows) for rows in ([0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 1, 2, 3])]
    memory = Memory()
    graphed = GraphedCriterion(model, make_criterion(), memory)
    expected = of_batches(model, make_criterion(), batches)
    for (loss, size, logged, gradients), true in zip(
        of_batches(model, graphed, batches), expected, strict=True
    ):
        torch.testing.assert_close(loss, true[0])
        assert size == true[1]
        assert logged.keys() == true[2].keys()
        for name, value in logged.items():
            assert float(value) == pytest.approx(float(true[2][name]), rel=1e-6), name
        torch.testing.assert_close(gradients, true[3])
    assert memory.captured == graphed.num_graphs == 1


def test_the_number_of_pieces_is_that_of_the_batch(model):
    first, second = make_batch(rows=[0, 1, 2]), make_batch(rows=[0, 1, 2])
    second["ntokens"] = first["ntokens"] - 1
    graphed = GraphedCriterion(model, make_criterion(), Memory())
    logs = [
        logged["ntokens"] for _, _, logged, _ in of_batches(model, graphed, [first, first, second])
    ]
    assert logs == [first["ntokens"]] * 2 + [second["ntokens"]]


def test_rare_shapes_and_shapes_beyond_the_limit_are_not_captured(model):
    memory = Memory()
    graphed = GraphedCriterion(model, make_criterion(), memory)
    for extra in range(MAX_GRAPHS + 3):
        batch = make_batch(rows=[0, 1], extra=extra)
        for _ in range(OCCURRENCES):
            graphed(model, batch)
    assert memory.captured == MAX_GRAPHS


def test_a_batch_is_taken_apart_and_put_together():
    batch = {"a": torch.ones(1), "inner": {"b": torch.zeros(2), "c": 3}, "d": "text"}
    tensors = flatten(batch)
    assert list(tensors) == ["a", "inner.b"]
    again = unflatten(batch, tuple(value + 1 for value in tensors.values()))
    assert again["inner"]["b"].tolist() == [1, 1]
    assert (again["inner"]["c"], again["d"]) == (3, "text")


def test_both_sides_have_one_width_and_no_more_pieces_than_the_model():
    parts = [Masking("one", VOCABULARY)]
    options = {"padding_idx": PAD, "eos_idx": EOS}
    text = [corpus("x-y", 20, longest=19)]
    for limit, widths in ((200, {8, 16, 24}), (13, {8, 13})):
        data = SentencePairDataset(text, parts, max_positions=limit, pad_multiple=8, **options)
        plain = SentencePairDataset(text, parts, max_positions=limit, **options)
        for row in range(20):
            batch = data.collater([data[row]])
            shapes = {batch[name].shape[1] for name in ("source_tokens", "target_tokens")} | {
                value.shape[1] for value in batch["net_input"].values()
            }
            assert len(shapes) == 1
            assert shapes <= widths
            narrow = plain.collater([plain[row]])
            for side, tokens in narrow["net_input"].items():
                wide = batch["net_input"][side]
                assert torch.equal(wide[:, : tokens.shape[1]], tokens)
                assert (wide[:, tokens.shape[1] :] == PAD).all()


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
        results += of_batches(model, make_criterion(), [batch])
    (loss, *_, gradients), (loss_on_gpu, *_, gradients_on_gpu) = results
    torch.testing.assert_close(loss_on_gpu, loss)
    # The losses of a batch are summed up, so that gradients are about 10.
    torch.testing.assert_close(gradients_on_gpu, gradients, rtol=1e-5, atol=1e-4)


def test_hard_negatives_are_padded_alike():
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
def test_runs_that_graphs_do_not_suit_are_refused(
    toy_work, tmp_path, monkeypatch, options, has_gpu, value
):
    if has_gpu:
        monkeypatch.setattr(XlingSentTask, "has_gpu", True)
    data_bin = toy_work / "data-bin"
    done = train_here(data_bin, tmp_path / "run", "--cuda-graphs", **options)
    refused(done, "--cuda-graphs", value)
