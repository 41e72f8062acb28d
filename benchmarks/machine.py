"""What a result was measured on."""

import contextlib
import os
import platform

import torch


def cpu_name() -> str:
    """As Linux says it, or the architecture."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as cpuinfo:
        return next(line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name"))
    return platform.machine()


def machine() -> dict[str, object]:
    """For a file of results."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {"cpu": cpu_name(), "cores": os.cpu_count(), **gpu, "torch": torch.__version__}
