"""Number formats and process settings that make training on a CPU fast."""

import contextlib
import ctypes
import functools
import logging
import time

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

# The processor's description on Linux
CPUINFO = "/proc/cpuinfo"
# Names of the instructions for matrix products in each type, as this file has them on x86 and Arm
FLAGS = {
    "bfloat16": {"amx_bf16", "avx512_bf16", "bf16"},
    "float16": {"amx_fp16", "avx512_fp16", "asimdhp"},
}
# Parameters of mallopt, from glibc's malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
# Number of updates after which training returns freed memory to the system
TRIM_INTERVAL = 50


def cpu_has(dtype: str) -> bool | None:
    """Return whether the CPU has instructions for matrix products in a type of `FLAGS`.

    None if the system does not tell.
    """
    try:
        with open(CPUINFO, encoding="utf-8") as cpuinfo:
            return any(not FLAGS[dtype].isdisjoint(line.split()) for line in cpuinfo)
    except OSError:
        return None


def warn_if_slow(dtype: str) -> None:
    """Log a warning if the CPU has no instructions for matrix products in a type."""
    if dtype in FLAGS and cpu_has(dtype) is False:
        logger.warning(
            f"{dtype}: slower than float32 on this processor, which has no instructions for it"
        )


def cpu_has_bfloat16_lstm() -> bool:
    """Return whether torch can compute an LSTM in bfloat16.

    oneDNN cannot on processors with AVX2 only.
    """
    return not torch.backends.mkldnn.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def cpu_autocast_dtype(precision: str) -> torch.dtype:
    """Return the type of matrix products for one of `options.CPU_PRECISIONS`."""
    warn_if_slow(precision)
    if precision == "auto":
        return faster_dtype() if cpu_has("bfloat16") else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


@functools.cache
def faster_dtype(rows: int = 2048, width: int = 512) -> torch.dtype:
    """Return the type whose matrix products are faster, forward and backward together.

    The measurement takes tens of milliseconds, once per process.
    """
    times = {dtype: _seconds(dtype, rows, width) for dtype in (torch.float32, torch.bfloat16)}
    # bfloat16 must be clearly faster, so that a resumed run rarely chooses another type if the
    # machine is busy.
    is_faster = times[torch.bfloat16] < 0.8 * times[torch.float32]
    dtype = torch.bfloat16 if is_faster else torch.float32
    float32_time = f"{1e3 * times[torch.float32]:.1f} ms"
    bfloat16_time = f"{1e3 * times[torch.bfloat16]:.1f} ms"
    logger.info(
        f"--cpu-precision auto: {str(dtype).removeprefix('torch.')}; the matrix products of a "
        f"layer take {float32_time} in float32 and {bfloat16_time} in bfloat16"
    )
    return dtype


def _seconds(dtype: torch.dtype, rows: int, width: int) -> float:
    """Return the seconds that the products of a layer take: the least of three, after a warm-up.

    The products are [rows, width] x [width, width], forward and backward.
    """
    # The device is given, because a model may be built on the meta device meanwhile.
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
    """Return whether to use the implementation for a CPU; all other devices use that for a GPU."""
    return x.device.type == "cpu"


def cpu_autocast(dtype: torch.dtype, tokens: Tensor) -> torch.autocast:
    """Return a context in which matrix products of a batch on a CPU are computed in `dtype`.

    On a GPU, fairseq decides the precision.
    """
    return torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16 and on_cpu(tokens))


def tune_cpu() -> None:
    """Tune this process for training on a CPU.

    Call this before the first parallel operation, whose threads inherit the settings.

    Denormal numbers become zero: softmax gradients contain many of them, and they slow a step down
    by up to 4 times. The process keeps freed memory: otherwise the page faults of the [V, D]
    gradients take a third of a step. The latter is done with glibc only.
    """
    torch.set_flush_denormal(True)
    # Windows raises TypeError.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def trim_memory() -> None:
    """Return freed memory, which a process keeps after `tune_cpu`, to the system (glibc only).

    Batches of many lengths break it into parts that later batches cannot use, and forked processes
    hold a copy of it.
    """
    # Windows raises TypeError.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
