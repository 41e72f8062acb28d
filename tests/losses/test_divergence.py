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


# Logits of the probabilities p = (1/2, 1/4, 1/4).
LOGITS = torch.tensor([[2.0, 1.0, 1.0]]).log()


def test_the_value_equals_one_worked_out_by_hand():
    # Entries of the same piece are added: q = (1/4, 3/4, 0).
    ids = torch.tensor([[1, 0, 1]])
    weights = torch.tensor([[0.5, 0.25, 0.25]])

    divergence = kl_divergence(LOGITS, ids, weights)

    # The sum of q log(q / p).
    expected = 1 / 4 * math.log((1 / 4) / (1 / 2)) + 3 / 4 * math.log((3 / 4) / (1 / 4))
    assert divergence.item() == pytest.approx(expected)


def test_the_target_may_sum_to_less_than_one():
    """As with the weighting `types`: here q = (1/4, 0, 0)."""
    divergence = kl_divergence(LOGITS, torch.tensor([[0]]), torch.tensor([[0.25]]))
    # The sum of q log(q / p).
    expected = 1 / 4 * math.log((1 / 4) / (1 / 2))
    assert divergence.item() == pytest.approx(expected)


def test_a_constant_added_to_all_logits_makes_no_difference():
    ids = torch.tensor([[0]])
    weights = torch.tensor([[0.25]])
    divergence = kl_divergence(LOGITS + 5, ids, weights)
    torch.testing.assert_close(divergence, kl_divergence(LOGITS, ids, weights))


def test_the_divergence_from_a_one_hot_target_is_the_cross_entropy():
    torch.manual_seed(0)
    logits = torch.randn(6, 11)
    gold = torch.randint(11, (6,))

    divergence = kl_divergence(logits, ids=gold[:, None], weights=torch.ones(6, 1))

    torch.testing.assert_close(divergence, F.cross_entropy(logits, gold, reduction="none"))


@pytest.mark.parametrize("weighting", ["types", "counts"])
@pytest.mark.parametrize(("rows", "length", "vocab_size"), [(1, 1, 5), (5, 7, 13), (4, 33, 50)])
def test_values_and_gradients_equal_the_dense_reference(rows, length, vocab_size, weighting):
    """The targets are those of the generative objective `ugt`."""
    torch.manual_seed(rows)
    # The pieces of the translations, one of which is shorter.
    tokens = torch.randint(2, vocab_size, (rows, length))
    tokens[rows // 2, length // 2 + 1 :] = PAD
    # Every second sentence has a masked piece.
    masked_pieces = torch.randint(2, vocab_size, (rows, 1))
    masked_pieces[::2] = PAD
    ids, weights = mix(spread(masked_pieces, PAD), bag_of_pieces(tokens, PAD, weighting))
    logits = (torch.randn(rows, vocab_size) * 5).requires_grad_()

    divergence = kl_divergence(logits, ids, weights)

    double_logits = logits.detach().double().requires_grad_()
    expected = dense_kl(double_logits, ids, weights)
    torch.testing.assert_close(divergence, expected.float(), rtol=1e-4, atol=1e-5)
    # The rows have different factors, so that gradients of wrong rows would differ.
    factors = torch.arange(1.0, rows + 1)
    (divergence * factors).sum().backward()
    (expected * factors).sum().backward()
    torch.testing.assert_close(logits.grad, double_logits.grad.float(), rtol=1e-4, atol=1e-5)


def random_target(rows, vocab_size, pieces):
    """Ids and weights of a sparse target, both [rows, pieces]."""
    ids = torch.randint(vocab_size, (rows, pieces))
    weights = torch.rand(rows, pieces)
    return ids, weights


@pytest.mark.parametrize("chunk", [20, 1], ids=["two rows at once", "one row at once"])
def test_computing_in_chunks_gives_the_values_and_gradients_of_the_whole(chunk, monkeypatch):
    torch.manual_seed(0)
    rows = 7
    vocab_size = 9
    logits = torch.randn(rows, vocab_size, requires_grad=True)
    ids, weights = random_target(rows, vocab_size, pieces=4)
    # The usual chunk has room for all rows.
    expected = kl_divergence(logits, ids, weights)
    expected_gradient = torch.autograd.grad(expected.square().sum(), logits)

    # The number of values in a chunk.
    monkeypatch.setattr("fairseq_lxsr.losses.divergence.CPU_CHUNK", chunk)
    loss = kl_divergence(logits, ids, weights)
    gradient = torch.autograd.grad(loss.square().sum(), logits)

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_give_the_loss_of_float32_and_gradients_of_their_own_type(dtype):
    torch.manual_seed(0)
    logits = torch.randn(3, 50).to(dtype).requires_grad_()
    float32_logits = logits.detach().float().requires_grad_()
    ids, weights = random_target(3, 50, pieces=4)

    loss = kl_divergence(logits, ids, weights)

    expected = kl_divergence(float32_logits, ids, weights)
    assert expected.dtype == torch.float32
    # `assert_close` also compares the types.
    torch.testing.assert_close(loss, expected)
    loss.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(logits.grad, float32_logits.grad.to(dtype))


def test_gradients_of_the_divergence_equal_finite_differences():
    logits = torch.randn(3, 7, dtype=torch.double, requires_grad=True)
    # The first and the last row have two entries of the same piece.
    ids = torch.tensor([[2, 2, 3], [0, 1, 6], [5, 4, 4]])
    weights = torch.rand(3, 3, dtype=torch.double)
    assert torch.autograd.gradcheck(lambda x: kl_divergence(x, ids, weights), logits)


def test_gradients_of_label_smoothing_equal_finite_differences():
    logits = torch.randn(3, 7, dtype=torch.double, requires_grad=True)
    gold = torch.tensor([0, 6, 2])

    def smoothed_loss(logits):
        loss, _ = label_smoothed_cross_entropy(logits, gold, 0.1)
        return loss

    assert torch.autograd.gradcheck(smoothed_loss, logits)


def test_padding_of_a_target_makes_no_difference():
    torch.manual_seed(0)
    logits = torch.randn(2, 9)
    ids, weights = random_target(2, 9, pieces=4)
    # Five entries of weight zero in each row.
    padded_ids = F.pad(ids, (0, 5))
    padded_weights = F.pad(weights, (0, 5))

    divergence = kl_divergence(logits, padded_ids, padded_weights)

    torch.testing.assert_close(divergence, kl_divergence(logits, ids, weights))


def test_loss_and_gradient_of_a_target_without_mass_are_zero():
    logits = torch.randn(2, 9, requires_grad=True)
    ids = torch.zeros(2, 3, dtype=torch.long)
    weights = torch.zeros(2, 3)

    divergence = kl_divergence(logits, ids, weights)

    divergence.sum().backward()
    assert divergence.tolist() == [0.0, 0.0]
    assert logits.grad.abs().sum() == 0


def test_label_smoothing_equals_values_worked_out_by_hand():
    gold = torch.tensor([0])

    loss, without_smoothing = label_smoothed_cross_entropy(LOGITS, gold, smoothing=0.2)

    # p = (1/2, 1/4, 1/4) and q = (0.8, 0.1, 0.1): the sum of -q log p.
    assert loss.item() == pytest.approx(0.8 * math.log(2) + 2 * 0.1 * math.log(4))
    assert without_smoothing.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_label_smoothing_equals_that_of_fairseq_with_gradients(smoothing, dtype, monkeypatch):
    from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

    rows = 9
    vocab_size = 17
    # Chunks of two rows, so that there are several.
    monkeypatch.setattr("fairseq_lxsr.losses.divergence.CPU_CHUNK", 2 * vocab_size)
    torch.manual_seed(0)
    logits = (torch.randn(rows, vocab_size) * 3).to(dtype).requires_grad_()
    gold = torch.randint(vocab_size, (rows,))

    loss, without_smoothing = label_smoothed_cross_entropy(logits, gold, smoothing)

    float32_logits = logits.detach().float().requires_grad_()
    expected, expected_without_smoothing = label_smoothed_nll_loss(
        F.log_softmax(float32_logits, dim=1), gold, smoothing, reduce=False
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(without_smoothing, expected_without_smoothing)
    # The rows have different factors, so that gradients of wrong rows would differ.
    factors = torch.arange(1.0, rows + 1)
    (loss * factors).sum().backward()
    (expected * factors).sum().backward()
    torch.testing.assert_close(logits.grad, float32_logits.grad.to(dtype))
