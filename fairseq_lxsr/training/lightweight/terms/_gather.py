"""Embeddings of all workers as candidates, with gradients that reach the worker they came from."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses import Candidates


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        return _all_gather(rows)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        # every worker's loss reads these rows, and fairseq sums the gradients of all workers' losses
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def _all_gather(rows: Tensor) -> Tensor:
    gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, rows.contiguous())
    return torch.cat(gathered)


def gather_rows(
    u: Tensor, v: Tensor, numbers: Tensor, capacity: int, is_dummy: bool = False
) -> tuple[Candidates, Tensor]:
    """Gather the pairs of all W workers, each padded to `capacity` rows, so that workers need not exchange sizes.

    Args:
        u: [B, D] embeddings of this worker's sources.
        v: [B, D] embeddings of its targets.
        numbers: [B] numbers of its pairs.
        capacity: at least B.
        is_dummy: this worker has no batch left; its rows are no candidates for others.

    Returns:
        W * `capacity` candidates, C in all, and their numbers [C].
    """
    padding = (0, 0, 0, capacity - len(u))
    all_u, all_v = _AllGather.apply(F.pad(torch.cat((u, v), dim=1).float(), padding)).split(u.shape[1], dim=1)
    is_candidate = torch.full_like(numbers, not is_dummy)  # [B]
    all_numbers, real = _all_gather(F.pad(torch.stack((numbers, is_candidate), dim=1), padding)).T  # [C] each
    return Candidates(all_u, all_v, dist.get_rank() * capacity, real.gt(0)), all_numbers
