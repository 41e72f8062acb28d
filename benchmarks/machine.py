"""What a result was measured on."""

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


def cpu_name() -> str:
    """As Linux says it, or the architecture."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as cpuinfo:
        return next(line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name"))
    return platform.machine()


def machine() -> dict[str, object]:
    """For a file of results."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {"cpu": cpu_name(), "cores": os.cpu_count(), **gpu, "torch": torch.__version__}


def versions() -> dict[str, str]:
    """Of Python and of the packages that are there."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def commit() -> str | None:
    """The commit of this checkout, with `+` where files differ from it; None without git."""
    command = (
        "git",
        "-C",
        str(ROOT),
        "describe",
        "--always",
        "--abbrev=12",
        "--exclude=*",
        "--dirty=+",
    )
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None
