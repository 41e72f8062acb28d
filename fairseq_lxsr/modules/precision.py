"""Which number format a CPU computes fastest in."""

import torch

CPU_PRECISIONS = ("float32", "bfloat16", "auto")
BFLOAT16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}  # x86 and Arm names in /proc/cpuinfo


def cpu_has_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 products; without them autocast makes training slower."""
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            return any(not BFLOAT16_FLAGS.isdisjoint(line.split()) for line in cpuinfo)
    except OSError:
        return False


def cpu_autocast_dtype(precision: str) -> torch.dtype:
    """The type of the matrix products for one of `CPU_PRECISIONS`."""
    if precision not in CPU_PRECISIONS:
        raise ValueError(f"precision is {precision!r}; expected one of {CPU_PRECISIONS}")
    wanted = precision == "bfloat16" or (precision == "auto" and cpu_has_bfloat16())
    return torch.bfloat16 if wanted else torch.float32
