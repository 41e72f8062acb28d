"""A simulated GPU: torch's device `meta`, which has shapes and types but no numbers.

It follows the rules of CUDA. Code that runs here runs on a GPU as far as devices, types and waiting
are concerned. Kernels, their results and their time need a real GPU.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# torch has no autocast for `meta`; this key is free.
KEY = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
KEYS = torch._C.DispatchKeySet(KEY)
# CUDA's lists of the operations that run in half precision, and of those in float32.
HEADER = "include/ATen/autocast_mode.h"
# Functions that copy numbers to a device or from it, or that wait for the device.
WAITING = (
    "item",
    "tolist",
    "cpu",
    "numpy",
    "tensor",
    "as_tensor",
    "new_tensor",
    "from_numpy",
    "__bool__",
    "__float__",
)
# Operations whose result has a size that depends on the numbers, which the host must know.
DATA_DEPENDENT = (
    "nonzero",
    "masked_select",
    "_local_scalar_dense",
    "unique",
    "bincount",
    "equal",
    "is_nonzero",
)


class WaitsForDeviceError(RuntimeError):
    """A step computes on the host, or waits for a result of the device."""


class OnDeviceOnly(TorchDispatchMode):
    """Refuses operations that leave the device or whose result has a data-dependent size."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation, and check its arguments and its result."""
        name = func.overloadpacket.__name__
        indexes = args[1] if name.startswith("index_put") else ()
        if name.lstrip("_").startswith(DATA_DEPENDENT) or any(map(_is_mask, indexes)):
            raise WaitsForDeviceError(f"{func}: its result depends on the numbers")
        # The functions that torch calls to find shapes are not part of the step.
        with torch._C.DisableTorchFunction(), torch._C._ExcludeDispatchKeyGuard(KEYS):
            result = func(*args, **(kwargs or {}))
        for value in _tensors((*args, result)):
            if not value.is_meta and value.numel() > 1:
                raise WaitsForDeviceError(
                    f"{func}: a tensor {list(value.shape)} on the {value.device}"
                )
        return result


class NothingFromTheHost(TorchFunctionMode):
    """Refuses functions that read a tensor on the host, or make one there and copy it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Call a function that does neither."""
        if func.__name__ in WAITING:
            raise WaitsForDeviceError(f"{func.__name__}: copies between host and device")
        if func.__name__ in ("__getitem__", "__setitem__"):
            index = args[1]
            parts = index if isinstance(index, tuple) else (index,)
            if any(isinstance(part, list) for part in parts):
                raise WaitsForDeviceError(f"index {index}: a list is copied from the host")
        return func(*args, **(kwargs or {}))


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype is torch.bool


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """Refuse whatever would make a GPU wait inside the block."""
    with NothingFromTheHost(), OnDeviceOnly():
        yield


class _State:
    dtype: torch.dtype | None = None
    libraries: ClassVar[list[torch.library.Library]] = []
    # The weights in half precision, which are made once per block, as on CUDA.
    casts: ClassVar[dict[Tensor, Tensor]] = {}


class MetaAutocast(contextlib.ContextDecorator):
    """Replaces torch.autocast, which does not know `meta`; other devices use torch's."""

    def __init__(self, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True):
        self.torch_autocast = None
        if device_type != "meta":
            self.torch_autocast = _AUTOCAST(device_type, dtype, enabled)
        self.dtype = dtype if enabled else None

    def __enter__(self) -> "MetaAutocast":
        if self.torch_autocast is not None:
            self.torch_autocast.__enter__()
        else:
            self.before = _State.dtype
            _switch(self.dtype)
        return self

    def __exit__(self, *error) -> None:
        if self.torch_autocast is not None:
            self.torch_autocast.__exit__(*error)
        else:
            _switch(self.before)


_AUTOCAST = torch.autocast


@contextlib.contextmanager
def cuda_autocast(dtype: torch.dtype | None) -> Iterator[None]:
    """Run the block on `meta` with CUDA's autocast to `dtype`; None: without autocast."""
    _register()
    torch.autocast = MetaAutocast  # type: ignore[assignment, misc]
    try:
        with MetaAutocast("meta", dtype):
            yield
    finally:
        torch.autocast = _AUTOCAST  # type: ignore[misc]
        _State.casts.clear()


def _switch(dtype: torch.dtype | None) -> None:
    _State.dtype = dtype
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, dtype is not None)
    # The key is excluded by default.
    torch._C._dispatch_tls_set_dispatch_key_excluded(KEY, dtype is None)


@cache
def _register() -> None:
    """Register the rule of each operation in CUDA's lists."""
    fallback = torch.library.Library("_", "IMPL")
    library = torch.library.Library("aten", "IMPL")
    # torch unregisters the rules when these objects are deleted.
    _State.libraries = [fallback, library]
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for rule, names in cuda_lists().items():
        for name, overload in names:
            operation = getattr(getattr(torch.ops.aten, name), overload)
            library.impl(operation, _with(RULES[rule], operation), "AutocastPrivateUse1")


def cuda_lists() -> dict[str, list[tuple[str, str]]]:
    """Read the lists from a header file of torch.

    Returns:
        The name and the overload of each operation, by the name of the rule.
    """
    text = (Path(torch.__file__).parent / HEADER).read_text()
    operations = {}
    for rule in RULES:
        body = re.search(rf"#define AT_FORALL_{rule}\(_\)(.*?[^\\])\n", text, re.DOTALL)
        assert body is not None, rule
        entries = re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])
        operations[rule] = [(name, overload or "default") for name, overload in entries]
    return operations


def _with(rule: Callable[..., Any], operation: Any) -> Callable[..., Any]:
    def run(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(KEYS):
            return rule(operation, args, kwargs)

    return run


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    if value.dtype in (dtype, torch.float64):
        return value
    if not (value.is_leaf and value.requires_grad):
        return value.to(dtype)
    if value not in _State.casts:
        _State.casts[value] = value.to(dtype)
    return _State.casts[value]


def _all_in(dtype: torch.dtype, operation: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = tree_map(lambda value: _cast(value, dtype), (args, kwargs))
    return operation(*args, **kwargs)


def _half() -> torch.dtype:
    # The rules only run inside an autocast block.
    assert _State.dtype is not None
    return _State.dtype


def _in_half(operation: Any, args: Any, kwargs: Any) -> Any:
    return _all_in(_half(), operation, args, kwargs)


def _in_float32(operation: Any, args: Any, kwargs: Any) -> Any:
    return _all_in(torch.float32, operation, args, kwargs)


def _in_widest(operation: Any, args: Any, kwargs: Any) -> Any:
    tensors = [value for value in tree_leaves(args) if isinstance(value, Tensor)]
    if any(tensor.dtype is torch.float32 for tensor in tensors):
        return _in_float32(operation, args, kwargs)
    return _in_half(operation, args, kwargs)


RULES = {
    "LOWER_PRECISION_FP": _in_half,
    "FP32": _in_float32,
    "FP32_SET_OPT_DTYPE": _in_float32,
    "PROMOTE": _in_widest,
}
