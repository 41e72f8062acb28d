"""Embeddings of all workers as candidates, with gradients that reach the worker they came from."""

import torch
import torch.distributed as dist
from torch import Tensor

from fairseq_lxsr.losses import Candidates


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        # every worker's loss reads these rows, and fairseq sums the gradients of all workers' losses
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def gather_rows(u: Tensor, v: Tensor, capacity: int) -> Candidates:
    """Gather u and v of all W workers, each padded to `capacity` rows, so that workers need not exchange sizes.

    Args:
        u: [B, D] embeddings of this worker's sources.
        v: [B, D] embeddings of its targets.
        capacity: at least B.

    Returns:
        W * `capacity` candidates.
    """
    missing = capacity - len(u)
    padded = torch.nn.functional.pad(torch.cat((u, v), dim=1).float(), (0, 0, 0, missing))  # [capacity, 2D]
    everything = _AllGather.apply(torch.cat((padded, _is_row(padded, len(u))), dim=1))
    all_u, all_v, is_row = everything.split([u.shape[1], v.shape[1], 1], dim=1)
    return Candidates(all_u, all_v, dist.get_rank() * capacity, is_row.squeeze(1).gt(0))


def _is_row(padded: Tensor, count: int) -> Tensor:
    return (torch.arange(len(padded), device=padded.device) < count).float()[:, None]
