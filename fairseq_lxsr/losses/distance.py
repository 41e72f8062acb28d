"""Distance constraint: translations must be closer than other batch sentences by a margin.

Source: Li and Mak, "Transformer based Multilingual document Embedding model", 2020 (the c of cLASER
and cT-LASER).
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32

# Added to the denominator of distances, to avoid dividing by zero.
SMALLEST_NORM = 1e-6
# Upper limit for the argument of arcsin, whose derivative is infinite at 1 (opposite vectors).
LARGEST_SINE = 1 - 1e-6


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
    """Compute the pair distances L_pair = sum_j d(u_j, v_j) and the hinge loss L_neg over
    negatives.

    Add it to a translation loss, which alone does not always bring the embeddings of translations
    close together: Li and Mak add 0.25 (L_pair + 0.5 L_neg). For an encoder without a decoder, use
    `alignment_loss`.

    L_neg is the mean over permutations pi of sum_j max(0, margin + d(u_j, v_j) - d(u_j, v_pi(j))),
    plus the same term with u and v exchanged.

    Example:
        >>> u, v = torch.eye(4, 8), torch.eye(4, 8)
        >>> pair, negative = distance_constraint(u, v, negatives=draw_negatives(20, 4, u.device))
        >>> # Translations are equal, and all negatives are farther away than the margin.
        >>> pair.item(), negative.item()
        (0.0, 0.0)

    Args:
        u: [B, D] embeddings of the source side.
        v: [B, D] embeddings of the target side.
        metric: one of `DISTANCES`.
        margin: how much farther away than the translation each negative must be, in units of the
            metric.
        negatives: [2, N, B], N permutations per direction from `draw_negatives`; None uses all
            other sentences in the batch, which yields the mean over all possible permutations.
        detach_scale: whether to exclude the distance unit from the gradient; `angular` has no unit.

    Returns:
        L_pair and L_neg, both scalars. L_neg is 0 if the batch has only one pair, and so no
        negatives.

    Raises:
        ValueError: if the metric is unknown, or if the shapes of u and v differ.
    """
    if metric not in DISTANCES:
        raise ValueError(f"unknown metric {metric!r}; choose from {tuple(DISTANCES)}")
    if u.shape != v.shape:
        raise ValueError(f"u {tuple(u.shape)} and v {tuple(v.shape)} must have the same shape")
    u, v, to_distance = DISTANCES[metric](u, v, detach_scale)
    # [B]
    pair = to_distance((u - v).norm(dim=1))
    if len(u) < 2:
        return pair.sum(), pair.sum() * 0
    # [B, B] distance from u_i to v_j
    between = to_distance(_Distances.apply(u, v))
    # [B, B] margin violation: how much too close v_j is to u_i, and u_j to v_i
    nearer_v = F.relu(margin + pair[:, None] - between)
    nearer_u = F.relu(margin + pair[:, None] - between.T)
    if negatives is None:
        is_negative = ~torch.eye(len(u), dtype=torch.bool, device=u.device)
        return pair.sum(), ((nearer_v + nearer_u) * is_negative).sum() / (len(u) - 1)
    # [B, N] hinge losses in each direction
    drawn = [
        nearer.gather(1, way.T) for nearer, way in zip((nearer_v, nearer_u), negatives, strict=True)
    ]
    return pair.sum(), torch.stack(drawn).sum() / negatives.shape[1]


class _Distances(torch.autograd.Function):
    """Euclidean distances [B, B'] between u [B, D] and v [B', D], without a [B, B', D] tensor.

    The derivative of torch.cdist allocates such a tensor on CUDA. This one uses matrix products.
    """

    @staticmethod
    def forward(ctx, u: Tensor, v: Tensor) -> Tensor:
        # |u|^2 + |v|^2 - 2uv would be imprecise for close vectors.
        distances = torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist")
        ctx.save_for_backward(u, v, distances)
        return distances

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients for u and v: (u_i - v_j) / |u_i - v_j|, or 0 for equal vectors."""
        u, v, distances = ctx.saved_tensors
        share = torch.where(distances > 0, gradient / distances, 0)
        with torch.autocast(u.device.type, enabled=False):
            u_gradient = share.sum(dim=1)[:, None] * u - share @ v
            v_gradient = share.sum(dim=0)[:, None] * v - share.T @ u
            return u_gradient, v_gradient


def draw_negatives(draws: int, pairs: int, device: torch.device) -> Tensor:
    """Draw permutations without fixed points that assign a negative to each pair.

    Each index is mapped to its successor in a random cycle, so every other sentence is equally
    likely to be the negative.

    Example:
        >>> draw_negatives(1, 2, torch.device("cpu")).tolist()
        [[[1, 0]], [[1, 0]]]

    Args:
        draws: number of permutations per direction (N).
        pairs: number of pairs (B), at least 2.
        device: device of the result.

    Returns:
        Permutation indices [2, N, B].
    """
    circle = torch.rand(2 * draws, pairs, device=device).argsort(dim=1)
    permutations = torch.empty_like(circle).scatter_(1, circle, circle.roll(1, dims=1))
    return permutations.view(2, draws, pairs)


# A metric: the vectors u and v, which may be normalized, and a function that converts the norm of
# a difference u_i - v_j into a distance.
Metric = tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]


def _norm(u: Tensor, v: Tensor, detach_scale: bool) -> Metric:
    """Return the metric ||x - y|| divided by the mean norm of all embeddings in the batch."""
    return _in_units(u, v, torch.cat((u, v)).norm(dim=1).mean(), detach_scale)


def _norm_of_mean(u: Tensor, v: Tensor, detach_scale: bool) -> Metric:
    """Return the metric ||x - y|| divided by the norm of the mean embedding.

    The norm is averaged over both sides, as in Li and Mak's code (cross_entropy_dist.py, line 344).
    """
    return _in_units(u, v, (u.mean(dim=0).norm() + v.mean(dim=0).norm()) / 2, detach_scale)


def _in_units(u: Tensor, v: Tensor, unit: Tensor, detach_scale: bool) -> Metric:
    scale = unit + SMALLEST_NORM
    if detach_scale:
        scale = scale.detach()
    return u, v, lambda norms: norms / scale


def _angular(u: Tensor, v: Tensor, detach_scale: bool) -> Metric:
    """Return the angular metric: the angle between x and y divided by pi.

    The angle is computed from the length of x - y after normalization (the chord), which is exact
    and smooth for nearly equal vectors.
    """

    def angle(chord: Tensor) -> Tensor:
        return (chord / 2).clamp_max(LARGEST_SINE).asin() * (2 / math.pi)

    return F.normalize(u, dim=1), F.normalize(v, dim=1), angle


DISTANCES = {"norm": _norm, "norm_of_mean": _norm_of_mean, "angular": _angular}
