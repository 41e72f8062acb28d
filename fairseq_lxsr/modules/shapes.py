"""Networks without memory: their names and shapes, before anything is allocated."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _NoValues(TorchFunctionMode):
    """Tensors without memory need no values; for some, torch would load its compiler, which takes seconds."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Call any function as it is, but random numbers, and products with a plain number."""
        given, name = kwargs or {}, func.__name__
        if name == "randn":
            return torch.empty(*args, **given)
        if name.endswith(("normal_", "uniform_")) or (name == "mul" and not isinstance(args[1], Tensor)):
            return args[0] if args else given["tensor"]
        return func(*args, **given)


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Build networks on torch's device without memory inside the block."""
    with torch.device("meta"), _NoValues():
        yield
