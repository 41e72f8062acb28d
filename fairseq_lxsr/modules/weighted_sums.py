"""Weighted sums of token embeddings, whose forward and backward pass do not need padding."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class WeightedBags(torch.autograd.Function):
    """Weighted sums s_kr = sum_t w_krt x_rt of the token embeddings x in each sentence r, on a CPU.

    Several sums per sentence can be computed at once: k is the index of a set of weights w_k.

    The forward and the backward pass each call `embedding_bag` without padding, for which torch has
    a fast kernel. This is possible because the gradient of a table row is also a weighted sum, of
    sentence gradients. Together, the two passes take half the time of `embedding_bag` with padding,
    whose forward pass uses only one thread.
    """

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, tokens: Tensor, weights: Tensor, padding_idx: int
    ) -> Tensor:
        """Return the sums [K, R, D].

        Args:
            ctx: autograd context.
            table: [V, D] embedding table.
            tokens: [R, T] ids, which select rows of the table.
            weights: [K, R, T] float32 weights, which do not receive a gradient.
            padding_idx: id of padding.
        """
        # [P]
        places = tokens.flatten().ne(padding_idx).nonzero().squeeze(1)
        ids = tokens.flatten()[places]
        rows = places // tokens.shape[1]
        # [K, P]
        weights = weights.flatten(1)[:, places].contiguous()
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
        """Compute the gradient [V, D] for the embedding table.

        Args:
            ctx: autograd context.
            gradient: [K, R, D] gradient for the sums.

        Returns:
            The gradient for `table`, and None for each of the other inputs.
        """
        ids, rows, weights = ctx.saved_tensors
        entries, sentences = ctx.sizes
        order = ids.argsort()
        # [P, K]
        sums = rows[order, None] + sentences * torch.arange(len(weights))
        # [V]
        starts = len(weights) * _starts(ids, entries)
        return (
            _sums(sums.flatten(), gradient.flatten(0, 1), starts, weights[:, order].T.flatten()),
            None,
            None,
            None,
        )


def _starts(groups: Tensor, count: int) -> Tensor:
    """Return the start index of each group: [count].

    Args:
        groups: [P] group index of each element.
        count: number of groups.
    """
    sizes = groups.bincount(minlength=count)
    return sizes.cumsum(0) - sizes


def _sums(ids: Tensor, table: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    return F.embedding_bag(ids, table.contiguous(), starts, mode="sum", per_sample_weights=weights)
