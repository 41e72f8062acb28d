"""Workers: processes in a Ray cluster that load the model once, and then run tasks on shards.

If a worker dies, it is replaced, and the next idle worker repeats its task.
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
from itertools import islice
from pathlib import Path
from typing import Any

from fairseq_lxsr.cluster.shards import SHARD_LINES
from fairseq_lxsr.embeddings import Encoder, Text, count_long, width_of
from fairseq_lxsr.errors import InputError, first_line, say
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.machine import require

# Maximum number of attempts per task, by all workers together.
ATTEMPTS = 3
# Seconds to wait for a connection to the cluster address.
TIMEOUT_SECONDS = 10
# Number of seconds between two checks that the cluster still has a machine.
CHECK_SECONDS = 5
# Size of a local cluster's object store in bytes. The store holds only tasks and small results.
STORE_BYTES = 100 * 2**20
ADDRESS = re.compile(r"local|auto|(?:ray://)?(?P<host>[\w.-]+):(?P<port>\d{1,5})")

LoadEncoder = Callable[[], Encoder]


# -- tasks


@dataclass(frozen=True)
class Task:
    """A repeatable task that can be sent to a worker.

    Attributes:
        name: what the task works on, for messages.
    """

    name: str

    def __call__(self, encoder: LoadEncoder) -> Any:
        """Run the task and return a small result, such as counts.

        Args:
            encoder: returns the encoder of the worker, which is loaded on the first call.
        """
        raise NotImplementedError


class ShardTask(Task):
    """A task that writes a file or folder atomically, unless an earlier run has written it."""

    @property
    def output(self) -> Path:
        """Path of the output file or folder."""
        raise NotImplementedError

    def is_intact(self) -> bool:
        """Return whether the output of an earlier run is complete and undamaged."""
        raise NotImplementedError

    def is_done(self) -> bool:
        """Return whether the output is complete; report and remove a damaged output."""
        if not self.output.exists():
            return False
        if self.is_intact():
            return True
        say(f"{self.output}: damaged; recomputing it")
        if self.output.is_dir():
            shutil.rmtree(self.output)
        else:
            self.output.unlink()
        return False


@dataclass(frozen=True)
class LoadModel(Task):
    """The first task of a worker: load the model, and return its fingerprint.

    Attributes:
        folder: working directory of the program, which the worker changes to.
    """

    folder: Path

    def __call__(self, encoder: LoadEncoder) -> str:
        if not self.folder.is_dir():
            raise InputError(
                f"{self.folder}: no such folder on {socket.gethostname()}; all machines must have "
                "access to the same folders"
            )
        os.chdir(self.folder)
        return encoder().fingerprint


@dataclass(frozen=True)
class MeasureWidth(Task):
    """Task that returns the width of the embeddings of a text."""

    text: Text

    def __call__(self, encoder: LoadEncoder) -> int:
        return width_of(encoder(), self.text)


def run_missing(tasks: Sequence[ShardTask], workers: "Workers") -> int:
    """Run the tasks whose output is missing or damaged, and return their number."""
    missing = [task for task in tasks if not task.is_done()]
    with Progress(total=len(missing), desc="run", unit=" shards") as bar:
        for _ in workers.run(missing):
            bar.update()
    return len(missing)


# -- workers


class Worker:
    """Ray actor that loads its encoder once."""

    def __init__(self, load: LoadEncoder):
        self.load = cache(load)
        # Number of texts that the encoder has truncated in all tasks so far.
        self.num_long = 0

    def run(self, task: Task) -> tuple[Any, float, int]:
        """Run a task.

        Returns:
            The result, the CPU time in seconds, and the number of texts that were truncated.
        """
        start = time.process_time()
        result = task(self.load)
        seconds = time.process_time() - start
        earlier = self.num_long
        self.num_long = count_long(self.load())
        return result, seconds, self.num_long - earlier


class Workers:
    """A pool that assigns tasks to idle workers.

        with connect(Cluster(count=2), load) as workers:
            for task, result in workers.run(tasks):
                print(task.name, result)

    All workers have the same working directory.

    Args:
        make: function that starts a worker, and returns its Ray actor.
        count: number of workers.
        folder: working directory of the program.
        shard_lines: number of lines per shard.

    Attributes:
        model: fingerprint of the model; empty until the first worker has loaded it.
        seconds: CPU time of all successful tasks.
        num_long: number of texts that successful tasks have truncated.
        shard_lines: number of lines per shard.
    """

    def __init__(
        self, make: Callable[[], Any], count: int, folder: Path, shard_lines: int = SHARD_LINES
    ):
        self.model = ""
        self.seconds = 0.0
        self.num_long = 0
        self.shard_lines = shard_lines
        self._make = make
        self._load_model = LoadModel("the model", folder)
        self._idle: list[Any] = []
        # Maps a result reference to its actor and task.
        self._running: dict[Any, tuple[Any, Task]] = {}
        # Number of consecutive failures per task name.
        self._failures: Counter[str] = Counter()
        for _ in range(count):
            self._start(make(), self._load_model)

    def load(self) -> None:
        """Wait until the first worker has loaded the encoder."""
        while not self.model:
            self._wait()

    def end(self) -> None:
        """Stop all workers. A `run` in progress does not start new ones."""
        import ray

        busy = [actor for actor, _ in self._running.values()]
        for actor in (*self._idle, *busy):
            ray.kill(actor)
        self._idle.clear()
        self._running.clear()

    def width_of(self, text: Text) -> int:
        """Return the width of the embeddings of a text."""
        ((_, width),) = self.run([MeasureWidth("the first line", text)])
        return width

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """Yield tasks and their results in order of completion.

        Raises:
            InputError: if input is invalid, a task failed too often (the message contains the name
                of the task), workers loaded different models, or no machine is left.
        """
        remaining = iter(tasks)
        pending = deque[Task]()
        try:
            while True:
                if not pending:
                    pending.extend(islice(remaining, 1))
                if pending and self._idle:
                    self._start(self._idle.pop(), pending.popleft())
                    continue
                if not pending and not self._has_running_task():
                    return
                task, result = self._wait()
                if result is not None:
                    yield task, result
                elif task is not self._load_model:
                    pending.append(task)
        finally:
            self._abandon()

    def _has_running_task(self) -> bool:
        return any(task is not self._load_model for _, task in self._running.values())

    def _abandon(self) -> None:
        """Replace the workers that are still busy after an error.

        Otherwise, their results would be mistaken for results of the next run.
        """
        import ray

        self._failures.clear()
        for reference, (actor, task) in list(self._running.items()):
            if task is not self._load_model:
                del self._running[reference]
                ray.kill(actor)
                self._start(self._make(), self._load_model)

    def _start(self, actor: Any, task: Task) -> None:
        self._running[actor.run.remote(task)] = (actor, task)

    def _wait(self) -> tuple[Task, Any]:
        """Wait until any task finishes.

        Returns:
            The task and its result. The result is None if the task loaded the model, or if it
            failed and must be repeated.

        Raises:
            InputError: if no machine of the cluster is left.
        """
        import ray

        ended: list[Any] = []
        while not ended:
            ended, _ = ray.wait(list(self._running), timeout=CHECK_SECONDS)
            if not ended:
                check_nodes()
        reference = ended[0]
        actor, task = self._running.pop(reference)
        try:
            result, seconds, num_long = ray.get(reference)
        except ray.exceptions.RayError as error:
            # The worker may be alive but unreachable.
            ray.kill(actor)
            self._start(self._make(), self._load_model)
            self._count_failure(task, error)
            return task, None
        self._failures.pop(task.name, None)
        if task is self._load_model:
            self._check_model(actor, result)
            self._idle.append(actor)
            return task, None
        self._idle.append(actor)
        self.seconds += seconds
        self.num_long += num_long
        return task, result

    def _check_model(self, actor: Any, fingerprint: str) -> None:
        import ray

        if self.model not in ("", fingerprint):
            ray.kill(actor)
            raise InputError(
                f"workers loaded different models, {self.model} and {fingerprint}; all machines "
                "need the same model files"
            )
        self.model = fingerprint

    def _count_failure(self, task: Task, error: Exception) -> None:
        """Record a failed attempt at a task.

        Raises:
            InputError: if the task failed because of bad input, or too often in succession.
        """
        from ray.exceptions import RayTaskError

        cause = error.cause if isinstance(error, RayTaskError) else None
        if isinstance(cause, InputError):
            raise InputError(f"{task.name}: {cause}") from None
        self._failures[task.name] += 1
        if self._failures[task.name] == ATTEMPTS:
            reasons = re.findall(r"^\w*(?:Error|Exception): .+$", str(error), re.MULTILINE)
            reason = "its worker died (killed, or out of memory)"
            if reasons:
                reason = reasons[-1]
            raise InputError(
                f"{task.name}: failed {ATTEMPTS} times, the last time with: {reason:.300}; "
                "finished shards are kept: correct the cause and run the same command again"
            ) from None


# -- the cluster


def check_nodes() -> None:
    """Check that the cluster still has a machine. Ray would wait for a new one indefinitely.

    Raises:
        InputError: if the cluster has no machine.
    """
    import ray

    if not any(node["Alive"] for node in ray.nodes()):
        raise InputError(
            "--ray: no machine of the cluster is left (Ray was killed, or out of memory); finished "
            "shards are kept: run the same command again"
        )


@dataclass(frozen=True)
class Cluster:
    """Address of a Ray cluster, number of workers, and shard size.

    Attributes:
        address: `local` for processes of this machine; `auto` for the running cluster; HOST:PORT or
            ray://HOST:PORT.
        count: number of workers; None starts one per core, or per GPU with `gpu`.
        gpu: whether each worker uses a GPU.
        shard_lines: number of lines per shard.
    """

    address: str = "local"
    count: int | None = None
    gpu: bool = False
    shard_lines: int = SHARD_LINES


@contextlib.contextmanager
def connect(cluster: Cluster, load: LoadEncoder) -> Iterator[Workers]:
    """Start the workers of a cluster, and stop them when the block ends.

    Args:
        cluster: address, number of workers, and shard size.
        load: function that loads the encoder; it is called in each worker.

    Yields:
        The workers. At least one of them has loaded the encoder.

    Raises:
        InputError: if Ray is not installed, the cluster does not respond, or it has no cores or
            GPUs for a worker.
    """
    require("ray", "ray", "--ray")
    import ray

    # The calling program may have started Ray already.
    is_new = not ray.is_initialized()
    if is_new:
        _initialise(cluster)
    try:
        resource = "GPU" if cluster.gpu else "CPU"
        available = int(ray.cluster_resources().get(resource, 0))
        if not available:
            raise InputError(
                f"--ray {cluster.address}: the cluster has no {resource}; at least one is required"
            )
        actor: Any = ray.remote(Worker).options(num_cpus=1, num_gpus=int(cluster.gpu))
        workers = Workers(
            lambda: actor.remote(load), cluster.count or available, Path.cwd(), cluster.shard_lines
        )
        try:
            workers.load()
            yield workers
        finally:
            workers.end()
    finally:
        if is_new:
            ray.shutdown()


def _initialise(cluster: Cluster) -> None:
    """Start Ray on this machine, or connect to a cluster."""
    import logging

    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    silence_notices()
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if cluster.address == "local":
        _start_locally(cluster, quiet)
        return
    check_address(cluster.address)
    try:
        ray.init(cluster.address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = f"{first_line(error):.200}"
        raise InputError(
            f"--ray {cluster.address}: no Ray cluster ({reason}); start one with `ray start`"
        ) from None


def _start_locally(cluster: Cluster, options: dict[str, Any]) -> None:
    import ray

    try:
        ray.init(
            "local",
            num_cpus=max(cluster.count or 0, os.cpu_count() or 1),
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            **options,
        )
    except Exception as error:
        # On a busy machine, Ray raises a plain Exception: its processes do not start in time.
        raise InputError(
            f"--ray local: Ray did not start ({first_line(error):.200}); try again, or use a less "
            "busy machine"
        ) from None


def silence_notices() -> None:
    """Drop the notices about machines and workers that Ray prints to standard output.

    `log_to_driver` does not apply to these notices. Errors that end a command are reported
    separately.
    """
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *arguments, **options: None


def check_address(address: str) -> None:
    """Check that a cluster address is valid and accepts connections.

    Args:
        address: the value of --ray.

    Raises:
        InputError: if the address is invalid, or does not respond within 10 seconds.
    """
    match = ADDRESS.fullmatch(address)
    if match is None:
        raise InputError(
            f"--ray {address!r:.60} is invalid; expected local, auto, HOST:PORT or ray://HOST:PORT"
        )
    if not match["host"]:
        return
    try:
        place = (match["host"], int(match["port"]))
        socket.create_connection(place, TIMEOUT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--ray {address}: no response ({error}); start a cluster with `ray start`"
        ) from None
