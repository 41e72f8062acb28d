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
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "torch": torch.__version__}
