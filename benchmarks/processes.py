"""Time and memory of a command and of all processes that it starts (Linux)."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Seconds between two measurements of the memory.
INTERVAL = 0.1


class Cost(NamedTuple):
    """What a command used.

    Attributes:
        seconds: elapsed time.
        processor: user and system CPU time of all processes, in seconds.
        peak: largest memory of all processes in bytes; a shared page counts for each process.
        anonymous: the same without pages of files and with this process; a shared page counts once.
    """

    seconds: float
    processor: float
    peak: int
    anonymous: int


def measured(command: Sequence[object]) -> Cost:
    """Run a program and return its cost.

    If it fails, the script ends with the end of its output.
    """
    words = list(map(str, command))
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
        process.returncode, cost = watch(process.pid)
        if process.returncode:
            output.seek(0)
            end = output.read()[-3000:]
            sys.exit(f"{' '.join(words)}: exit status {process.returncode}\n{end}")
    return cost


def watch(process: int) -> tuple[int, Cost]:
    """Wait for a child of this process, and return its exit status and its cost."""
    start = time.perf_counter()
    peak = anonymous_peak = 0
    while True:
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended:
            seconds = time.perf_counter() - start
            processor = usage.ru_utime + usage.ru_stime
            cost = Cost(seconds, processor, peak, anonymous_peak)
            return os.waitstatus_to_exitcode(status), cost
        peak = max(peak, resident(process))
        anonymous_peak = max(anonymous_peak, anonymous(os.getpid()))
        time.sleep(INTERVAL)


def tree(root: int) -> Iterator[int]:
    """Yield the ids of a process and of all its descendants."""
    yield root
    for task in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = task.read_text(encoding="ascii").split()
        except OSError:
            # The process has just ended.
            continue
        for child in children:
            yield from tree(int(child))


def resident(root: int) -> int:
    """Return the bytes that a process and its descendants hold; shared pages count for each."""
    return sum(entry(process, "status", "VmRSS") for process in tree(root))


def anonymous(root: int) -> int:
    """Return the bytes of memory, without pages of files, of a process and its descendants.

    A shared page counts once.
    """
    return sum(entry(process, "smaps_rollup", "Pss_Anon") for process in tree(root))


def entry(process: int, file: str, name: str) -> int:
    """Return an entry of a file in /proc in bytes, and 0 if the process has just ended."""
    try:
        text = Path(f"/proc/{process}/{file}").read_text(encoding="ascii")
        kilobytes = text.split(f"{name}:")[1].split()[0]
    except (OSError, IndexError):
        return 0
    return 1024 * int(kilobytes)
