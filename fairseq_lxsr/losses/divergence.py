"""Kullback-Leibler divergence between a sparse target and a softmax."""

import torch
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32
from fairseq_lxsr.losses.targets import merge_duplicates


@in_float32
def kl_divergence(logits: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """KL(q || softmax(logits)) per row, where q need not sum to 1.

    sum_w q log q - sum_w q(w) logit(w) + (sum_w q) logsumexp(logits): only the entries of q are ever read from the
    logits (Mao et al. 2021, Eq. 2 and 4; the last term carries the total mass because `types` sums to less than 1).

    Args:
        logits: [R, V], any floating type.
        ids, weights: [R, K], see `targets`.
    Returns: [R] in float32, in nats.
    """
    ids, mass = merge_duplicates(ids, weights)
    entropy = torch.xlogy(mass, mass).sum(dim=1)
    expected_logit = (mass * logits.gather(1, ids)).sum(dim=1)
    return entropy - expected_logit + mass.sum(dim=1) * logits.logsumexp(dim=1)
