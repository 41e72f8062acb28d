"""Keeps a loss in float32 inside autocast and half-precision training."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
Losses = TypeVar("Losses", Tensor, tuple[Tensor, Tensor])


def in_float32(loss: Callable[P, Losses]) -> Callable[P, Losses]:
    """Decorate a loss: its floating-point arguments are cast to at least float32, and it runs
    without autocast.
    """

    def widen(value):
        if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            return value.float()
        if isinstance(value, tuple):  # several tensors that go together, by name
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
