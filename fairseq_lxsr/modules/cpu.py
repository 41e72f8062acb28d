"""Number formats and process settings that make training on a CPU fast."""

import contextlib
import ctypes

import torch
from torch import Tensor

from fairseq_lxsr.choices import CPU_PRECISIONS

BFLOAT16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}  # x86 and Arm names in /proc/cpuinfo
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc, malloc.h


def cpu_has_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 products; without them autocast makes training slower."""
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            return any(not BFLOAT16_FLAGS.isdisjoint(line.split()) for line in cpuinfo)
    except OSError:
        return False


def cpu_autocast_dtype(precision: str) -> torch.dtype:
    """Type of the matrix products for one of `CPU_PRECISIONS`."""
    if precision not in CPU_PRECISIONS:
        raise ValueError(f"precision is {precision!r}; expected one of {CPU_PRECISIONS}")
    wanted = precision == "bfloat16" or (precision == "auto" and cpu_has_bfloat16())
    return torch.bfloat16 if wanted else torch.float32


def on_cpu(x: Tensor) -> bool:
    """Whether to compute in the way that is fast on a CPU; every other device takes the way of a GPU."""
    return x.device.type == "cpu"


def cpu_autocast(dtype: torch.dtype, tokens: Tensor) -> torch.autocast:
    """Context in which a batch on a CPU has its matrix products in `dtype`; on a GPU fairseq decides the precision."""
    return torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16 and on_cpu(tokens))


def tune_cpu() -> None:
    """Tune this process for training; call it before the first parallel operation, whose threads inherit the settings.

    Denormal numbers become zero: softmax gradients contain many of them, and they slow a step down by up to 4 times.
    Freed memory stays with the process: otherwise the page faults of the [V, D] gradients take a third of a step (glibc
    only; elsewhere nothing changes).
    """
    torch.set_flush_denormal(True)
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
