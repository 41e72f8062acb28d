import math

import pytest
import torch
from same_gradients import assert_same_with_gradients

from fairseq_lxsr.losses import similarity_loss


def slow_similarity(u, v):
    total = u.new_zeros(())
    for i in range(len(u)):
        a = torch.stack([(u[i] * u[j]).sum() for j in range(len(u))]).softmax(0)
        c = torch.stack([(v[i] * v[j]).sum() for j in range(len(v))]).softmax(0)
        for j in range(len(u)):
            total = total - torch.log(torch.cos(math.pi / 2 * (a[j] - c[j])))
    return total


def test_value_worked_out_by_hand():
    # u u^T = 0, so A = 1/2 everywhere; v v^T = [[log 3, 0], [0, 0]], so C = [[3/4, 1/4], [1/2,
    # 1/2]]
    u, v = torch.zeros(2, 2), torch.tensor([[math.log(3) ** 0.5, 0.0], [0.0, 0.0]])
    assert similarity_loss(u, v).item() == pytest.approx(
        -2 * math.log(math.cos(math.pi / 8)), rel=1e-5
    )


def test_equal_geometry_costs_nothing():
    u = torch.randn(5, 4)
    rotation, _ = torch.linalg.qr(torch.randn(4, 4))
    assert similarity_loss(u, u @ rotation).item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("pairs", [1, 2, 5])
def test_values_and_gradients_equal_the_slow_reference(pairs):
    torch.manual_seed(pairs)
    u, v = (torch.randn(pairs, 3, dtype=torch.double, requires_grad=True) for _ in range(2))
    assert_same_with_gradients(similarity_loss(u, v), slow_similarity(u, v), (u, v))


def test_the_limit_leaves_differences_near_one_alone():
    u, v = (
        (12**0.5 * torch.eye(2)).double(),
        torch.tensor([[0.0, 0.1], [0.0, 1.0]]).double() * (12 / 0.09) ** 0.5,
    )
    expected = slow_similarity(u, v)
    assert expected > -math.log(1e-4)
    torch.testing.assert_close(similarity_loss(u, v), expected)


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
def test_finite_where_the_difference_reaches_one(size):
    # u: every sentence is nearest to itself; v: the first two swap their neighbours
    u = torch.eye(3) * size
    v = torch.tensor([[0.0, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) * size
    u.requires_grad_()
    v.requires_grad_()
    loss = similarity_loss(u, v)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(u.grad).all()
    assert torch.isfinite(v.grad).all()
