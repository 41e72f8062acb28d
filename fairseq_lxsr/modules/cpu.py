"""CPU data types and process settings for fast training."""

import contextlib
import ctypes
import functools
import logging
import time

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

# Linux file that describes the processor.
CPUINFO = "/proc/cpuinfo"
# Flags of matrix multiplication instructions in that file, on x86 and Arm, by dtype.
FLAGS = {
    "bfloat16": {"amx_bf16", "avx512_bf16", "bf16"},
    "float16": {"amx_fp16", "avx512_fp16", "asimdhp"},
}
# Parameters for mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
# Number of updates after which training returns unused memory to the system.
TRIM_INTERVAL = 50


def cpu_has(dtype: str) -> bool | None:
    """Return whether the CPU has matrix multiplication instructions for a dtype from `FLAGS`.

    The result is None if the system does not report its CPU flags.
    """
    try:
        with open(CPUINFO, encoding="utf-8") as cpuinfo:
            return any(not FLAGS[dtype].isdisjoint(line.split()) for line in cpuinfo)
    except OSError:
        return None


def warn_if_slow(dtype: str) -> None:
    """Log a warning if the CPU has no matrix multiplication instructions for a dtype."""
    if dtype in FLAGS and cpu_has(dtype) is False:
        logger.warning(
            f"{dtype} is slower than float32 on this CPU, which has no matrix multiplication "
            "instructions for it"
        )


def cpu_has_bfloat16_lstm() -> bool:
    """Return whether torch supports bfloat16 LSTMs on this CPU.

    oneDNN does not support them on processors that only have AVX2.
    """
    return not torch.backends.mkldnn.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def cpu_autocast_dtype(precision: str) -> torch.dtype:
    """Return the matrix multiplication dtype for one of `options.CPU_PRECISIONS`.

    A warning is logged if the dtype is slow on this CPU.
    """
    warn_if_slow(precision)
    if precision == "auto":
        return faster_dtype() if cpu_has("bfloat16") else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


@functools.cache
def faster_dtype() -> torch.dtype:
    """Return bfloat16 if matrix multiplications are clearly faster in it, and float32 otherwise.

    The benchmark measures forward and backward passes. It takes tens of milliseconds and runs once
    per process.
    """
    times = {dtype: _seconds(dtype) for dtype in (torch.float32, torch.bfloat16)}
    # bfloat16 must be clearly faster, so that a busy machine rarely changes a resumed run's dtype.
    is_faster = times[torch.bfloat16] < 0.8 * times[torch.float32]
    dtype = torch.bfloat16 if is_faster else torch.float32
    float32_time = f"{1e3 * times[torch.float32]:.1f} ms"
    bfloat16_time = f"{1e3 * times[torch.bfloat16]:.1f} ms"
    logger.info(
        f"--cpu-precision auto selected {str(dtype).removeprefix('torch.')}; the matrix "
        f"multiplications of a layer take {float32_time} in float32 and {bfloat16_time} in bfloat16"
    )
    return dtype


def _seconds(dtype: torch.dtype) -> float:
    """Time one layer's matrix multiplications in seconds: the best of three runs after a warm-up.

    Each multiplication is [2048, 512] x [512, 512], with forward and backward pass.
    """
    # Set the device explicitly, because a model may currently be under construction on meta.
    x = torch.ones(2048, 512, device="cpu")
    weight = torch.ones(512, 512, device="cpu", requires_grad=True)
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
    """Return whether to use the CPU implementation; all other devices use the GPU version."""
    return x.device.type == "cpu"


def cpu_autocast(dtype: torch.dtype, tokens: Tensor) -> torch.autocast:
    """Return a context manager that runs matrix multiplications in `dtype` on a CPU.

    On a GPU, fairseq selects the precision.
    """
    return torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16 and on_cpu(tokens))


def tune_cpu() -> None:
    """Configure this process for fast training on a CPU.

    Call this before the first parallel operation, because worker threads inherit the settings.

    Denormal numbers are flushed to zero: softmax gradients contain many of them, and they can make
    a step 4 times slower. The process keeps freed memory: otherwise page faults in the [V, D]
    gradients take a third of each step. Keeping memory requires glibc.
    """
    torch.set_flush_denormal(True)
    # Windows raises TypeError.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def trim_memory() -> None:
    """Give freed memory, which the process keeps after `tune_cpu`, back to the system (glibc only).

    Batches of many different lengths fragment that memory so that later batches cannot use it, and
    forked processes hold a copy of it.
    """
    # Windows raises TypeError.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
