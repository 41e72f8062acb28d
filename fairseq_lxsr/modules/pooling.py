"""From token states to one vector per sentence."""

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
