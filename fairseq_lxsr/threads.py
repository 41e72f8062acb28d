"""How many threads this process may use."""

import os


def usable_threads() -> int:
    """Cores that this process may use, at most OMP_NUM_THREADS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, max(1, int(wanted))) if wanted.isdecimal() else cores
