"""Pooling of token states into one vector per sentence."""

import math

import torch
from torch import Tensor


def mean_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Return the mean state of each sentence, summed in float32.

    Padding is ignored, and a sentence without pieces yields zeros.

    Example:
        >>> states = torch.tensor([[[2.0], [4.0], [9.0]]])
        >>> mean_pool(states, torch.tensor([[True, True, False]])).tolist()
        [[3.0]]

    Args:
        states: [B, T, D] states of the pieces.
        is_token: [B, T] bool, False at padding.

    Returns:
        Sentence vectors [B, D].
    """
    # [B, T] float32
    weights = is_token / is_token.sum(dim=1, keepdim=True).clamp_min(1)
    with torch.autocast(states.device.type, enabled=False):
        pooled = torch.einsum("bt,btd->bd", weights, states.float())
    return pooled.to(states.dtype)


def max_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Return the maximum of each state dimension over all pieces of a sentence.

    A sentence without pieces yields zeros.

    Example:
        >>> states = torch.tensor([[[2.0], [4.0], [9.0]]])
        >>> max_pool(states, torch.tensor([[True, True, False]])).tolist()
        [[4.0]]

    Args:
        states: [B, T, D] states of the pieces.
        is_token: [B, T] bool, False at padding.

    Returns:
        Sentence vectors [B, D].
    """
    hidden = states.masked_fill(~is_token[..., None], float("-inf")).max(dim=1).values
    return hidden.masked_fill(~is_token.any(dim=1, keepdim=True), 0)


def mean_max_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Return the concatenation of `mean_pool` and `max_pool`.

    The encoder for training without parallel text uses this pooling (Wang et al.).

    Example:
        >>> states = torch.tensor([[[2.0], [4.0], [9.0]]])
        >>> mean_max_pool(states, torch.tensor([[True, True, False]])).tolist()
        [[3.0, 4.0]]

    Args:
        states: [B, T, D] states of the pieces.
        is_token: [B, T] bool, False at padding.

    Returns:
        Sentence vectors [B, 2D].
    """
    return torch.cat((mean_pool(states, is_token), max_pool(states, is_token)), dim=1)


def order_weights(is_token: Tensor, count: int) -> Tensor:
    """Compute the weights of each piece in a sentence's cosine coefficients.

    The coefficients c_k = mean of cos(pi k (t + 1/2) / T) x_t are a discrete cosine transform of
    the T piece embeddings x_t: c_0 is the mean, and c_1 contrasts the beginning with the end.

    Source: Almarwani, Aldarmaki and Diab 2019, who concatenate the coefficients.

    Args:
        is_token: [B, T] bool, False at padding, which has weight 0.
        count: largest k.

    Returns:
        Weights [count + 1, B, T].
    """
    # [B, 1]
    lengths = is_token.sum(dim=1, keepdim=True).clamp_min(1)
    return cosine_weights(is_token.cumsum(dim=1) - 1, lengths, count) * is_token


def cosine_weights(position: Tensor, lengths: Tensor, count: int) -> Tensor:
    """Compute the weights cos(pi k (t + 1/2) / T) / T for k from 0 to `count`.

    Args:
        position: [...] position t of each piece.
        lengths: [...] length T of the piece's sentence.
        count: largest k.

    Returns:
        Weights [count + 1, ...].
    """
    angle = math.pi * (position + 0.5) / lengths
    return torch.stack([torch.cos(k * angle) / lengths for k in range(count + 1)])


POOLINGS = {"mean": mean_pool, "mean_max": mean_max_pool}
