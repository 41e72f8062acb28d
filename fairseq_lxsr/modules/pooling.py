"""Pooling of token states into one vector per sentence."""

import math

import torch
from torch import Tensor


def mean_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Mean of states [B, T, D] over the real pieces, for which `is_token` [B, T] is True: [B, D],
    summed in float32.

    Padding never changes it, and a sentence without pieces gives zeros.

    Example:
        >>> mean_pool(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
        [[3.0]]
    """
    weights = is_token / is_token.sum(dim=1, keepdim=True).clamp_min(1)  # [B, T] float32
    with torch.autocast(states.device.type, enabled=False):
        pooled = torch.einsum("bt,btd->bd", weights, states.float())
    return pooled.to(states.dtype)


def max_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Largest value of each unit, negative or not, with the arguments of `mean_pool`: [B, T, D] ->
    [B, D].

    Example:
        >>> max_pool(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
        [[4.0]]
    """
    hidden = states.masked_fill(~is_token[..., None], float("-inf")).max(dim=1).values
    return hidden.masked_fill(~is_token.any(dim=1, keepdim=True), 0)


def mean_max_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Concatenation of mean and maximum [B, 2D], the pooling of the encoder without parallel text
    (Wang et al.).

    Example:
        >>> mean_max_pool(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
        [[3.0, 4.0]]
    """
    return torch.cat((mean_pool(states, is_token), max_pool(states, is_token)), dim=1)


def order_weights(is_token: Tensor, count: int) -> Tensor:
    """Weights of the cosine coefficients of a sentence, c_k = mean of cos(pi k (t + 1/2) / T) x_t;
    c_0 is the mean.

    They are the coefficients of the discrete cosine transform; c_1 compares the beginning with the
    end. Source: Almarwani, Aldarmaki and Diab 2019, who concatenate the c_k of the embeddings. From
    `is_token` [B, T], False at padding, and the largest k, `count`: [count + 1, B, T], 0 at
    padding.
    """
    lengths = is_token.sum(dim=1, keepdim=True).clamp_min(1)  # [B, 1]
    return cosine_weights(is_token.cumsum(dim=1) - 1, lengths, count) * is_token


def cosine_weights(position: Tensor, lengths: Tensor, count: int) -> Tensor:
    """Weights cos(pi k (position + 1/2) / length) / length of the pieces at `position` [...]:
    [count + 1, ...].
    """
    angle = math.pi * (position + 0.5) / lengths
    return torch.stack([torch.cos(k * angle) / lengths for k in range(count + 1)])


POOLINGS = {"mean": mean_pool, "mean_max": mean_max_pool}
