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
        shares_of_u = torch.stack([(u[row] * u[column]).sum() for column in rows]).softmax(0)
        shares_of_v = torch.stack([(v[row] * v[column]).sum() for column in rows]).softmax(0)
        for column in rows:
            difference = shares_of_u[column] - shares_of_v[column]
            loss = loss - torch.log(torch.cos(math.pi / 2 * difference))
    return loss


def test_the_value_equals_one_worked_out_by_hand():
    # All inner products of u are 0, so their softmax is 1/2 everywhere.
    u = torch.zeros(2, 2)
    # The inner products of v are [[log 3, 0], [0, 0]], so the softmax of the rows is
    # [[3/4, 1/4], [1/2, 1/2]].
    v = torch.tensor([[math.log(3) ** 0.5, 0.0], [0.0, 0.0]])

    loss = similarity_loss(u, v)

    # Two entries differ by 1/4.
    expected = -2 * math.log(math.cos(math.pi / 2 * 1 / 4))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_embeddings_and_a_rotation_of_them_is_zero():
    u = torch.randn(5, 4)
    # The Q of a QR decomposition is orthogonal.
    rotation, _ = torch.linalg.qr(torch.randn(4, 4))
    v = u @ rotation
    assert similarity_loss(u, v).item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("pairs", [1, 2, 5])
def test_values_and_gradients_equal_the_slow_reference(pairs):
    torch.manual_seed(pairs)
    u, v = (torch.randn(pairs, 3, dtype=torch.double, requires_grad=True) for _ in range(2))
    assert_same_with_gradients(similarity_loss(u, v), slow_similarity(u, v), (u, v))


def test_the_loss_of_differences_near_one_is_exact():
    """An entry counts -log cos(pi/2 x difference), which a limit would make smaller."""
    # The first row of inner products is (12, 0) in u, and (4/3, 4/3 + 12) in v.
    u = (12**0.5 * torch.eye(2)).double()
    v = torch.tensor([[0.0, 0.1], [0.0, 1.0]]).double() * (12 / 0.09) ** 0.5

    loss = similarity_loss(u, v)

    expected = slow_similarity(u, v)
    # A limit of 1e-4 for the cosine of the two entries would matter.
    assert expected > -2 * math.log(1e-4)
    torch.testing.assert_close(loss, expected)


# With the last two, the softmax of the similarities is exactly 0 or 1 in float32.
@pytest.mark.parametrize("length", [1.0, 100.0, 1e4])
def test_loss_and_gradients_are_finite_if_a_sentence_has_another_neighbour_in_each_language(length):
    # In u, every sentence is nearest to itself; in v, the first is nearest to the second.
    u = torch.eye(3) * length
    v = torch.tensor([[0.0, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) * length
    u.requires_grad_()
    v.requires_grad_()

    loss = similarity_loss(u, v)

    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(u.grad).all()
    assert torch.isfinite(v.grad).all()
