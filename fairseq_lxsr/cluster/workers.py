"""Workers in the processes of a Ray cluster: each holds the model and takes one shard after the
other.

A worker that dies is replaced; its shard goes to whichever worker is idle, a few times.
"""

import contextlib
import os
import re
import shutil
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fairseq_lxsr.cluster.shards import SHARD_LINES
from fairseq_lxsr.embeddings import Encoder, Text, width_of
from fairseq_lxsr.errors import InputError, first_line, say
from fairseq_lxsr.machine import require

ATTEMPTS = 3  # at one shard, by any workers
SECONDS = 10  # to wait for a machine that should run a cluster
# least object store of a local cluster; only tasks and what they return lie in it
STORE_BYTES = 100 * 2**20
ADDRESS = re.compile(r"local|auto|(?:ray://)?(?P<host>[\w.-]+):(?P<port>\d{1,5})")

LoadEncoder = Callable[[], Encoder]


@dataclass(frozen=True)
class Task:
    """Work that can be sent to a worker and done again; `name` says in messages what it works
    on.
    """

    name: str

    def __call__(self, encoder: LoadEncoder) -> Any:
        """Do the work, with the worker's encoder if it needs one; returns a few numbers."""
        raise NotImplementedError


class ShardTask(Task):
    """A task whose output, a file or folder, has its name only when it is whole: a rerun does what
    is missing.
    """

    @property
    def output(self) -> Path:
        raise NotImplementedError

    def is_intact(self) -> bool:
        """Return whether the output of an earlier run is as it was written; one that is cut off or
        damaged is not.
        """
        raise NotImplementedError

    def is_done(self) -> bool:
        """Return whether nothing is left to do; an output that is damaged is removed."""
        if not self.output.exists():
            return False
        if self.is_intact():
            return True
        say(f"{self.output}: damaged, it is made again")
        if self.output.is_dir():
            shutil.rmtree(self.output)
        else:
            self.output.unlink()
        return False


@dataclass(frozen=True)
class Cluster:
    """Where the workers are, and what they take at a time."""

    address: str = "local"  # processes of this machine; `auto`, the cluster that runs; HOST:PORT or ray://HOST:PORT
    # of workers; None for one on each core, or on each GPU where they use one
    count: int | None = None
    gpu: bool = False  # whether each worker has a GPU for itself
    shard_lines: int = SHARD_LINES


@dataclass(frozen=True)
class Loading(Task):
    """The first task of a worker: load the model."""

    folder: Path

    def __call__(self, encoder: LoadEncoder) -> str:
        if not self.folder.is_dir():
            raise InputError(
                f"{self.folder}: not on {socket.gethostname()}; all machines need the same folders"
            )
        os.chdir(self.folder)
        return encoder().fingerprint


@dataclass(frozen=True)
class Width(Task):
    """Asks for the width of the embeddings of a text."""

    text: Text

    def __call__(self, encoder: LoadEncoder) -> int:
        return width_of(encoder(), self.text)


class Worker:
    """What runs as an actor; it loads its encoder once."""

    def __init__(self, load: LoadEncoder):
        self.load = cache(load)

    def run(self, task: Task) -> tuple[Any, float]:
        """Return what a task returns, and its seconds of the processor."""
        start = time.process_time()
        return task(self.load), time.process_time() - start


class Workers:
    """Gives tasks to actors that are idle; one of the `count` that `make` starts is idle when it
    has loaded its model.

    All have the same current folder.
    """

    def __init__(
        self, make: Callable[[], Any], count: int, folder: Path, shard_lines: int = SHARD_LINES
    ):
        # fingerprint; of the processor, in all tasks that ended well
        self.model, self.seconds = ("", 0.0)
        self.shard_lines, self.make, self.loading = shard_lines, make, Loading("the model", folder)
        self._idle: list[Any] = []
        self._running: dict[Any, tuple[Any, Task]] = {}  # by the reference to the result
        self._failures: Counter[str] = Counter()
        for _ in range(count):
            self._start(make(), self.loading)

    def load(self) -> None:
        """Wait for the first worker to load the encoder."""
        while not self.model:
            self._wait()

    def end(self) -> None:
        """End all actors; a `run` that is closed later finds none."""
        import ray

        for actor in (*self._idle, *(actor for actor, _ in self._running.values())):
            ray.kill(actor)
        self._idle.clear()
        self._running.clear()

    def width_of(self, text: Text) -> int:
        """Return the width of the embeddings of a text."""
        ((_, width),) = self.run([Width("the first line", text)])
        return width

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """Yield tasks and what they return, as they end; bad input and too many failures name their
        shard.
        """
        remaining, todo = iter(tasks), deque[Task]()
        try:
            while True:
                if not todo and (following := next(remaining, None)) is not None:
                    todo.append(following)
                if todo and self._idle:
                    self._start(self._idle.pop(), todo.popleft())
                elif todo or any(task is not self.loading for _, task in self._running.values()):
                    task, result = self._wait()
                    if result is None:
                        todo.extend([] if task is self.loading else [task])
                    else:
                        yield task, result
                else:
                    return
        finally:
            self._abandon()

    def _abandon(self) -> None:
        """Replace the workers that are still at it after an error: their results are nothing to the
        next run.
        """
        import ray

        self._failures.clear()
        for reference, (actor, task) in list(self._running.items()):
            if task is not self.loading:
                del self._running[reference]
                ray.kill(actor)
                self._start(self.make(), self.loading)

    def _start(self, actor: Any, task: Task) -> None:
        self._running[actor.run.remote(task)] = actor, task

    def _wait(self) -> tuple[Task, Any]:
        """Wait for the end of any task; return None for its result where it is to be done again, or
        was loading.
        """
        import ray

        (reference,), _ = ray.wait(list(self._running))
        actor, task = self._running.pop(reference)
        try:
            result, seconds = ray.get(reference)
        except ray.exceptions.RayError as error:
            ray.kill(actor)  # it may only be out of reach
            self._start(self.make(), self.loading)
            self._count_failure(task, error)
            return task, None
        self._failures.pop(task.name, None)
        if task is not self.loading:
            self._idle.append(actor)
            self.seconds += seconds
            return task, result
        if self.model not in ("", result):
            ray.kill(actor)
            raise InputError(
                f"workers have models {self.model} and {result}; all machines need the same files"
            )
        self.model = result
        self._idle.append(actor)
        return task, None

    def _count_failure(self, task: Task, error: Exception) -> None:
        """Count a failure of a task, of several in a row."""
        from ray.exceptions import RayTaskError

        cause = error.cause if isinstance(error, RayTaskError) else None
        if isinstance(cause, InputError):
            raise InputError(f"{task.name}: {cause}") from None
        self._failures[task.name] += 1
        if self._failures[task.name] == ATTEMPTS:
            said = re.findall(r"^\w*(?:Error|Exception): .+$", str(error), re.MULTILINE)
            why = said[-1] if said else "its worker died (killed, or no memory was left)"
            again = "what is done stays: correct it and run the same command again"
            raise InputError(
                f"{task.name} failed {ATTEMPTS} times, the last time: {why:.300}; {again}"
            ) from None


def run_missing(tasks: Sequence[ShardTask], workers: Workers) -> int:
    """Do the tasks whose output is missing or damaged, and return their number."""
    missing = [task for task in tasks if not task.is_done()]
    return sum(1 for _ in workers.run(missing))


@contextlib.contextmanager
def connect(cluster: Cluster, load: LoadEncoder) -> Iterator[Workers]:
    """Start the workers of a cluster, each of which loads the encoder, and end them with the
    block.
    """
    require("ray", "ray", "--ray")
    import ray

    ours = not ray.is_initialized()  # a program may have started it
    if ours:
        _initialise(cluster)
    try:
        kind = "GPU" if cluster.gpu else "CPU"
        there = int(ray.cluster_resources().get(kind, 0))
        if not there:
            raise InputError(
                f"the cluster at {cluster.address} has no {kind}; expected at least one for a worker"
            )
        actor: Any = ray.remote(Worker).options(num_cpus=1, num_gpus=int(cluster.gpu))
        workers = Workers(
            lambda: actor.remote(load), cluster.count or there, Path.cwd(), cluster.shard_lines
        )
        try:
            workers.load()
            yield workers
        finally:
            workers.end()
    finally:
        if ours:
            ray.shutdown()


def _initialise(cluster: Cluster) -> None:
    """Start Ray here, or connect to it."""
    import logging

    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if cluster.address == "local":
        cores = max(cluster.count or 0, os.cpu_count() or 1)
        local = {"num_cpus": cores, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        ray.init("local", **local, **quiet)
        return
    check_address(cluster.address)
    try:
        ray.init(cluster.address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = f"{first_line(error):.200}"
        raise InputError(
            f"no Ray cluster at {cluster.address} ({reason}); start one with `ray start`"
        ) from None


def check_address(address: str) -> None:
    """Check that something answers at the address of a cluster."""
    found = ADDRESS.fullmatch(address)
    if found is None:
        raise InputError(
            f"--ray {address!r:.60}; expected local, auto, HOST:PORT or ray://HOST:PORT"
        )
    if found["host"]:
        try:
            socket.create_connection((found["host"], int(found["port"])), SECONDS).close()
        except (OSError, OverflowError) as error:
            raise InputError(
                f"--ray {address}: no answer ({error}); start a cluster with `ray start`"
            ) from None
