import math

import pytest
import torch

from fairseq_lxsr.losses import alignment_loss, distance_constraint, draw_negatives
from fairseq_lxsr.losses.distance import DISTANCES, _Distances


def slow_constraint(u, v, distance, margin, negatives):
    """The formula as printed, one sentence and one draw at a time."""
    pairs, draws = len(u), negatives.shape[1]
    pair = [distance(u[j], v[j]) for j in range(pairs)]
    negative = 0
    for n in range(draws):
        for j in range(pairs):
            negative += max(0, margin + pair[j] - distance(u[j], v[negatives[0, n, j]]))
            negative += max(0, margin + pair[j] - distance(v[j], u[negatives[1, n, j]]))
    return sum(pair), negative / draws


# the means of (2, 0) and (0, 2), and of (5, 0) and (1, 0), have the norms sqrt 2 and 3; of the
# pairs |u1 - v1| = 3, |u2 - v2| = sqrt 5, and |u1 - v2| = 1, |u2 - v1| = sqrt 29
UNIT, HINGES = (2**0.5 + 3) / 2, [3 - 1, 5**0.5 - 29**0.5, 3 - 29**0.5, 5**0.5 - 1]


@pytest.mark.parametrize(
    ("metric", "margin", "draws", "u", "v", "pair", "negative"),
    [
        # norms 3, 5, 3, 5: mean 4; d(u1, v1) = d(u2, v2) = 0, d(u1, v2) = d(u2, v1) = 2 / 4 with
        # |u1 - v2| = 2: the margin is not reached, or one of 0.7 is violated by 0.2, by two
        # sentences, both ways
        ("norm", 0.5, 1, [[3, 0], [5, 0]], [[3, 0], [5, 0]], 0, 0),
        ("norm", 0.7, 1, [[3, 0], [5, 0]], [[3, 0], [5, 0]], 0, 4 * 0.2),
        # norms 1, 2, 2, 3: mean 2; d(u1, v1) = 1/2, d(u2, v2) = 1/2; d(u1, v2) = 1, d(u2, v1) = 0
        # u1 against v2 and v2 against u1: 1/4 + 1/2 - 1 < 0; u2 against v1 and v1 against u2: 1/4 +
        # 1/2 - 0
        ("norm", 0.25, 3, [[1], [2]], [[2], [3]], 1, 2 * 0.75),
        (
            *("norm_of_mean", 0.5, 1, [[2, 0], [0, 2]], [[5, 0], [1, 0]], (3 + 5**0.5) / UNIT),
            sum(max(0, 0.5 + each / UNIT) for each in HINGES),
        ),
        # a quarter of a turn is half of pi
        # u1-v2: 1/2 + 1/2 - 1/2; u2-v1: 1/2 + 0 - 0; v1-u2: 1/2 + 1/2 - 0; v2-u1: 1/2 + 0 - 1/2
        ("angular", 0.5, 1, [[1, 0], [0, 2]], [[0, 3], [0, 1]], 0.5, 0.5 + 0.5 + 1.0 + 0.0),
    ],
)
def test_values_worked_out_by_hand(metric, margin, draws, u, v, pair, negative):
    swapped = torch.tensor([1, 0]).expand(2, draws, 2)
    sides = (torch.tensor(side, dtype=torch.float32) for side in (u, v))
    found = distance_constraint(*sides, metric=metric, margin=margin, negatives=swapped)
    assert [part.item() for part in found] == pytest.approx([pair, negative], rel=1e-5, abs=1e-6)
    assert (found[0] == 0) == (pair == 0)


@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize(("pairs", "draws"), [(2, 1), (5, 3), (7, 20)])
def test_equals_the_formula_as_printed(metric, pairs, draws):
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
def test_gradient_by_finite_differences(metric):
    torch.manual_seed(0)
    u, v = (torch.randn(4, 3, dtype=torch.double).requires_grad_() for _ in range(2))
    negatives = draw_negatives(3, 4, u.device)
    for given in (negatives, None):
        assert torch.autograd.gradcheck(
            lambda u, v, given=given: distance_constraint(
                u, v, metric=metric, margin=0.3, negatives=given
            ),
            (u, v),
        )


def test_gradients_of_distances_are_those_of_torch():
    torch.manual_seed(0)
    u, v = torch.randn(5, 8), torch.randn(7, 8)
    v[2] = u[3]  # no direction between them
    weights, gradients = torch.randn(5, 7), []
    for distances in (_Distances.apply, torch.cdist):
        a, b = u.clone().requires_grad_(), v.clone().requires_grad_()
        (distances(a, b) * weights).sum().backward()
        gradients.append((a.grad, b.grad))
    torch.testing.assert_close(*gradients)


def test_gradients_of_distances_are_in_float32_inside_autocast():
    torch.manual_seed(0)
    gradients = []
    for enabled in (False, True):
        u, v = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1)).unbind()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            sum(distance_constraint(u.requires_grad_(), v.requires_grad_())).backward()
        gradients.append((u.grad, v.grad))
    assert all(map(torch.equal, *gradients))


def test_detached_scale_leaves_the_value_and_takes_the_gradient_of_a_constant():
    torch.manual_seed(0)
    u, v = (torch.randn(5, 3, dtype=torch.double).requires_grad_() for _ in range(2))
    negatives = draw_negatives(4, 5, u.device)
    scale = (torch.cat((u, v)).norm(dim=1).mean() + 1e-6).detach()
    kept = sum(distance_constraint(u, v, negatives=negatives))
    detached = sum(distance_constraint(u, v, negatives=negatives, detach_scale=True))
    torch.testing.assert_close(kept, detached)
    pair, negative = slow_constraint(u, v, lambda x, y: (x - y).norm() / scale, 0.5, negatives)
    expected = torch.autograd.grad(pair + negative, (u, v))
    torch.testing.assert_close(torch.autograd.grad(detached, (u, v)), expected)
    assert not torch.allclose(torch.autograd.grad(kept, (u, v))[0], expected[0])


@pytest.mark.parametrize("metric", DISTANCES)
def test_all_negatives_are_the_mean_over_many_draws(metric):
    torch.manual_seed(0)
    u, v = torch.randn(2, 6, 4)
    exact = distance_constraint(u, v, metric=metric)[1]
    drawn = distance_constraint(u, v, metric=metric, negatives=draw_negatives(20_000, 6, u.device))[
        1
    ]
    assert drawn.item() == pytest.approx(exact.item(), rel=0.01)


def test_negatives_are_permutations_without_fixed_points_and_every_other_sentence_is_as_likely():
    torch.manual_seed(0)
    negatives = draw_negatives(3000, 5, torch.device("cpu"))
    assert negatives.shape == (2, 3000, 5)
    assert (negatives.sort(dim=-1).values == torch.arange(5)).all()
    assert (negatives != torch.arange(5)).all()
    share = torch.nn.functional.one_hot(negatives[0]).float().mean(dim=0)  # [5, 5]
    assert (share[~torch.eye(5, dtype=torch.bool)] - 0.25).abs().max() < 0.03
    # of 24 cycles, either way draws its own
    assert (negatives[0] != negatives[1]).any(dim=1).float().mean() > 0.9
    assert torch.equal(draw_negatives(2, 2, torch.device("cpu"))[0, 0], torch.tensor([1, 0]))


@pytest.mark.parametrize("metric", DISTANCES)
def test_one_pair_identical_and_zero_embeddings_stay_finite(metric):
    for u, v in (
        (torch.ones(1, 3), torch.zeros(1, 3)),
        (torch.ones(3, 3), torch.ones(3, 3)),
        (torch.zeros(3, 3), torch.zeros(3, 3)),
        (torch.ones(2, 3), -torch.ones(2, 3)),
    ):
        u, v = u.requires_grad_(), v.requires_grad_()
        loss = sum(distance_constraint(u, v, metric=metric))
        loss.backward()
        assert loss.isfinite()
        assert torch.cat((u.grad, v.grad)).isfinite().all()
    assert distance_constraint(torch.ones(1, 3), torch.zeros(1, 3), metric=metric)[1] == 0


@pytest.mark.parametrize("shape", [(3, 9), (4, 8)])
@pytest.mark.parametrize("loss", [distance_constraint, alignment_loss])
def test_sides_of_different_shapes_are_refused(loss, shape):
    with pytest.raises(ValueError, match=r"\(3, 8\)"):
        loss(torch.ones(3, 8), torch.ones(shape))
