"""Weighted sums of rows of a table for each sentence, forward and backward without padding."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class WeightedBags(torch.autograd.Function):
    """Sums s_kr = sum_t w_krt x_rt over the embeddings x of sentences r, for several weightings k,
    on a CPU.

    Two calls of `embedding_bag`, each in the form for which torch has a fast kernel: without
    padding. The gradient of the table is such a sum too, of gradients of sentences for each row.
    Forward and backward take half the time of `embedding_bag` with padding and its own derivative,
    whose forward pass uses one thread.
    """

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, tokens: Tensor, weights: Tensor, padding_idx: int
    ) -> Tensor:
        """Sums [K, R, D] of rows of the table [V, D] at ids [R, T], by float32 weights [K, R, T]
        without gradient.
        """
        places = tokens.flatten().ne(padding_idx).nonzero().squeeze(1)  # [P]
        ids, rows = tokens.flatten()[places], places // tokens.shape[1]
        weights = weights.flatten(1)[:, places].contiguous()  # [K, P]
        ctx.save_for_backward(ids, rows, weights)
        ctx.sizes = len(table), len(tokens)
        # [K, R]
        starts = _starts(rows, len(tokens)) + len(ids) * torch.arange(len(weights))[:, None]
        return _sums(ids.repeat(len(weights)), table, starts.flatten(), weights.flatten()).view(
            *starts.shape, -1
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradient of the table, [V, D], from that of the sums, [K, R, D]."""
        ids, rows, weights = ctx.saved_tensors
        entries, sentences = ctx.sizes
        order = ids.argsort()
        sums = rows[order, None] + sentences * torch.arange(len(weights))  # [P, K]
        starts = len(weights) * _starts(ids, entries)  # [V]
        return (
            _sums(sums.flatten(), gradient.flatten(0, 1), starts, weights[:, order].T.flatten()),
            None,
            None,
            None,
        )


def _starts(groups: Tensor, count: int) -> Tensor:
    """Number of elements before each of `count` groups, [count]; groups: [P] group of each
    element.
    """
    sizes = groups.bincount(minlength=count)
    return sizes.cumsum(0) - sizes


def _sums(ids: Tensor, table: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    return F.embedding_bag(ids, table.contiguous(), starts, mode="sum", per_sample_weights=weights)
