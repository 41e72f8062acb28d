"""From token states to one vector per sentence."""

import math

import torch
from torch import Tensor


def mean_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Mean over the real word pieces; padding never changes it, a sentence without pieces gives zeros.

    Args:
        states: [B, T, D].
        is_token: [B, T] bool, False at padding.
    Returns: [B, D] in the type of `states`, summed in float32.
    """
    weights = is_token / is_token.sum(dim=1, keepdim=True).clamp_min(1)  # [B, T] float32
    with torch.autocast(states.device.type, enabled=False):
        pooled = torch.einsum("bt,btd->bd", weights, states.float())
    return pooled.to(states.dtype)


def max_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """The largest value of each unit over the real word pieces, negative or not; zeros for a sentence without any.

    Args: as `mean_pool`.
    Returns: [B, D].
    """
    hidden = states.masked_fill(~is_token[..., None], float("-inf")).max(dim=1).values
    return hidden.masked_fill(~is_token.any(dim=1, keepdim=True), 0)


def mean_max_pool(states: Tensor, is_token: Tensor) -> Tensor:
    """Mean and maximum side by side.

    Args: as `mean_pool`.
    Returns: [B, 2D].
    """
    return torch.cat((mean_pool(states, is_token), max_pool(states, is_token)), dim=1)


def order_weights(is_token: Tensor, count: int) -> Tensor:
    """Weights of the mean, then of how the states change over a sentence: c_k = mean of cos(pi k (t + 1/2) / T) x_t.

    The coefficients of the discrete cosine transform; c_1 weighs the beginning against the end. Source: Almarwani,
    Aldarmaki and Diab 2019, who put the c_k of the embeddings side by side.

    Args: is_token: [B, T] bool, False at padding.
    Returns: [count + 1, B, T] float32, 0 at padding, which never changes them.
    """
    lengths = is_token.sum(dim=1, keepdim=True).clamp_min(1)  # [B, 1]
    return cosine_weights(is_token.cumsum(dim=1) - 1, lengths, count) * is_token


def cosine_weights(place: Tensor, lengths: Tensor, count: int) -> Tensor:
    """cos(pi k (place + 1/2) / length) / length for k = 0 to count; [...] and what fits to it -> [count + 1, ...]."""
    angle = math.pi * (place + 0.5) / lengths
    return torch.stack([torch.cos(k * angle) / lengths for k in range(count + 1)])


POOLINGS = {"mean": mean_pool, "mean_max": mean_max_pool}
