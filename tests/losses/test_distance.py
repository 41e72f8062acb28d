import math
from functools import partial

import pytest
import torch
from same_gradients import assert_same_with_gradients

from fairseq_lxsr.losses import alignment_loss, distance_constraint, draw_negatives
from fairseq_lxsr.losses.distance import DISTANCES, _Distances


def slow_constraint(u, v, distance, margin, negatives):
    """The formula as printed, one sentence and one draw at a time."""
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


# For `norm_of_mean`: the mean of (2, 0) and (0, 2) has the norm sqrt 2, that of (5, 0) and (1, 0)
# has the norm 3, and the distances are divided by the mean of the two.
MEAN_NORM = (2**0.5 + 3) / 2
# |u1 - v1| = 3, |u2 - v2| = sqrt 5, |u1 - v2| = 1, |u2 - v1| = sqrt 29
SUM_OF_PAIRS = (3 + 5**0.5) / MEAN_NORM
SUM_OF_HINGES = (
    max(0, 0.5 + (3 - 1) / MEAN_NORM)
    + max(0, 0.5 + (5**0.5 - 29**0.5) / MEAN_NORM)
    + max(0, 0.5 + (3 - 29**0.5) / MEAN_NORM)
    + max(0, 0.5 + (5**0.5 - 1) / MEAN_NORM)
)


@pytest.mark.parametrize(
    ("metric", "margin", "draws", "u", "v", "pair", "negative"),
    [
        # The norms 3, 5, 3, 5 have the mean 4. d(u1, v1) = d(u2, v2) = 0, and d(u1, v2) =
        # d(u2, v1) = 2 / 4: a margin of 0.5 is kept, one of 0.7 is violated by 0.2, by two
        # sentences in both directions.
        ("norm", 0.5, 1, [[3, 0], [5, 0]], [[3, 0], [5, 0]], 0, 0),
        ("norm", 0.7, 1, [[3, 0], [5, 0]], [[3, 0], [5, 0]], 0, 4 * 0.2),
        # The norms 1, 2, 2, 3 have the mean 2. d(u1, v1) = d(u2, v2) = 1/2, d(u1, v2) = 1, and
        # d(u2, v1) = 0. u1 against v2 and v2 against u1: 1/4 + 1/2 - 1 < 0; u2 against v1 and v1
        # against u2: 1/4 + 1/2 - 0.
        ("norm", 0.25, 3, [[1], [2]], [[2], [3]], 1, 2 * 0.75),
        ("norm_of_mean", 0.5, 1, [[2, 0], [0, 2]], [[5, 0], [1, 0]], SUM_OF_PAIRS, SUM_OF_HINGES),
        # A quarter of a turn is half of pi. u1 against v2: 1/2 + 1/2 - 1/2; u2 against v1:
        # 1/2 + 0 - 0; v1 against u2: 1/2 + 1/2 - 0; v2 against u1: 1/2 + 0 - 1/2.
        ("angular", 0.5, 1, [[1, 0], [0, 2]], [[0, 3], [0, 1]], 0.5, 0.5 + 0.5 + 1.0 + 0.0),
    ],
)
def test_values_equal_those_worked_out_by_hand(metric, margin, draws, u, v, pair, negative):
    negatives = torch.tensor([1, 0]).expand(2, draws, 2)
    u = torch.tensor(u, dtype=torch.float32)
    v = torch.tensor(v, dtype=torch.float32)
    terms = distance_constraint(u, v, metric=metric, margin=margin, negatives=negatives)
    assert [term.item() for term in terms] == pytest.approx([pair, negative], rel=1e-5, abs=1e-6)
    # A distance of zero is exact.
    assert (terms[0] == 0) == (pair == 0)


@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize(("pairs", "draws"), [(2, 1), (5, 3), (7, 20)])
def test_values_equal_the_formula_as_printed(metric, pairs, draws):
    torch.manual_seed(pairs)
    u, v = torch.randn(2, pairs, 4, dtype=torch.double)
    negatives = draw_negatives(draws, pairs, u.device)
    scale = torch.cat((u, v)).norm(dim=1).mean() + 1e-6
    of_mean = (u.mean(dim=0).norm() + v.mean(dim=0).norm()) / 2 + 1e-6
    by_formula = {
        "norm": lambda x, y: (x - y).norm() / scale,
        "norm_of_mean": lambda x, y: (x - y).norm() / of_mean,
        "angular": lambda x, y: torch.arccos(torch.cosine_similarity(x, y, dim=0)) / math.pi,
    }
    result = distance_constraint(u, v, metric=metric, negatives=negatives)
    torch.testing.assert_close(result, slow_constraint(u, v, by_formula[metric], 0.5, negatives))


@pytest.mark.parametrize("metric", DISTANCES)
def test_gradients_equal_finite_differences(metric):
    torch.manual_seed(0)
    u, v = (torch.randn(4, 3, dtype=torch.double).requires_grad_() for _ in range(2))
    negatives = draw_negatives(3, 4, u.device)
    for option in (negatives, None):
        loss = partial(distance_constraint, metric=metric, margin=0.3, negatives=option)
        assert torch.autograd.gradcheck(loss, (u, v))


def test_gradients_of_distances_equal_those_of_torch_cdist():
    torch.manual_seed(0)
    u = torch.randn(5, 8)
    v = torch.randn(7, 8)
    # Two equal vectors, between which there is no direction.
    v[2] = u[3]
    u.requires_grad_()
    v.requires_grad_()
    weights = torch.randn(5, 7)
    loss = (_Distances.apply(u, v) * weights).sum()
    expected = (torch.cdist(u, v) * weights).sum()
    assert_same_with_gradients(loss, expected, (u, v))


def test_gradients_inside_autocast_are_those_of_float32():
    torch.manual_seed(0)
    u, v = (torch.randn(5, 8, requires_grad=True) for _ in range(2))
    expected = torch.autograd.grad(sum(distance_constraint(u, v)), (u, v))
    with torch.autocast("cpu", torch.bfloat16):
        gradients = torch.autograd.grad(sum(distance_constraint(u, v)), (u, v))
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        assert torch.equal(gradient, expected_gradient)


def test_a_detached_scale_has_the_same_value_and_the_gradient_of_a_constant():
    torch.manual_seed(0)
    u, v = (torch.randn(5, 3, dtype=torch.double).requires_grad_() for _ in range(2))
    negatives = draw_negatives(4, 5, u.device)
    scale = (torch.cat((u, v)).norm(dim=1).mean() + 1e-6).detach()
    attached = sum(distance_constraint(u, v, negatives=negatives))
    detached = sum(distance_constraint(u, v, negatives=negatives, detach_scale=True))
    torch.testing.assert_close(attached, detached)
    pair, negative = slow_constraint(u, v, lambda x, y: (x - y).norm() / scale, 0.5, negatives)
    expected = torch.autograd.grad(pair + negative, (u, v))
    torch.testing.assert_close(torch.autograd.grad(detached, (u, v)), expected)
    assert not torch.allclose(torch.autograd.grad(attached, (u, v))[0], expected[0])


@pytest.mark.parametrize("metric", DISTANCES)
def test_the_loss_with_all_negatives_equals_the_mean_over_many_draws(metric):
    torch.manual_seed(0)
    u, v = torch.randn(2, 6, 4)
    draws = draw_negatives(20_000, 6, u.device)
    _, exact = distance_constraint(u, v, metric=metric)
    _, mean_of_draws = distance_constraint(u, v, metric=metric, negatives=draws)
    assert mean_of_draws.item() == pytest.approx(exact.item(), rel=0.01)


def test_drawn_negatives_are_permutations_without_fixed_points():
    torch.manual_seed(0)
    negatives = draw_negatives(3000, 5, torch.device("cpu"))
    assert negatives.shape == (2, 3000, 5)
    assert (negatives.sort(dim=-1).values == torch.arange(5)).all()
    assert (negatives != torch.arange(5)).all()
    # Each of the four other sentences is drawn as often.
    share = torch.nn.functional.one_hot(negatives[0]).float().mean(dim=0)  # [5, 5]
    assert (share[~torch.eye(5, dtype=torch.bool)] - 0.25).abs().max() < 0.03
    # The two directions are drawn independently, of 24 cycles each.
    assert (negatives[0] != negatives[1]).any(dim=1).float().mean() > 0.9
    assert torch.equal(draw_negatives(2, 2, torch.device("cpu"))[0, 0], torch.tensor([1, 0]))


@pytest.mark.parametrize("metric", DISTANCES)
def test_loss_and_gradients_of_equal_opposite_and_zero_embeddings_are_finite(metric):
    for u, v in (
        (torch.ones(1, 3), torch.zeros(1, 3)),
        (torch.ones(3, 3), torch.ones(3, 3)),
        (torch.zeros(3, 3), torch.zeros(3, 3)),
        (torch.ones(2, 3), -torch.ones(2, 3)),
    ):
        u.requires_grad_()
        v.requires_grad_()
        loss = sum(distance_constraint(u, v, metric=metric))
        loss.backward()
        assert loss.isfinite()
        assert torch.cat((u.grad, v.grad)).isfinite().all()


@pytest.mark.parametrize("metric", DISTANCES)
def test_a_single_pair_has_no_negatives(metric):
    _, negative = distance_constraint(torch.ones(1, 3), torch.zeros(1, 3), metric=metric)
    assert negative == 0


@pytest.mark.parametrize("shape", [(3, 9), (4, 8)])
@pytest.mark.parametrize("loss", [distance_constraint, alignment_loss])
def test_sides_of_different_shapes_are_refused(loss, shape):
    with pytest.raises(ValueError, match=r"\(3, 8\)"):
        loss(torch.ones(3, 8), torch.ones(shape))
