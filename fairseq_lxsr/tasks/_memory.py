"""How large a model will be, found before any memory is taken for it."""

import contextlib
import itertools
import os
from collections.abc import Callable

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fairseq_lxsr.errors import InputError


class _NoRandomNumbers(TorchFunctionMode):
    """Without memory they mean nothing, and torch would import for seconds what makes them there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return (torch.empty if func is torch.randn else func)(*args, **(kwargs or {}))


def check_memory(build: Callable[[], nn.Module]) -> None:
    """Refuse a model that this machine cannot hold.

    Args: build: makes it; called on torch's device without memory.
    Raises: InputError where weights and gradients, in float32, are more than the memory of the machine.
    """
    numbers = 0
    with contextlib.suppress(NotImplementedError, RuntimeError), torch.device("meta"), _NoRandomNumbers():
        model = build()  # one that cannot be made without memory passes
        numbers = sum(part.numel() for part in itertools.chain(model.parameters(), model.buffers()))
    needed, there = 2 * 4 * numbers, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise InputError(
            f"a model of {numbers:,} numbers needs {needed / 1e9:,.1f} GB for weights and gradients, this machine has "
            f"{there / 1e9:,.1f} GB; expected smaller widths, fewer layers, positions or dictionary entries"
        )
