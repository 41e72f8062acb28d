"""Processes blocks in parallel. The result does not depend on the number of processes."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from fairseq_lxsr.errors import InputError

In = TypeVar("In")
Out = TypeVar("Out")
WORKER_KILLED = (
    "a worker process was killed, perhaps because memory ran out; run the command again "
    "with fewer --workers"
)


def ordered_map(
    function: Callable[[In], Out],
    items: Iterable[In],
    workers: int,
    start: Callable[..., None] | None = None,
    start_arguments: tuple[Any, ...] = (),
) -> Iterator[Out]:
    """Apply a function to items in several processes. Results are in the order of the items.

    Only a few items are in memory at a time. With one worker, or a single item, the current process
    computes the results.

    Args:
        function: module-level function that maps an item.
        items: items to map.
        workers: number of processes.
        start: module-level function that every process calls once, before its first item.
        start_arguments: arguments of `start`.

    Raises:
        InputError: if a process was killed.
    """
    iterator = iter(items)
    first_items = list(islice(iterator, 2))
    # Starting a process takes a second, which is not worthwhile for a single item.
    if workers == 1 or len(first_items) < 2:
        if start:
            start(*start_arguments)
        yield from map(function, chain(first_items, iterator))
        return
    # Do not fork, because the child could inherit locks held by other threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin, (start, start_arguments)) as pool:
        pending: deque = deque()
        try:
            for item in chain(first_items, iterator):
                # The pool starts its processes on submit.
                with _blocked_interrupts():
                    pending.append(pool.submit(function, item))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise InputError(WORKER_KILLED) from None
        finally:
            for future in pending:
                future.cancel()


def call_in_subprocess(function: Callable[..., Out], *arguments: Any) -> Out:
    """Call a module-level function in another process, which is killed if this one is interrupted.

    Use this for C++ code that runs for minutes without checking for signals.

    Raises:
        InputError: if the process was killed.
    """
    context = multiprocessing.get_context("spawn")
    results, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(sending, function, arguments), daemon=True)
    try:
        with _blocked_interrupts():
            process.start()
        sending.close()
        result = results.recv()
    except EOFError:
        raise InputError(WORKER_KILLED) from None
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
    if isinstance(result, BaseException):
        raise result
    return result


def _send_result(sending: Connection, function: Callable, arguments: tuple) -> None:
    _begin(None, ())
    try:
        result = function(*arguments)
    except Exception as error:
        result = error
    sending.send(result)


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Block Ctrl-C in processes started inside the block; their parent stops them."""
    # Windows does not support signal masks.
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(start: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    """Initialize a new process, and make it exit when its parent exits or is killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if start:
        start(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
