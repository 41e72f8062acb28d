"""Processes blocks in several processes; the result does not depend on their number."""

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
    "a working process was killed, perhaps for lack of memory; "
    "expected it to go on: run again with fewer --workers"
)
BLOCK_ITEMS = 10_000  # largest number of sentences or pairs of a block
BLOCK_CHARACTERS = 10_000_000  # number of characters at which a block ends


def in_blocks(
    items: Iterable[In], size: int = BLOCK_ITEMS, weight: int = BLOCK_CHARACTERS
) -> Iterator[list[In]]:
    """Group texts, or tuples of texts, into blocks, which end at `size` items or at `weight`
    characters.
    """
    block: list[In] = []
    total = 0
    for item in items:
        block.append(item)
        total += sum(map(len, item)) if isinstance(item, tuple) else len(item)  # type: ignore[arg-type]
        if len(block) == size or total >= weight:
            yield block
            block, total = [], 0
    if block:
        yield block


def ordered_map(
    function: Callable[[In], Out],
    items: Iterable[In],
    workers: int,
    start: Callable[..., None] | None = None,
    start_arguments: tuple[Any, ...] = (),
) -> Iterator[Out]:
    """Map with `workers` processes: results come in the order of the items, and few are in memory
    at a time.

    With one worker, or a single item, this process does the work. `function` and `start`, which
    every process calls once, are functions of modules.
    """
    iterator = iter(items)
    few = list(islice(iterator, 2))
    if workers == 1 or len(few) < 2:  # a process takes a second to start
        if start:
            start(*start_arguments)
        yield from map(function, chain(few, iterator))
        return
    context = multiprocessing.get_context("spawn")  # a fork could copy locks that threads hold
    with ProcessPoolExecutor(workers, context, _begin, (start, start_arguments)) as pool:
        pending: deque = deque()
        try:
            for item in chain(few, iterator):
                with _blocked_interrupts():  # processes start here
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
    """Call a module-level function in its own process, which ends immediately when this one is
    interrupted.

    It is for C++ code that runs for minutes without checking for signals.
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
    """Shield processes started in the block from the terminal's interrupt; their parent ends
    them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(start: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    """Prepare a new process, and make it end with its parent, even where the parent is killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if start:
        start(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
