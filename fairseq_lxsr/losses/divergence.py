"""Kullback-Leibler divergence between a sparse target and a softmax."""

import torch
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32
from fairseq_lxsr.losses.targets import merge_duplicates


@in_float32
def kl_divergence(logits: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """KL(q || softmax(logits)) per row, where q need not sum to 1.

    sum_w q log q - sum_w q(w) log p(w), where log p(w) = logit(w) - logsumexp(logits): no [R, V] target is built, only
    the entries of q are gathered (Mao et al. 2021, Eq. 2 and 4).

    Args:
        logits: [R, V], any floating type.
        ids, weights: [R, K], see `targets`.
    Returns: [R] in float32, in nats.
    """
    ids, mass = merge_duplicates(ids, weights)
    return (torch.xlogy(mass, mass) - mass * logits.log_softmax(dim=1).gather(1, ids)).sum(dim=1)
