"""Similarity: the sentences of a batch must be as similar to each other in one language as in the
other.
"""

import math

import torch
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32

# the limit is reached only where |A - C| > 1 - 6.4e-7: both softmaxes are saturated there and pass
# no gradient anyway
SMALLEST_COSINE = 1e-6


@in_float32
def similarity_loss(u: Tensor, v: Tensor) -> Tensor:
    """Distance between the similarity matrices of the two sides, summed over the B x B cells.

    Beside `alignment_loss`, which compares the two sides: this one compares each side with itself.
    In our runs it adds nothing that is larger than the spread of seeds.

    With A = rowsoftmax(u u^T) and C = rowsoftmax(v v^T) it is -sum_ij log cos(pi/2 (A_ij - C_ij))
    (Mao et al. 2021, Eq. 6). It never compares u with v, so it does not tell translations from
    other sentences: it is 0 where v is u rotated.

    Example:
        >>> u = torch.eye(3)
        >>> abs(similarity_loss(u, u.flip(0)).item())  # the same similarities, in other directions
        0.0

    Args:
        u: [B, D] embeddings of the source side.
        v: [B, D] embeddings of the target side.

    Returns:
        scalar; loss and gradient stay finite when A - C reaches +-1.
    """
    difference = (u @ u.T).softmax(dim=1) - (v @ v.T).softmax(dim=1)  # [B, B]
    return -torch.cos(math.pi / 2 * difference).clamp_min(SMALLEST_COSINE).log().sum()
