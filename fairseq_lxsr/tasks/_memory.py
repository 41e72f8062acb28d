"""Checks the memory that a model needs before any of it is allocated."""

import contextlib
import itertools
import os
from collections.abc import Callable

from torch import nn

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules.shapes import shapes_only


def check_memory(build: Callable[[], nn.Module]) -> None:
    """Refuse a model that this machine cannot hold.

    Args:
        build: builds the model; it is called on torch's device without memory.

    Raises:
        InputError: where weights and gradients, in float32, need more than the memory of the machine.
    """
    numbers = 0
    with contextlib.suppress(NotImplementedError, RuntimeError), shapes_only():
        model = build()  # one that cannot be made without memory passes
        numbers = sum(part.numel() for part in itertools.chain(model.parameters(), model.buffers()))
    needed, there = 2 * 4 * numbers, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise InputError(
            f"a model of {numbers:,} numbers needs {needed / 1e9:,.1f} GB for weights and gradients, this machine has "
            f"{there / 1e9:,.1f} GB; expected smaller widths, fewer layers, positions or dictionary entries"
        )
