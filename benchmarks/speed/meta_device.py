"""A GPU that is not there: torch's device `meta`, which has shapes and types but no numbers, with
the rules of CUDA.

What runs here runs on a GPU as far as devices, types and waiting go. Kernels, their numbers and
their time need one.
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

# torch has no autocast of its own for this device
KEY = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
KEYS = torch._C.DispatchKeySet(KEY)
HEADER = "include/ATen/autocast_mode.h"  # the lists of CUDA: what is computed in half precision, what in float32
# functions of Python that copy numbers to a device or from it, or wait for it
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
# operations whose result has as many rows as the numbers say, which the host has to know
OF_NUMBERS = (
    "nonzero",
    "masked_select",
    "_local_scalar_dense",
    "unique",
    "bincount",
    "equal",
    "is_nonzero",
)


class WaitsForDeviceError(RuntimeError):
    """A step that is not a sequence of kernels: it computes on the host, or waits for what the
    device has computed.
    """


class OnDeviceOnly(TorchDispatchMode):
    """Refuses operations that leave the device, or whose result has a size that only the numbers
    tell.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation, and look at what comes out."""
        name = func.overloadpacket.__name__
        indexes = args[1] if name.startswith("index_put") else ()
        if name.lstrip("_").startswith(OF_NUMBERS) or any(_is_mask(index) for index in indexes):
            raise WaitsForDeviceError(
                f"{func}: the size of its result, or its value, is not known without the numbers"
            )
        # what torch calls to find shapes is no part of the step
        with torch._C.DisableTorchFunction(), torch._C._ExcludeDispatchKeyGuard(KEYS):
            result = func(*args, **(kwargs or {}))
        for value in _tensors((*args, result)):
            if not value.is_meta and value.numel() > 1:
                raise WaitsForDeviceError(
                    f"{func}: a tensor {list(value.shape)} on the {value.device}"
                )
        return result


class NothingFromTheHost(TorchFunctionMode):
    """Refuses functions that read a tensor on the host, or make one there and copy it; `meta` has
    nothing to copy.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Call a function that does neither."""
        if func.__name__ in WAITING:
            raise WaitsForDeviceError(f"{func.__name__}: copies between host and device")
        places = args[1] if func.__name__ in ("__getitem__", "__setitem__") else ()
        if any(
            isinstance(place, list)
            for place in (places if isinstance(places, tuple) else (places,))
        ):
            raise WaitsForDeviceError(f"index {places}: a list is copied from the host")
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
    casts: ClassVar[dict[Tensor, Tensor]] = {}  # of weights, made once in a block, as on CUDA


class MetaAutocast(contextlib.ContextDecorator):
    """Takes the place of torch.autocast, which does not know the device."""

    def __init__(self, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True):
        self.own = device_type == "meta"
        self.other = None if self.own else _AUTOCAST(device_type, dtype, enabled)
        self.dtype = dtype if enabled else None

    def __enter__(self) -> "MetaAutocast":
        if self.other is not None:
            self.other.__enter__()
        else:
            self.before = _State.dtype
            _switch(self.dtype)
        return self

    def __exit__(self, *error) -> None:
        if self.other is not None:
            self.other.__exit__(*error)
        else:
            _switch(self.before)


_AUTOCAST = torch.autocast


@contextlib.contextmanager
def cuda_autocast(dtype: torch.dtype | None) -> Iterator[None]:
    """Run the block on `meta` with CUDA's autocast to `dtype`, or with none."""
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
    torch._C._dispatch_tls_set_dispatch_key_excluded(KEY, dtype is None)  # as it is by default


@cache
def _register() -> None:
    """Give each operation of CUDA's lists its rule."""
    everything, library = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _State.libraries = [everything, library]  # what they register ends with them
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for rule, names in cuda_lists().items():
        for name, overload in names:
            operation = getattr(getattr(torch.ops.aten, name), overload)
            library.impl(operation, _with(RULES[rule], operation), "AutocastPrivateUse1")


def cuda_lists() -> dict[str, list[tuple[str, str]]]:
    """Read the lists of torch's own header.

    Returns:
        name and overload of the operations, by the name of the rule.
    """
    text = (Path(torch.__file__).parent / HEADER).read_text()
    found = {}
    for rule in RULES:
        body = re.search(rf"#define AT_FORALL_{rule}\(_\)(.*?[^\\])\n", text, re.DOTALL)
        assert body is not None, rule
        entries = re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])
        found[rule] = [(name, overload or "default") for name, overload in entries]
    return found


def _with(rule: Callable[..., Any], operation: Any) -> Callable[..., Any]:
    def run(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(KEYS):
            return rule(operation, args, kwargs)

    return run


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.dtype not in (dtype, torch.float64)
    ):
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
    assert _State.dtype is not None  # else no rule is asked
    return _State.dtype


def _in_half(operation: Any, args: Any, kwargs: Any) -> Any:
    return _all_in(_half(), operation, args, kwargs)


def _in_float32(operation: Any, args: Any, kwargs: Any) -> Any:
    return _all_in(torch.float32, operation, args, kwargs)


def _in_widest(operation: Any, args: Any, kwargs: Any) -> Any:
    types = {
        value.dtype
        for value in tree_leaves(args)
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    return _all_in(torch.float32 if torch.float32 in types else _half(), operation, args, kwargs)


RULES = {
    "LOWER_PRECISION_FP": _in_half,
    "FP32": _in_float32,
    "FP32_SET_OPT_DTYPE": _in_float32,
    "PROMOTE": _in_widest,
}
