"""Similarity loss: two sentences must be equally similar to each other in both languages."""

import math

import torch
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32

# Lower limit for the cosines. It only applies if |A - C| > 1 - 6.4e-7, where saturated softmaxes
# pass no gradient anyway.
SMALLEST_COSINE = 1e-6


@in_float32
def similarity_loss(u: Tensor, v: Tensor) -> Tensor:
    """Return the distance between the similarity matrices [B, B] of the two sides.

    Use it with `alignment_loss`, which compares the two sides; this loss compares each side with
    itself. In our experiments its effect is smaller than the variation between seeds.

    With A = rowsoftmax(u u^T) and C = rowsoftmax(v v^T), it is -sum_ij log cos(pi/2 (A_ij - C_ij))
    (Mao et al. 2021, Eq. 6). It never compares u with v, so it does not distinguish translations
    from other sentences: it is 0 if v is a rotation of u.

    Example:
        >>> u = torch.eye(3)
        >>> abs(similarity_loss(u, u.flip(0)).item())  # equal similarities, rotated embeddings
        0.0

    Args:
        u: [B, D] embeddings of the source side.
        v: [B, D] embeddings of the target side.

    Returns:
        The loss, a scalar. Loss and gradient are finite even if A - C is ±1.
    """
    # [B, B]
    difference = (u @ u.T).softmax(dim=1) - (v @ v.T).softmax(dim=1)
    return -torch.cos(math.pi / 2 * difference).clamp_min(SMALLEST_COSINE).log().sum()
