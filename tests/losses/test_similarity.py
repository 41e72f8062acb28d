import math

import pytest
import torch
from same_gradients import assert_same_with_gradients

from fairseq_lxsr.losses import similarity_loss


def slow_similarity(u, v):
    """One row, and one pair of rows, at a time."""
    loss = u.new_zeros(())
    rows = range(len(u))
    for row in rows:
        of_u = torch.stack([(u[row] * u[column]).sum() for column in rows]).softmax(0)
        of_v = torch.stack([(v[row] * v[column]).sum() for column in rows]).softmax(0)
        for column in rows:
            loss = loss - torch.log(torch.cos(math.pi / 2 * (of_u[column] - of_v[column])))
    return loss


def test_the_value_equals_one_worked_out_by_hand():
    # u u^T = 0, so A = 1/2 everywhere.
    u = torch.zeros(2, 2)
    # v v^T = [[log 3, 0], [0, 0]], so C = [[3/4, 1/4], [1/2, 1/2]].
    v = torch.tensor([[math.log(3) ** 0.5, 0.0], [0.0, 0.0]])
    expected = -2 * math.log(math.cos(math.pi / 8))
    assert similarity_loss(u, v).item() == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_a_rotation_is_zero():
    u = torch.randn(5, 4)
    rotation, _ = torch.linalg.qr(torch.randn(4, 4))
    assert similarity_loss(u, u @ rotation).item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("pairs", [1, 2, 5])
def test_values_and_gradients_equal_the_slow_reference(pairs):
    torch.manual_seed(pairs)
    u, v = (torch.randn(pairs, 3, dtype=torch.double, requires_grad=True) for _ in range(2))
    assert_same_with_gradients(similarity_loss(u, v), slow_similarity(u, v), (u, v))


def test_differences_near_one_are_not_limited():
    u = (12**0.5 * torch.eye(2)).double()
    v = torch.tensor([[0.0, 0.1], [0.0, 1.0]]).double() * (12 / 0.09) ** 0.5
    expected = slow_similarity(u, v)
    assert expected > -math.log(1e-4)
    torch.testing.assert_close(similarity_loss(u, v), expected)


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
def test_loss_and_gradients_are_finite_if_a_difference_is_one(size):
    # In u, every sentence is nearest to itself; in v, the first is nearest to the second.
    u = torch.eye(3) * size
    v = torch.tensor([[0.0, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) * size
    u.requires_grad_()
    v.requires_grad_()
    loss = similarity_loss(u, v)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(u.grad).all()
    assert torch.isfinite(v.grad).all()
