"""Similarity loss: sentences in a batch must be equally similar to each other in both languages."""

import math

import torch
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32

# The limit is only reached for |A - C| > 1 - 6.4e-7, where both softmaxes are saturated and pass on
# no gradient anyway.
SMALLEST_COSINE = 1e-6


@in_float32
def similarity_loss(u: Tensor, v: Tensor) -> Tensor:
    """Return the distance between both sides' similarity matrices, summed over their B x B entries.

    Use it with `alignment_loss`, which compares the two sides; this loss compares each side with
    itself. In our experiments its effect is smaller than the differences between seeds.

    With A = rowsoftmax(u u^T) and C = rowsoftmax(v v^T) it is -sum_ij log cos(pi/2 (A_ij - C_ij))
    (Mao et al. 2021, Eq. 6). It never compares u with v, so it does not distinguish translations
    from other sentences: it is 0 if v is a rotation of u.

    Example:
        >>> u = torch.eye(3)
        >>> abs(similarity_loss(u, u.flip(0)).item())  # the same similarities, in other directions
        0.0

    Args:
        u: [B, D] embeddings of the source side.
        v: [B, D] embeddings of the target side.

    Returns:
        A scalar. Loss and gradient stay finite if A - C reaches +-1.
    """
    # [B, B]
    difference = (u @ u.T).softmax(dim=1) - (v @ v.T).softmax(dim=1)
    return -torch.cos(math.pi / 2 * difference).clamp_min(SMALLEST_COSINE).log().sum()
