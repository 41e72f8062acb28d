"""Checks which optional packages, devices and processor cores are available."""

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairseq_lxsr.errors import InputError, install_command


def require(module: str, extra: str, feature: str) -> None:
    """Check that an optional package is installed.

    Args:
        module: the module to import.
        extra: the extra of fairseq-lxsr that installs it.
        feature: name of the feature that needs the module; the message begins with it.

    Raises:
        InputError: if the module is missing; the message contains the command that installs it.
    """
    if is_missing(module):
        raise InputError(
            f"{feature} needs {module}, which is not installed: {install_command(extra)}"
        )


def is_missing(module: str) -> bool:
    """Return whether a module is not installed. Only its parent packages are imported."""
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:
        # The parent package is not installed.
        return True


def lazy_getattr(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a package's `__getattr__` that imports a module on first use of its names.

        __getattr__ = lazy_getattr(__name__, {"onnx": ("export_onnx",)})

    Args:
        package: name of the package.
        modules: the names that each module of the package defines.
    """

    def import_name(name: str) -> Any:
        for module, names in modules.items():
            if name in names:
                return getattr(importlib.import_module(f"{package}.{module}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return import_name


def check_device(device: Any, option: str = "device") -> None:
    """Check that a device is available on this machine.

    None and `cpu` are accepted without torch, which takes seconds to import.

    Args:
        device: for example None, cpu, cuda or cuda:0.
        option: name of the option, for the message.

    Raises:
        InputError: if the machine does not have the device, or torch is missing.
    """
    if device in (None, "cpu"):
        return
    require("torch", "torch", f"{option} {device}")
    import torch

    gpu_count = torch.cuda.device_count()
    kind, colon, number = str(device).partition(":")
    count = {"cpu": 1, "cuda": gpu_count}.get(kind, 0)
    numbers = [str(index) for index in range(count)]
    if count and (not colon or number in numbers):
        return
    expected = "cpu: torch does not find a CUDA device"
    if gpu_count:
        expected = f"cpu, or cuda:0 to cuda:{gpu_count - 1}"
    raise InputError(f"{option} {device}: no such device; expected {expected}")


def usable_threads() -> int:
    """Return the number of cores that this process may use, at most OMP_NUM_THREADS."""
    # macOS and Windows do not support CPU affinity.
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if not limit.isdecimal():
        return cores
    return min(cores, max(1, int(limit)))
