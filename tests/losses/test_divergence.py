import math

import pytest
import torch
import torch.nn.functional as F

from fairseq_lxsr.losses import (
    bag_of_pieces,
    kl_divergence,
    label_smoothed_cross_entropy,
    mix,
    spread,
)

PAD = 1


def dense_kl(logits, ids, weights):
    """Slow reference: build q [R, V] and sum q (log q - log p) over all of it."""
    q = torch.zeros_like(logits).scatter_add_(1, ids, weights.to(logits))
    log_p = F.log_softmax(logits, dim=1)
    return torch.where(q > 0, q * (q.clamp_min(1e-300).log() - log_p), 0).sum(1)


def test_values_equal_those_worked_out_by_hand():
    # p = (1/2, 1/4, 1/4) and q = (1/4, 3/4, 0): KL = 1/4 log(1/2) + 3/4 log 3
    logits = torch.tensor([[2.0, 1.0, 1.0]]).log()
    result = kl_divergence(logits, torch.tensor([[1, 0, 1]]), torch.tensor([[0.5, 0.25, 0.25]]))
    assert result.item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(3))
    # q = (1/4, 0, 0), as with the weighting `types`: KL = 1/4 log(1/4 / (1/2)). Adding a constant
    # to all logits makes no difference.
    result = kl_divergence(logits + 5, torch.tensor([[0]]), torch.tensor([[0.25]]))
    assert result.item() == pytest.approx(0.25 * math.log(0.5), abs=1e-6)


def test_the_divergence_from_a_one_hot_target_is_the_cross_entropy():
    torch.manual_seed(0)
    logits = torch.randn(6, 11)
    gold = torch.randint(11, (6,))
    result = kl_divergence(logits, gold[:, None], torch.ones(6, 1))
    torch.testing.assert_close(result, F.cross_entropy(logits, gold, reduction="none"))


@pytest.mark.parametrize("weighting", ["types", "counts"])
@pytest.mark.parametrize(("rows", "length", "vocab_size"), [(1, 1, 5), (5, 7, 13), (4, 33, 50)])
def test_values_and_gradients_equal_the_dense_reference(rows, length, vocab_size, weighting):
    torch.manual_seed(rows)
    tokens = torch.randint(2, vocab_size, (rows, length))
    tokens[rows // 2, length // 2 + 1 :] = PAD
    hidden = torch.randint(2, vocab_size, (rows, 1))
    hidden[::2] = PAD
    ids, weights = mix(spread(hidden, PAD), bag_of_pieces(tokens, PAD, weighting))
    logits = (torch.randn(rows, vocab_size) * 5).requires_grad_()
    double = logits.detach().double().requires_grad_()
    scale = torch.arange(1.0, rows + 1)
    result = kl_divergence(logits, ids, weights)
    expected = dense_kl(double, ids, weights)
    torch.testing.assert_close(result, expected.float(), rtol=1e-4, atol=1e-5)
    (result * scale).sum().backward()
    (expected * scale).sum().backward()
    torch.testing.assert_close(logits.grad, double.grad.float(), rtol=1e-4, atol=1e-5)


def random_target(rows, vocab_size, pieces):
    """Ids and weights of a sparse target."""
    return torch.randint(vocab_size, (rows, pieces)), torch.rand(rows, pieces)


def test_the_size_of_chunks_makes_no_difference(monkeypatch):
    torch.manual_seed(0)
    logits = torch.randn(7, 9, requires_grad=True)
    ids, weights = random_target(7, 9, 4)
    results = []
    for chunk in (6_000_000, 20, 1):
        monkeypatch.setattr("fairseq_lxsr.losses.divergence.CPU_CHUNK", chunk)
        loss = kl_divergence(logits, ids, weights)
        (gradient,) = torch.autograd.grad(loss.square().sum(), logits)
        results.append((loss.detach(), gradient))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_give_a_float32_loss(dtype):
    torch.manual_seed(0)
    logits = torch.randn(3, 50).to(dtype).requires_grad_()
    float32 = logits.detach().float().requires_grad_()
    ids, weights = random_target(3, 50, 4)
    loss = kl_divergence(logits, ids, weights)
    expected = kl_divergence(float32, ids, weights)
    torch.testing.assert_close(loss, expected)
    loss.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(logits.grad, float32.grad.to(dtype))


def test_gradients_equal_finite_differences():
    logits = torch.randn(3, 7, dtype=torch.double, requires_grad=True)
    gold = torch.tensor([0, 6, 2])
    ids = torch.tensor([[2, 2, 3], [0, 1, 6], [5, 4, 4]])
    weights = torch.rand(3, 3, dtype=torch.double)
    assert torch.autograd.gradcheck(lambda x: kl_divergence(x, ids, weights), logits)
    assert torch.autograd.gradcheck(lambda x: label_smoothed_cross_entropy(x, gold, 0.1)[0], logits)


def test_padding_of_a_target_makes_no_difference():
    torch.manual_seed(0)
    logits = torch.randn(2, 9)
    ids, weights = random_target(2, 9, 4)
    padded = kl_divergence(logits, F.pad(ids, (0, 5)), F.pad(weights, (0, 5)))
    torch.testing.assert_close(kl_divergence(logits, ids, weights), padded)


def test_a_target_without_mass_has_no_loss_and_no_gradient():
    logits = torch.randn(2, 9, requires_grad=True)
    result = kl_divergence(logits, torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3))
    result.sum().backward()
    assert result.tolist() == [0.0, 0.0]
    assert logits.grad.abs().sum() == 0


def test_label_smoothing_equals_values_worked_out_by_hand():
    # p = (1/2, 1/4, 1/4). With gold 0 and smoothing 0.2, q = (0.8, 0.1, 0.1).
    logits = torch.tensor([[2.0, 1.0, 1.0]]).log()
    loss, nll = label_smoothed_cross_entropy(logits, torch.tensor([0]), 0.2)
    assert loss.item() == pytest.approx(0.8 * math.log(2) + 0.2 * math.log(4))
    assert nll.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_label_smoothing_equals_that_of_fairseq_with_gradients(smoothing, dtype, monkeypatch):
    from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

    # With several chunks.
    monkeypatch.setattr("fairseq_lxsr.losses.divergence.CPU_CHUNK", 40)
    torch.manual_seed(0)
    logits = (torch.randn(9, 17) * 3).to(dtype).requires_grad_()
    gold = torch.randint(17, (9,))
    scale = torch.arange(1.0, 10)
    float32 = logits.detach().float().requires_grad_()
    loss, nll = label_smoothed_cross_entropy(logits, gold, smoothing)
    expected, expected_nll = label_smoothed_nll_loss(
        F.log_softmax(float32, dim=1), gold, smoothing, reduce=False
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, expected_nll)
    (loss * scale).sum().backward()
    (expected * scale).sum().backward()
    torch.testing.assert_close(logits.grad, float32.grad.to(dtype))
