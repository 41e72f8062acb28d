"""Checks for optional packages and devices, which only some commands need."""

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairseq_lxsr.errors import InputError, install_command


def require(module: str, extra: str, what: str) -> None:
    """Check for an optional package, which an extra of fairseq-lxsr installs, before any work;
    `what` needs it.
    """
    if is_missing(module):
        raise InputError(f"{what} needs {module}, which is not installed: {install_command(extra)}")


def is_missing(module: str) -> bool:
    """Return whether a module is missing; only its parent packages are imported."""
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # the parent package is missing
        return True


def lazy_getattr(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports its modules when a name that they define
    is first used.
    """

    def find(name: str) -> Any:
        for module, names in modules.items():
            if name in names:
                return getattr(importlib.import_module(f"{package}.{module}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


def check_device(device: Any, what: str = "device") -> None:
    """Check that a device is one of this machine: cpu, cuda or cuda:0; `what` names the option in
    the message.

    None and `cpu` are right without torch, which takes seconds to import.
    """
    if device in (None, "cpu"):
        return
    require("torch", "torch", f"{what} {device}")
    import torch

    gpus = torch.cuda.device_count()
    kind, colon, number = str(device).partition(":")
    count = {"cpu": 1, "cuda": gpus}.get(kind, 0)
    if not count or (colon and number not in map(str, range(count))):
        there = f"cpu, or cuda:0 to cuda:{gpus - 1}" if gpus else "cpu, as torch finds no CUDA here"
        raise InputError(f"{what} {device}; expected {there}")


def usable_threads() -> int:
    """Cores that this process may use, at most OMP_NUM_THREADS."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, max(1, int(wanted))) if wanted.isdecimal() else cores
