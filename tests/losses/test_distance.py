import math
from functools import partial

import pytest
import torch
from same_gradients import assert_same_with_gradients

from fairseq_lxsr.losses import alignment_loss, distance_constraint, draw_negatives
from fairseq_lxsr.losses.distance import DISTANCES, SMALLEST_NORM, _Distances


def slow_constraint(u, v, distance, margin, negatives):
    """The formula of the paper, one sentence and one draw at a time."""
    pair = 0
    negative = 0
    number_of_draws = negatives.shape[1]
    for row in range(len(u)):
        distance_of_pair = distance(u[row], v[row])
        pair += distance_of_pair
        for draw in range(number_of_draws):
            negative_v = v[negatives[0, draw, row]]
            negative_u = u[negatives[1, draw, row]]
            negative += max(0, margin + distance_of_pair - distance(u[row], negative_v))
            negative += max(0, margin + distance_of_pair - distance(v[row], negative_u))
    return pair, negative / number_of_draws


def constraint_of_two_pairs(u, v, metric, margin, draws=1):
    """The loss of the pairs and that of the negatives; each sentence has the other as its negative."""
    negatives = torch.tensor([1, 0]).expand(2, draws, 2)
    u = torch.tensor(u, dtype=torch.float32)
    v = torch.tensor(v, dtype=torch.float32)
    pair, negative = distance_constraint(u, v, metric=metric, margin=margin, negatives=negatives)
    return pair.item(), negative.item()


def sum_of_hinges(margin, u1v1, u1v2, u2v1, u2v2):
    """The loss of the negatives of two pairs; u1v2 is the distance of u1 from v2."""
    return (
        max(0, margin + u1v1 - u1v2)
        + max(0, margin + u2v2 - u2v1)
        + max(0, margin + u1v1 - u2v1)
        + max(0, margin + u2v2 - u1v2)
    )


@pytest.mark.parametrize(
    ("margin", "violation"),
    [(0.5, 0), (0.7, 0.2)],
    ids=["kept", "violated"],
)
def test_the_loss_of_negatives_is_how_much_they_violate_the_margin(margin, violation):
    # The mean norm is 4, so the distance of u1 and v2, and of u2 and v1, is 2 / 4 = 0.5.
    u = v = [[3, 0], [5, 0]]

    pair, negative = constraint_of_two_pairs(u, v, "norm", margin)

    # A distance of zero is exact.
    assert pair == 0
    # Two sentences in both directions.
    assert negative == pytest.approx(4 * violation, abs=1e-6)


def test_the_loss_of_negatives_is_the_mean_over_draws():
    # The norms 1, 2, 2 and 3 have the mean 2.
    u1v1 = u2v2 = 1 / 2
    u1v2 = 2 / 2
    u2v1 = 0

    pair, negative = constraint_of_two_pairs(
        u=[[1], [2]], v=[[2], [3]], metric="norm", margin=0.25, draws=3
    )

    assert pair == pytest.approx(u1v1 + u2v2)
    # The three draws are equal, so their mean is the loss of one.
    expected = sum_of_hinges(0.25, u1v1, u1v2, u2v1, u2v2)
    assert negative == pytest.approx(expected, rel=1e-5)


def test_norm_of_mean_equals_values_worked_out_by_hand():
    # The mean of (2, 0) and (0, 2) is (1, 1), that of (5, 0) and (1, 0) is (3, 0).
    unit = (2**0.5 + 3) / 2
    u1v1 = 3 / unit
    u2v2 = 5**0.5 / unit
    u1v2 = 1 / unit
    u2v1 = 29**0.5 / unit

    pair, negative = constraint_of_two_pairs(
        u=[[2, 0], [0, 2]], v=[[5, 0], [1, 0]], metric="norm_of_mean", margin=0.5
    )

    assert pair == pytest.approx(u1v1 + u2v2, rel=1e-5)
    expected = sum_of_hinges(0.5, u1v1, u1v2, u2v1, u2v2)
    assert negative == pytest.approx(expected, rel=1e-5)


def test_angular_distances_equal_values_worked_out_by_hand():
    # Only u1 lies on the first axis. Its right angle with the others is half of pi.
    u1v1 = u1v2 = 1 / 2
    u2v1 = u2v2 = 0

    pair, negative = constraint_of_two_pairs(
        u=[[1, 0], [0, 2]], v=[[0, 3], [0, 1]], metric="angular", margin=0.5
    )

    assert pair == pytest.approx(u1v1 + u2v2, rel=1e-5)
    expected = sum_of_hinges(0.5, u1v1, u1v2, u2v1, u2v2)
    assert negative == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize(("pairs", "draws"), [(2, 1), (5, 3), (7, 20)])
def test_values_equal_the_formula_of_the_paper(metric, pairs, draws):
    torch.manual_seed(pairs)
    u, v = torch.randn(2, pairs, 4, dtype=torch.double)
    negatives = draw_negatives(draws, pairs, u.device)

    losses = distance_constraint(u, v, metric=metric, negatives=negatives)

    mean_norm = torch.cat((u, v)).norm(dim=1).mean() + SMALLEST_NORM
    norm_of_mean = (u.mean(dim=0).norm() + v.mean(dim=0).norm()) / 2 + SMALLEST_NORM
    distance = {
        "norm": lambda x, y: (x - y).norm() / mean_norm,
        "norm_of_mean": lambda x, y: (x - y).norm() / norm_of_mean,
        "angular": lambda x, y: torch.arccos(torch.cosine_similarity(x, y, dim=0)) / math.pi,
    }[metric]
    default_margin = 0.5
    expected = slow_constraint(u, v, distance, default_margin, negatives)
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize("draws", [3, None], ids=["drawn", "all"])
def test_gradients_equal_finite_differences(metric, draws):
    torch.manual_seed(0)
    u, v = (torch.randn(4, 3, dtype=torch.double).requires_grad_() for _ in range(2))
    negatives = None
    if draws is not None:
        negatives = draw_negatives(draws, 4, u.device)

    loss = partial(distance_constraint, metric=metric, margin=0.3, negatives=negatives)

    assert torch.autograd.gradcheck(loss, (u, v))


def test_gradients_of_distances_equal_those_of_torch_cdist():
    torch.manual_seed(0)
    u = torch.randn(5, 8)
    v = torch.randn(7, 8)
    # Two equal vectors, between which there is no direction.
    v[2] = u[3]
    u.requires_grad_()
    v.requires_grad_()
    # Random weights of the sum, so that every distance has a gradient of its own.
    weights = torch.randn(5, 7)

    loss = (_Distances.apply(u, v) * weights).sum()

    expected = (torch.cdist(u, v) * weights).sum()
    assert_same_with_gradients(loss, expected, (u, v))


def test_gradients_inside_autocast_are_those_of_float32():
    torch.manual_seed(0)
    u, v = (torch.randn(5, 8, requires_grad=True) for _ in range(2))

    with torch.autocast("cpu", torch.bfloat16):
        gradients = torch.autograd.grad(sum(distance_constraint(u, v)), (u, v))

    expected = torch.autograd.grad(sum(distance_constraint(u, v)), (u, v))
    torch.testing.assert_close(gradients, expected, rtol=0, atol=0)


def test_a_detached_scale_has_the_same_value_and_the_gradient_of_a_constant():
    torch.manual_seed(0)
    u, v = (torch.randn(5, 3, dtype=torch.double).requires_grad_() for _ in range(2))
    negatives = draw_negatives(4, 5, u.device)

    attached = sum(distance_constraint(u, v, negatives=negatives))
    detached = sum(distance_constraint(u, v, negatives=negatives, detach_scale=True))

    torch.testing.assert_close(attached, detached)
    # The reference with a scale that is a constant.
    scale = (torch.cat((u, v)).norm(dim=1).mean() + SMALLEST_NORM).detach()
    expected = sum(slow_constraint(u, v, lambda x, y: (x - y).norm() / scale, 0.5, negatives))
    expected_gradients = torch.autograd.grad(expected, (u, v))
    torch.testing.assert_close(torch.autograd.grad(detached, (u, v)), expected_gradients)
    # Otherwise, the scale has a gradient, too.
    attached_gradients = torch.autograd.grad(attached, (u, v))
    assert not torch.allclose(attached_gradients[0], expected_gradients[0])


@pytest.mark.parametrize("metric", DISTANCES)
def test_the_loss_with_all_negatives_equals_the_mean_over_many_draws(metric):
    torch.manual_seed(0)
    u, v = torch.randn(2, 6, 4)
    draws = draw_negatives(20_000, 6, u.device)
    _, loss_of_all = distance_constraint(u, v, metric=metric)
    _, mean_of_draws = distance_constraint(u, v, metric=metric, negatives=draws)
    assert mean_of_draws.item() == pytest.approx(loss_of_all.item(), rel=0.01)


def test_drawn_negatives_are_permutations_without_fixed_points():
    torch.manual_seed(0)
    negatives = draw_negatives(3000, 5, torch.device("cpu"))
    # Two directions.
    assert negatives.shape == (2, 3000, 5)
    assert (negatives.sort(dim=-1).values == torch.arange(5)).all()
    assert (negatives != torch.arange(5)).all()


def test_all_other_sentences_are_drawn_as_often():
    torch.manual_seed(0)
    negatives = draw_negatives(3000, 5, torch.device("cpu"))
    # How often each of the five sentences (rows) has each of the five (columns) as its negative.
    share = torch.nn.functional.one_hot(negatives[0]).float().mean(dim=0)
    is_other_sentence = ~torch.eye(5, dtype=torch.bool)
    assert (share[is_other_sentence] - 1 / 4).abs().max() < 0.03


def test_the_negatives_of_the_two_directions_are_drawn_independently():
    torch.manual_seed(0)
    source_negatives, target_negatives = draw_negatives(3000, 5, torch.device("cpu"))
    # Five sentences have 4! = 24 cycles, so equal draws are one of 24.
    share_of_equal_draws = (source_negatives == target_negatives).all(dim=1).float().mean()
    assert share_of_equal_draws < 0.1


def test_two_sentences_are_the_negatives_of_each_other():
    negatives = draw_negatives(2, 2, torch.device("cpu"))
    # Two directions with two draws each.
    assert negatives.tolist() == [[[1, 0], [1, 0]], [[1, 0], [1, 0]]]


@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize(
    ("u", "v"),
    [
        (torch.ones(1, 3), torch.zeros(1, 3)),
        (torch.ones(3, 3), torch.ones(3, 3)),
        (torch.zeros(3, 3), torch.zeros(3, 3)),
        (torch.ones(2, 3), -torch.ones(2, 3)),
    ],
    ids=["one pair", "equal", "zero", "opposite"],
)
def test_loss_and_gradients_of_special_embeddings_are_finite(metric, u, v):
    """Where a norm, a distance or a sine has no derivative."""
    u = u.clone().requires_grad_()
    v = v.clone().requires_grad_()

    loss = sum(distance_constraint(u, v, metric=metric))

    loss.backward()
    assert loss.isfinite()
    assert u.grad.isfinite().all()
    assert v.grad.isfinite().all()


@pytest.mark.parametrize("metric", DISTANCES)
def test_the_loss_of_negatives_of_a_single_pair_is_zero(metric):
    _, negative = distance_constraint(torch.ones(1, 3), torch.zeros(1, 3), metric=metric)
    assert negative == 0


@pytest.mark.parametrize(
    "shape_of_v", [(3, 9), (4, 8)], ids=["other width", "other number of sentences"]
)
@pytest.mark.parametrize("loss", [distance_constraint, alignment_loss])
def test_sides_of_different_shapes_are_refused(loss, shape_of_v):
    u = torch.ones(3, 8)
    with pytest.raises(ValueError, match=r"u \(3, 8\)"):
        loss(u, torch.ones(shape_of_v))
