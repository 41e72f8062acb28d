"""Sentence embeddings that are weighted sums of token embeddings, computed without padding."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class WeightedBags(torch.autograd.Function):
    """Embeddings e_r = sum_t w_0rt x_t + sum_k o_k * sum_t w_krt x_t of sentences r, on a CPU.

    x_t are the token embeddings of the sentence, w_k sets of weights, and o_k vectors that scale
    each dimension of the sums k >= 1.

    The forward and the backward pass each call `embedding_bag` without padding, for which torch has
    a fast kernel. This is possible because the gradient of a table row is also a weighted sum, of
    sentence gradients. Together, the two passes take half the time of `embedding_bag` with padding,
    whose forward pass uses only one thread. The sums of a sentence follow each other, so only the
    first of them reads its rows from memory, and the others from the cache.
    """

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, order: Tensor, tokens: Tensor, weights: Tensor, padding_idx: int
    ) -> Tensor:
        """Return the embeddings [R, D].

        Args:
            ctx: autograd context.
            table: [V, D] embedding table.
            order: [K, D] vectors o_1 to o_K; K may be 0.
            tokens: [R, T] ids, which select rows of the table.
            weights: [K + 1, R, T] float32 weights, which do not receive a gradient.
            padding_idx: id of padding.
        """
        # [R, T], with P true values
        is_token = tokens.ne(padding_idx)
        # [P]
        ids = tokens[is_token]
        rows = is_token.nonzero()[:, 0]
        # [K + 1, P]
        weights = weights[:, is_token]
        count = len(weights)
        # [P, K + 1] index of each factor, if the factors of a sentence are sorted by k, then t
        lengths = is_token.sum(dim=1)
        first = lengths.cumsum(dim=0) - lengths
        places = torch.arange(len(ids)) + ((count - 1) * first)[rows]
        places = places[:, None] + lengths[rows, None] * torch.arange(count)
        sorted_ids = ids.new_empty(count * len(ids))
        sorted_ids[places] = ids[:, None]
        sorted_weights = weights.new_empty(count * len(ids))
        sorted_weights[places] = weights.T
        # [R, K + 1]
        starts = count * first[:, None] + lengths[:, None] * torch.arange(count)
        sums = _sums(sorted_ids, table, starts.flatten(), sorted_weights).view(*starts.shape, -1)
        ctx.save_for_backward(ids, rows, weights, order, sums)
        ctx.entries = len(table)
        embeddings = sums[:, 0].clone()
        for number, vector in enumerate(order, start=1):
            embeddings.addcmul_(sums[:, number], vector)
        return embeddings

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients for the embedding table [V, D] and for `order` [K, D].

        Args:
            ctx: autograd context.
            gradient: [R, D] gradient for the embeddings.

        Returns:
            The gradients for `table` and `order`, and None for each of the other inputs.
        """
        ids, rows, weights, order, sums = ctx.saved_tensors
        count = len(weights)
        order_gradient = torch.empty_like(order)
        # [R, K + 1, D] gradients for the sums
        of_sums = torch.empty_like(sums)
        of_sums[:, 0] = gradient
        for number, vector in enumerate(order, start=1):
            torch.sum(gradient * sums[:, number], dim=0, out=order_gradient[number - 1])
            torch.mul(gradient, vector, out=of_sums[:, number])
        by_id = ids.argsort()
        # [P, K + 1]
        selected = count * rows[by_id, None] + torch.arange(count)
        # [V]
        sizes = ids.bincount(minlength=ctx.entries)
        starts = count * (sizes.cumsum(dim=0) - sizes)
        factors = weights[:, by_id].T.flatten()
        table_gradient = _sums(selected.flatten(), of_sums.flatten(0, 1), starts, factors)
        return table_gradient, order_gradient, None, None, None


def _sums(ids: Tensor, table: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    return F.embedding_bag(ids, table.contiguous(), starts, mode="sum", per_sample_weights=weights)
