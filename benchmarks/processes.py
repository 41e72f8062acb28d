"""Time and memory of a command and all processes that it starts (Linux)."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

EVERY = 0.1  # seconds between two looks at the memory


class Cost(NamedTuple):
    """What a command used.

    Attributes:
        seconds: on the clock.
        processor: seconds of the processor, user and system, of all processes.
        peak: the most bytes that all processes held at a moment, shared pages counted for each.
        anonymous: the same without pages of files, and with this process; shared pages are counted
            once.
    """

    seconds: float
    processor: float
    peak: int
    anonymous: int


def measured(command: Sequence[object]) -> Cost:
    """Run a program with its arguments; where it fails, end with the last of what it said."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(list(map(str, command)), stdout=said, stderr=subprocess.STDOUT)
        process.returncode, cost = watch(process.pid)
        if process.returncode:
            said.seek(0)
            sys.exit(
                f"{' '.join(map(str, command))}: exit status {process.returncode}\n{said.read()[-3000:]}"
            )
    return cost


def watch(process: int) -> tuple[int, Cost]:
    """Wait for a child of this process. Returns: its exit status, and what it used."""
    start, peaks = time.perf_counter(), (0, 0)
    while True:
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended:
            seconds = time.perf_counter() - start
            return os.waitstatus_to_exitcode(status), Cost(
                seconds, usage.ru_utime + usage.ru_stime, *peaks
            )
        peaks = max(peaks[0], resident(process)), max(peaks[1], anonymous(os.getpid()))
        time.sleep(EVERY)


def tree(root: int) -> Iterator[int]:
    """A process and all that come from it."""
    yield root
    for task in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            found = task.read_text(encoding="ascii").split()
        except OSError:
            continue  # it has just ended
        for child in found:
            yield from tree(int(child))


def resident(root: int) -> int:
    """Bytes that a process and all that come from it hold now, shared pages counted for each."""
    return sum(entry(process, "status", "VmRSS") for process in tree(root))


def anonymous(root: int) -> int:
    """Bytes of memory, not of files, that a process and all that come from it hold now; shared
    pages once.
    """
    return sum(entry(process, "smaps_rollup", "Pss_Anon") for process in tree(root))


def entry(process: int, file: str, name: str) -> int:
    """An entry of a file of /proc in bytes; 0 of a process that has just ended."""
    try:
        return 1024 * int(
            Path(f"/proc/{process}/{file}")
            .read_text(encoding="ascii")
            .split(f"{name}:")[1]
            .split()[0]
        )
    except (OSError, IndexError):
        return 0
