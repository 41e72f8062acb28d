"""Computes losses in float32 when training in lower precision."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
Losses = TypeVar("Losses", bound=Tensor | tuple[Tensor, ...])


def in_float32(loss: Callable[P, Losses]) -> Callable[P, Losses]:
    """Decorator that disables autocast for a loss, and converts 16-bit arguments to float32."""

    def widen(value):
        if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            return value.float()
        # `Candidates` and `Negatives` are NamedTuples of tensors.
        if isinstance(value, tuple):
            return type(value)(*map(widen, value))
        return value

    @functools.wraps(loss)
    def run(*args: P.args, **kwargs: P.kwargs) -> Losses:
        device = next(
            value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor)
        )
        with torch.autocast(device, enabled=False):
            return loss(*map(widen, args), **{name: widen(value) for name, value in kwargs.items()})

    return run
