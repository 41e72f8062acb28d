"""The machine and the versions that a result was measured with."""

import contextlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks import ROOT

PACKAGES = (
    *("torch", "numpy", "fairseq", "sentencepiece", "faiss-cpu", "onnxruntime"),
    *("sentence-transformers", "model2vec", "tokenizers"),
)
# `+` marks a checkout whose files differ from the commit.
DESCRIBE = ("describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")


def cpu_name() -> str:
    """Return the name that Linux gives the processor; elsewhere, its architecture."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as cpuinfo:
        return next(line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name"))
    return platform.machine()


def machine() -> dict[str, object]:
    """Return the processor, the GPU if there is one, and the version of torch."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {"cpu": cpu_name(), "cores": os.cpu_count(), **gpu, "torch": torch.__version__}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages."""
    by_name = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            by_name[name] = version(name)
    return by_name


def commit() -> str | None:
    """Return the commit of this checkout, followed by `+` if files differ, or None without git."""
    command = ("git", "-C", str(ROOT), *DESCRIBE)
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None
