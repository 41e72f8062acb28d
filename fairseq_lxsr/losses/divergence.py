"""Cross-entropy and Kullback-Leibler divergence between sparse targets and a softmax."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fairseq_lxsr.losses.targets import merge_duplicates

# Number of float32 values to process at once. On a CPU, 24 MB stay in the cache, and malloc reuses
# them in the next step. On a GPU, smaller chunks would be dominated by kernel launches.
CPU_CHUNK = 6_000_000
GPU_CHUNK = 256_000_000


def kl_divergence(logits: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Compute KL(q || softmax(logits)) for each row. The target q need not sum to 1.

    Use it for a target with few of the V pieces, such as a bag of words; for a single piece, use
    `label_smoothed_cross_entropy`.
    The divergence is sum_w q log q - sum_w q(w) logit(w) + (sum_w q) logsumexp(logits), so only the
    entries of q are gathered, and no [R, V] target is built (Mao et al. 2021, Eq. 2; the last term
    is multiplied by the total mass, because `types` targets sum to less than 1).

    Example:
        >>> ids, weights = torch.tensor([[3, 7]]), torch.tensor([[0.5, 0.5]])
        >>> round(kl_divergence(torch.zeros(1, 10), ids, weights).item(), 3)  # log 10 - log 2
        1.609

    Args:
        logits: [R, V] of any floating-point dtype; computed in float32 or higher.
        ids: [R, K] vocabulary ids of the sparse target (see `targets`).
        weights: [R, K] target weights of the ids.

    Returns:
        Divergence of each row, float32 [R], in nats.
    """
    ids, mass = merge_duplicates(ids, weights)
    cross_entropy, _ = _CrossEntropy.apply(logits, ids, mass, 0.0)
    return torch.xlogy(mass, mass).sum(dim=1) + cross_entropy


def label_smoothed_cross_entropy(
    logits: Tensor, gold: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy -sum_w q(w) log softmax(logits)(w) of each row.

    q is 1 - smoothing for the gold piece, and smoothing / (V - 1) for every other piece. Use it for
    translation, on each piece of the target; smoothing prevents overconfidence.

    Source: Szegedy et al. 2016, section 7; the smoothing mass is distributed as fairseq does.

    Example:
        >>> logits, gold = torch.zeros(1, 4), torch.tensor([2])
        >>> loss, without_smoothing = label_smoothed_cross_entropy(logits, gold, 0.1)
        >>> # All pieces are equally likely, so both are log 4.
        >>> round(loss.item(), 3), round(without_smoothing.item(), 3)
        (1.386, 1.386)

    Args:
        logits: [R, V] of any floating-point dtype; computed in float32 or higher.
        gold: [R] ids of the gold pieces.
        smoothing: probability mass shared by all other pieces, 0 to 1.

    Returns:
        The loss, float32 [R], and the loss without smoothing, -log softmax(logits)(gold), float32
        [R] without gradient; both in nats.
    """
    everywhere = smoothing / (logits.shape[1] - 1)
    ids = gold[:, None]
    mass = torch.full_like(ids, 1 - smoothing - everywhere, dtype=torch.float32)
    loss, partition = _CrossEntropy.apply(logits, ids, mass, everywhere)
    with torch.no_grad():
        return loss, partition - logits.gather(1, ids).squeeze(1)


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy for a target q: `mass` on `ids`, plus a constant mass `everywhere` per piece.

    The backward pass of autograd would allocate five float32 tensors [R, V]; this one allocates
    one. `apply` returns the cross-entropy [R] and, without gradient, logsumexp(logits) [R].
    """

    @staticmethod
    def forward(ctx, logits: Tensor, ids: Tensor, mass: Tensor, everywhere: float):
        wide = torch.promote_types(logits.dtype, torch.float32)
        # [R]
        partition = torch.cat(
            [mass.new_empty(0), *(part.to(wide).logsumexp(1) for _, part in _chunks(logits))]
        )
        expected_logit = (mass * logits.gather(1, ids)).sum(dim=1)
        total = mass.sum(dim=1)
        if everywhere:
            expected_logit = expected_logit + everywhere * logits.sum(dim=1, dtype=wide)
            total = total + everywhere * logits.shape[1]
        ctx.save_for_backward(logits, partition, ids, mass, total)
        ctx.everywhere = everywhere
        ctx.mark_non_differentiable(partition)
        return total * partition - expected_logit, partition

    @staticmethod
    def backward(ctx, grad: Tensor, _):
        """Return the gradient for the logits, ((sum q) softmax(w) - q(w)) x `grad` of the row."""
        logits, partition, ids, mass, total = ctx.saved_tensors
        result = torch.empty_like(logits)
        total = (total * grad)[:, None]
        share = -mass * grad[:, None]
        everywhere = (ctx.everywhere * grad)[:, None]
        for rows, chunk in _chunks(logits):
            softmax = torch.sub(chunk, partition[rows, None]).exp_().mul_(total[rows])
            if ctx.everywhere:
                softmax.sub_(everywhere[rows])
            result[rows] = softmax.scatter_add_(1, ids[rows], share[rows].to(softmax.dtype))
        return result, None, None, None


def _chunks(logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    chunk = CPU_CHUNK if logits.device.type == "cpu" else GPU_CHUNK
    step = max(1, chunk // logits.shape[1])
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        yield rows, logits[rows]
