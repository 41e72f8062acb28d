"""Distance constraint: translations are nearer to each other than to other sentences of the batch,
by a margin.

Source: Li and Mak, "Transformer based Multilingual document Embedding model", 2020 (the c of cLASER
and cT-LASER).
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32

SMALLEST_NORM = 1e-6  # added to the unit of distance
LARGEST_SINE = 1 - 1e-6  # the derivative of the angle between opposite vectors is infinite


@in_float32
def distance_constraint(
    u: Tensor,
    v: Tensor,
    *,
    metric: str = "norm",
    margin: float = 0.5,
    negatives: Tensor | None = None,
    detach_scale: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute L_pair = sum_j d(u_j, v_j) and L_neg, the hinge loss of negatives in both directions.

    Beside a translation loss, whose embeddings of translations need not be near each other: Li and
    Mak weight L_pair + 0.5 L_neg with 0.25. For an encoder without a decoder take `alignment_loss`.

    L_neg = mean over the draws of sum_j max(0, margin + d(u_j, v_j) - d(u_j, v_pi(j))) + the same
    with u, v exchanged.

    Example:
        >>> u, v = torch.eye(4, 8), torch.eye(4, 8)
        >>> pair, negative = distance_constraint(u, v, negatives=draw_negatives(20, 4, u.device))
        >>> pair.item(), negative.item()  # translations are equal, all others farther away than the margin
        (0.0, 0.0)

    Args:
        u: [B, D] embeddings of the source side.
        v: [B, D] embeddings of the target side.
        metric: one of `DISTANCES`.
        margin: distance by which negatives must be farther away than the translation, in units of
            the metric.
        negatives: [2, N, B] permutations from `draw_negatives`, N in each direction; None takes
            every other sentence of the batch, which is the mean over all draws.
        detach_scale: whether the unit of distance passes no gradient (not for `angular`, which has
            none).

    Returns:
        L_pair and L_neg, scalars; L_neg is 0 for a batch of one pair, which has no negatives.

    Raises:
        ValueError: for an unknown metric.
    """
    if metric not in DISTANCES:
        raise ValueError(f"metric is {metric!r}; expected one of {tuple(DISTANCES)}")
    u, v, to_distance = DISTANCES[metric](u, v, detach_scale)
    pair = to_distance((u - v).norm(dim=1))  # [B]
    if len(u) < 2:
        return pair.sum(), pair.sum() * 0
    between = to_distance(_Distances.apply(u, v))  # [B, B], u_i to v_j
    nearer_v = F.relu(margin + pair[:, None] - between)  # of u_i: v_j
    nearer_u = F.relu(margin + pair[:, None] - between.T)  # of v_i: u_j
    if negatives is None:
        others = ~torch.eye(len(u), dtype=torch.bool, device=u.device)
        return pair.sum(), ((nearer_v + nearer_u) * others).sum() / (len(u) - 1)
    drawn = [
        nearer.gather(1, way.T) for nearer, way in zip((nearer_v, nearer_u), negatives, strict=True)
    ]  # [B, N]
    return pair.sum(), torch.stack(drawn).sum() / negatives.shape[1]


class _Distances(torch.autograd.Function):
    """Euclidean distances [B, B'] of u [B, D] and v [B', D] without a [B, B', D] tensor.

    torch's own derivative of cdist allocates such a tensor on CUDA; matrix products do not need it.
    """

    @staticmethod
    def forward(ctx, u: Tensor, v: Tensor) -> Tensor:
        # element by element: |u|^2 + |v|^2 - 2uv loses precision for near vectors
        distances = torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist")
        ctx.save_for_backward(u, v, distances)
        return distances

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """d |u_i - v_j| = (u_i - v_j) / |u_i - v_j|; the gradient is 0 where the two are equal."""
        u, v, distances = ctx.saved_tensors
        share = torch.where(distances > 0, gradient / distances, 0)
        with torch.autocast(u.device.type, enabled=False):
            return share.sum(dim=1)[:, None] * u - share @ v, share.sum(dim=0)[
                :, None
            ] * v - share.T @ u


def draw_negatives(draws: int, pairs: int, device: torch.device) -> Tensor:
    """Draw random permutations without fixed points: each index is mapped to its successor in a
    random cycle.

    Every other sentence is equally likely to be the negative of a sentence.

    Example:
        >>> draw_negatives(1, 2, torch.device("cpu")).tolist()
        [[[1, 0]], [[1, 0]]]

    Args:
        draws: N, permutations in each direction.
        pairs: B, at least 2.
        device: where the result is allocated.

    Returns:
        [2, N, B] indices.
    """
    circle = torch.rand(2 * draws, pairs, device=device).argsort(dim=1)
    permutations = torch.empty_like(circle).scatter_(1, circle, circle.roll(1, dims=1))
    return permutations.view(2, draws, pairs)


# u, v, and what a norm of a difference means
Metric = tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]


def _norm(u: Tensor, v: Tensor, detach_scale: bool) -> Metric:
    """Distance ||x - y|| in units of the mean norm of all embeddings of the batch."""
    return _in_units(u, v, torch.cat((u, v)).norm(dim=1).mean(), detach_scale)


def _norm_of_mean(u: Tensor, v: Tensor, detach_scale: bool) -> Metric:
    """Distance ||x - y|| in units of the norm of the mean embedding of a side, on average over the
    two sides.

    The code of Li and Mak has this unit (cross_entropy_dist.py, line 344).
    """
    return _in_units(u, v, (u.mean(dim=0).norm() + v.mean(dim=0).norm()) / 2, detach_scale)


def _in_units(u: Tensor, v: Tensor, unit: Tensor, detach_scale: bool) -> Metric:
    scale = unit + SMALLEST_NORM
    scale = scale.detach() if detach_scale else scale
    return u, v, lambda norms: norms / scale


def _angular(u: Tensor, v: Tensor, detach_scale: bool) -> Metric:
    """Angle between x and y as a share of pi, computed from the chord: exact and smooth for nearly
    equal vectors.
    """

    def angle(chord: Tensor) -> Tensor:
        return (chord / 2).clamp_max(LARGEST_SINE).asin() * (2 / math.pi)

    return F.normalize(u, dim=1), F.normalize(v, dim=1), angle


DISTANCES = {"norm": _norm, "norm_of_mean": _norm_of_mean, "angular": _angular}
