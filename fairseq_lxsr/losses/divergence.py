"""Kullback-Leibler divergence between a sparse target and a softmax."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fairseq_lxsr.losses.targets import merge_duplicates

# float32 values worked on at a time: 24 MB stay in the cache, and malloc keeps them for the next step
CHUNK = 6_000_000


def kl_divergence(logits: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """KL(q || softmax(logits)) per row, where q need not sum to 1.

    sum_w q log q - sum_w q(w) logit(w) + (sum_w q) logsumexp(logits): no [R, V] target is built, only the entries of q
    are gathered (Mao et al. 2021, Eq. 2 and 4; the last term carries the total mass, `types` sums to less than 1).

    Args:
        logits: [R, V], any floating type; the arithmetic is at least float32.
        ids, weights: [R, K], see `targets`.
    Returns: [R] in float32, in nats.
    """
    ids, mass = merge_duplicates(ids, weights)
    return _KlDivergence.apply(logits, ids, mass)


class _KlDivergence(torch.autograd.Function):
    """Written out because autograd's own backward pass makes five temporary [R, V] tensors in float32."""

    @staticmethod
    def forward(ctx, logits: Tensor, ids: Tensor, mass: Tensor) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        partition = torch.cat([chunk.to(wide).logsumexp(dim=1) for _, chunk in _chunks(logits)])  # [R]
        ctx.save_for_backward(logits, partition, ids, mass)
        expected_logit = (mass * logits.gather(1, ids)).sum(dim=1)
        return torch.xlogy(mass, mass).sum(dim=1) - expected_logit + mass.sum(dim=1) * partition

    @staticmethod
    def backward(ctx, grad: Tensor):
        """d / d logit(w) = (sum q) softmax(w) - q(w), times the incoming gradient [R]."""
        logits, partition, ids, mass = ctx.saved_tensors
        result = torch.empty_like(logits)
        total, share = (mass.sum(dim=1) * grad)[:, None], -mass * grad[:, None]
        for rows, chunk in _chunks(logits):
            softmax = torch.sub(chunk, partition[rows, None]).exp_()
            result[rows] = softmax.mul_(total[rows]).scatter_add_(1, ids[rows], share[rows].to(softmax.dtype))
        return result, None, None


def _chunks(logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    step = max(1, CHUNK // logits.shape[1])
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        yield rows, logits[rows]
