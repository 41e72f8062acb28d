"""Similarity: the sentences of a batch must be as similar to each other in one language as in the other."""

import math

import torch
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32

SIM_FORMS = ("cosine", "mse")
# reached only where |A - C| > 1 - 6.4e-7: there both softmaxes are saturated and pass no gradient anyway
SMALLEST_COSINE = 1e-6


@in_float32
def similarity_loss(u: Tensor, v: Tensor, form: str = "cosine") -> Tensor:
    """Distance between the similarity matrices of the two sides, summed over the B x B cells.

    `cosine` (Mao et al. 2021, Eq. 7): A = rowsoftmax(u u^T), C = rowsoftmax(v v^T),
    -sum_ij log cos(pi/2 (A_ij - C_ij)). `mse`: squared error of the similarities before the softmax.

    Args: u, v: [B, D].
    Returns: scalar; loss and gradient stay finite when A - C reaches +-1.
    """
    if form not in SIM_FORMS:
        raise ValueError(f"form is {form!r}; expected one of {SIM_FORMS}")
    source, target = u @ u.T, v @ v.T  # [B, B]
    if form == "mse":
        return (source - target).square().sum()
    difference = source.softmax(dim=1) - target.softmax(dim=1)
    return -torch.cos(math.pi / 2 * difference).clamp_min(SMALLEST_COSINE).log().sum()
