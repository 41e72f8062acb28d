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


def test_values_worked_out_by_hand():
    # p = (1/2, 1/4, 1/4); q = (1/4, 3/4, 0): KL = 1/4 log(1/2) + 3/4 log 3
    logits = torch.tensor([[2.0, 1.0, 1.0]]).log()
    result = kl_divergence(logits, torch.tensor([[1, 0, 1]]), torch.tensor([[0.5, 0.25, 0.25]]))
    assert result.item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(3))
    # `types`: q = (1/4, 0, 0): 1/4 log(1/4 / (1/2)); a constant on all logits changes nothing
    result = kl_divergence(logits + 5, torch.tensor([[0]]), torch.tensor([[0.25]]))
    assert result.item() == pytest.approx(0.25 * math.log(0.5), abs=1e-6)


def test_one_hot_is_cross_entropy():
    torch.manual_seed(0)
    logits, gold = torch.randn(6, 11), torch.randint(11, (6,))
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
    fast, slow = (
        torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(1)) * 5
        for _ in range(2)
    )
    fast.requires_grad_()
    slow = slow.double().requires_grad_()
    scale = torch.arange(1.0, rows + 1)
    result, expected = kl_divergence(fast, ids, weights), dense_kl(slow, ids, weights)
    torch.testing.assert_close(result, expected.float(), rtol=1e-4, atol=1e-5)
    (result * scale).sum().backward()
    (expected * scale).sum().backward()
    torch.testing.assert_close(fast.grad, slow.grad.float(), rtol=1e-4, atol=1e-5)


def test_chunks_change_nothing(monkeypatch):
    torch.manual_seed(0)
    logits, ids, weights = torch.randn(7, 9), torch.randint(9, (7, 4)), torch.rand(7, 4)
    results = []
    for chunk in (6_000_000, 20, 1):
        monkeypatch.setattr("fairseq_lxsr.losses.divergence.CPU_CHUNK", chunk)
        x = logits.clone().requires_grad_()
        loss = kl_divergence(x, ids, weights)
        results.append((loss.detach(), *torch.autograd.grad(loss.square().sum(), x)))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_give_a_float32_loss(dtype):
    torch.manual_seed(0)
    logits, ids, weights = (
        torch.randn(3, 50).to(dtype).requires_grad_(),
        torch.randint(50, (3, 4)),
        torch.rand(3, 4),
    )
    wide = logits.detach().float().requires_grad_()
    loss, expected = kl_divergence(logits, ids, weights), kl_divergence(wide, ids, weights)
    torch.testing.assert_close(loss, expected)
    loss.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(logits.grad, wide.grad.to(dtype))


def test_gradients_by_finite_differences():
    logits, gold = (
        torch.randn(3, 7, dtype=torch.double, requires_grad=True),
        torch.tensor([0, 6, 2]),
    )
    ids, weights = (
        torch.tensor([[2, 2, 3], [0, 1, 6], [5, 4, 4]]),
        torch.rand(3, 3, dtype=torch.double),
    )
    assert torch.autograd.gradcheck(lambda x: kl_divergence(x, ids, weights), logits)
    assert torch.autograd.gradcheck(lambda x: label_smoothed_cross_entropy(x, gold, 0.1)[0], logits)


def test_padding_entries_change_nothing():
    torch.manual_seed(0)
    logits, ids, weights = torch.randn(2, 9), torch.randint(9, (2, 4)), torch.rand(2, 4)
    padded = kl_divergence(logits, F.pad(ids, (0, 5)), F.pad(weights, (0, 5)))
    torch.testing.assert_close(kl_divergence(logits, ids, weights), padded)


def test_no_mass_no_loss():
    logits = torch.randn(2, 9, requires_grad=True)
    result = kl_divergence(logits, torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3))
    result.sum().backward()
    assert result.tolist() == [0.0, 0.0]
    assert logits.grad.abs().sum() == 0


def test_label_smoothing_worked_out_by_hand():
    # p = (1/2, 1/4, 1/4), gold 0, smoothing 0.2: q = (0.8, 0.1, 0.1)
    logits = torch.tensor([[2.0, 1.0, 1.0]]).log()
    loss, nll = label_smoothed_cross_entropy(logits, torch.tensor([0]), 0.2)
    assert loss.item() == pytest.approx(0.8 * math.log(2) + 0.2 * math.log(4))
    assert nll.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_label_smoothing_equals_fairseq_values_and_gradients(smoothing, dtype, monkeypatch):
    from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

    monkeypatch.setattr("fairseq_lxsr.losses.divergence.CPU_CHUNK", 40)  # several chunks
    torch.manual_seed(0)
    logits = (torch.randn(9, 17) * 3).to(dtype).requires_grad_()
    gold, scale = torch.randint(17, (9,)), torch.arange(1.0, 10)
    wide = logits.detach().float().requires_grad_()
    loss, nll = label_smoothed_cross_entropy(logits, gold, smoothing)
    expected, expected_nll = label_smoothed_nll_loss(
        F.log_softmax(wide, dim=1), gold, smoothing, reduce=False
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, expected_nll)
    (loss * scale).sum().backward()
    (expected * scale).sum().backward()
    torch.testing.assert_close(logits.grad, wide.grad.to(dtype))
