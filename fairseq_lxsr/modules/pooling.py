"""Pooling of token states into one vector per sentence."""

import math

import torch
from torch import Tensor


def mean_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Mean over the real pieces; padding never changes it, and a sentence without pieces gives zeros.

    Example:
        >>> mean_pool(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
        [[3.0]]

    Args:
        states: [B, T, D] states of the tokens.
        is_token: [B, T] bool, False at padding.

    Returns:
        [B, D] in the type of `states`, summed in float32.
    """
    weights = is_token / is_token.sum(dim=1, keepdim=True).clamp_min(1)  # [B, T] float32
    with torch.autocast(states.device.type, enabled=False):
        pooled = torch.einsum("bt,btd->bd", weights, states.float())
    return pooled.to(states.dtype)


def max_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Largest value of each unit over the real pieces, negative or not; a sentence without pieces gives zeros.

    Example:
        >>> max_pool(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
        [[4.0]]

    Args:
        states: [B, T, D] states of the tokens.
        is_token: [B, T] bool, False at padding.

    Returns:
        [B, D].
    """
    hidden = states.masked_fill(~is_token[..., None], float("-inf")).max(dim=1).values
    return hidden.masked_fill(~is_token.any(dim=1, keepdim=True), 0)


def mean_max_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Concatenation of mean and maximum, the pooling of the encoder without parallel text (Wang et al.).

    Example:
        >>> mean_max_pool(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
        [[3.0, 4.0]]

    Args:
        states: [B, T, D] states of the tokens.
        is_token: [B, T] bool, False at padding.

    Returns:
        [B, 2D].
    """
    return torch.cat((mean_pool(states, is_token), max_pool(states, is_token)), dim=1)


def order_weights(is_token: Tensor, count: int) -> Tensor:
    """Weights of the cosine coefficients of a sentence, c_k = mean of cos(pi k (t + 1/2) / T) x_t; c_0 is the mean.

    They are the coefficients of the discrete cosine transform; c_1 compares the beginning with the end. Source:
    Almarwani, Aldarmaki and Diab 2019, who concatenate the c_k of the embeddings.

    Args:
        is_token: [B, T] bool, False at padding.
        count: largest k.

    Returns:
        [count + 1, B, T] float32, 0 at padding; padding never changes the other weights.
    """
    lengths = is_token.sum(dim=1, keepdim=True).clamp_min(1)  # [B, 1]
    return cosine_weights(is_token.cumsum(dim=1) - 1, lengths, count) * is_token


def cosine_weights(position: Tensor, lengths: Tensor, count: int) -> Tensor:
    """Weights cos(pi k (position + 1/2) / length) / length, for k = 0 to `count`: [count + 1, ...].

    `position` [...] is that of pieces in their sentences, of `lengths` pieces in a shape that broadcasts to it.
    """
    angle = math.pi * (position + 0.5) / lengths
    return torch.stack([torch.cos(k * angle) / lengths for k in range(count + 1)])


POOLINGS = {"mean": mean_pool, "mean_max": mean_max_pool}
