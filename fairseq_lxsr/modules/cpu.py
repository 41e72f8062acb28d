"""Number formats and process settings that make training on a CPU fast."""

import contextlib
import ctypes
import functools
import logging
import time

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

CPUINFO = "/proc/cpuinfo"  # of Linux
FLAGS = {  # of the instructions for products, their names there on x86 and Arm
    "bfloat16": {"amx_bf16", "avx512_bf16", "bf16"},
    "float16": {"amx_fp16", "avx512_fp16", "asimdhp"},
}
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc, malloc.h
KEPT_UPDATES = 50  # of training, after which freed memory is given back


def cpu_has(dtype: str) -> bool | None:
    """Whether the CPU has instructions for products in a type of `FLAGS`; None where the system
    does not say.
    """
    try:
        with open(CPUINFO, encoding="utf-8") as cpuinfo:
            return any(not FLAGS[dtype].isdisjoint(line.split()) for line in cpuinfo)
    except OSError:
        return None


def warn_if_slow(dtype: str) -> None:
    """Warn of a type whose products the CPU has to compute without instructions for it."""
    if dtype in FLAGS and cpu_has(dtype) is False:
        logger.warning(
            f"{dtype}: this processor has no instructions for it, it is slower than float32 here"
        )


def cpu_has_bfloat16_lstm() -> bool:
    """Whether torch can compute an LSTM in bfloat16: oneDNN has none for processors with AVX2
    only.
    """
    return not torch.backends.mkldnn.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def cpu_autocast_dtype(precision: str) -> torch.dtype:
    """Type of the matrix products for one of `options.CPU_PRECISIONS`."""
    warn_if_slow(precision)
    if precision == "auto":
        return faster_dtype() if cpu_has("bfloat16") else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


@functools.cache
def faster_dtype(rows: int = 2048, width: int = 512) -> torch.dtype:
    """Measure which type has the faster products, forwards and backwards: tens of milliseconds,
    once a process.
    """
    times = {dtype: _seconds(dtype, rows, width) for dtype in (torch.float32, torch.bfloat16)}
    # clearly faster, so that a busy machine rarely chooses otherwise in a run that is resumed
    chosen = torch.bfloat16 if times[torch.bfloat16] < 0.8 * times[torch.float32] else torch.float32
    measured = ", ".join(
        f"{str(dtype).removeprefix('torch.')} {1e3 * each:.1f} ms" for dtype, each in times.items()
    )
    logger.info(
        f"--cpu-precision auto: {str(chosen).removeprefix('torch.')}; products of a layer take {measured}"
    )
    return chosen


def _seconds(dtype: torch.dtype, rows: int, width: int) -> float:
    """Time the products of a layer [rows, width] x [width, width], the shortest of four; the first
    prepares.
    """
    # a model may be built on the device without memory meanwhile
    x = torch.ones(rows, width, device="cpu")
    weight = torch.ones(width, width, device="cpu", requires_grad=True)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16),
            torch.enable_grad(),
        ):
            product = torch.nn.functional.linear(x, weight)
        product.float().sum().backward()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def on_cpu(x: Tensor) -> bool:
    """Whether to compute in the way that is fast on a CPU; every other device takes the way of a
    GPU.
    """
    return x.device.type == "cpu"


def cpu_autocast(dtype: torch.dtype, tokens: Tensor) -> torch.autocast:
    """Context in which a batch on a CPU has its matrix products in `dtype`; on a GPU fairseq
    decides the precision.
    """
    return torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16 and on_cpu(tokens))


def tune_cpu() -> None:
    """Tune this process for training; call it before the first parallel operation, whose threads
    inherit the settings.

    Denormal numbers become zero: softmax gradients contain many of them, and they slow a step down
    by up to 4 times. Freed memory stays with the process: otherwise the page faults of the [V, D]
    gradients take a third of a step (glibc only; elsewhere nothing changes).
    """
    torch.set_flush_denormal(True)
    with contextlib.suppress(OSError, AttributeError, TypeError):  # TypeError on Windows
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_back_memory() -> None:
    """Give the memory that `tune_cpu` keeps back to the system (glibc only; elsewhere nothing
    happens).

    Batches of many lengths break it into parts that later ones cannot use, and a forked process
    holds a copy of it.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # TypeError on Windows
        ctypes.CDLL(None).malloc_trim(0)
