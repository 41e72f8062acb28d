"""Pooling of token states into one vector per sentence."""

import math

import torch
from torch import Tensor


def mean_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Return the mean of the states of each sentence, summed in float32: [B, D].

    Padding does not change it, and a sentence without pieces gives zeros.

    Example:
        >>> states = torch.tensor([[[2.0], [4.0], [9.0]]])
        >>> mean_pool(states, torch.tensor([[True, True, False]])).tolist()
        [[3.0]]

    Args:
        states: [B, T, D] states of the pieces.
        is_token: [B, T] bool, False at padding.
    """
    # [B, T] float32
    weights = is_token / is_token.sum(dim=1, keepdim=True).clamp_min(1)
    with torch.autocast(states.device.type, enabled=False):
        pooled = torch.einsum("bt,btd->bd", weights, states.float())
    return pooled.to(states.dtype)


def max_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Return the maximum of each unit over all pieces of a sentence: [B, D].

    A sentence without pieces gives zeros.

    Example:
        >>> states = torch.tensor([[[2.0], [4.0], [9.0]]])
        >>> max_pool(states, torch.tensor([[True, True, False]])).tolist()
        [[4.0]]

    Args:
        states: [B, T, D] states of the pieces.
        is_token: [B, T] bool, False at padding.
    """
    hidden = states.masked_fill(~is_token[..., None], float("-inf")).max(dim=1).values
    return hidden.masked_fill(~is_token.any(dim=1, keepdim=True), 0)


def mean_max_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Return the concatenation of `mean_pool` and `max_pool`: [B, 2D].

    The encoder that is trained without parallel text has this pooling (Wang et al.).

    Example:
        >>> states = torch.tensor([[[2.0], [4.0], [9.0]]])
        >>> mean_max_pool(states, torch.tensor([[True, True, False]])).tolist()
        [[3.0, 4.0]]

    Args:
        states: [B, T, D] states of the pieces.
        is_token: [B, T] bool, False at padding.
    """
    return torch.cat((mean_pool(states, is_token), max_pool(states, is_token)), dim=1)


def order_weights(is_token: Tensor, count: int) -> Tensor:
    """Return the weight of each piece in a sentence's cosine coefficients: [count + 1, B, T].

    The coefficients c_k = mean of cos(pi k (t + 1/2) / T) x_t are a discrete cosine transform: c_0
    is the mean, and c_1 compares the beginning with the end.

    Source: Almarwani, Aldarmaki and Diab 2019, who concatenate the c_k of the embeddings.

    Args:
        is_token: [B, T] bool, False at padding, which gets the weight 0.
        count: the largest k.
    """
    # [B, 1]
    lengths = is_token.sum(dim=1, keepdim=True).clamp_min(1)
    return cosine_weights(is_token.cumsum(dim=1) - 1, lengths, count) * is_token


def cosine_weights(position: Tensor, lengths: Tensor, count: int) -> Tensor:
    """Return the weights cos(pi k (t + 1/2) / T) / T for k from 0 to `count`: [count + 1, ...].

    Args:
        position: [...] t, the position of each piece.
        lengths: [...] T, the length of its sentence.
        count: the largest k.
    """
    angle = math.pi * (position + 0.5) / lengths
    return torch.stack([torch.cos(k * angle) / lengths for k in range(count + 1)])


POOLINGS = {"mean": mean_pool, "mean_max": mean_max_pool}
