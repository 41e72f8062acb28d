"""Work on blocks in several processes; what comes out never depends on their number."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from typing import Any, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")
BLOCK = 10_000  # sentences or pairs that travel together


def blocks(items: Iterable[In], size: int = BLOCK) -> Iterator[list[In]]:
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block


def ordered_map(
    function: Callable[[In], Out],
    items: Iterable[In],
    workers: int,
    start: Callable[..., None] | None = None,
    start_arguments: tuple[Any, ...] = (),
) -> Iterator[Out]:
    """`map` with `workers` processes: results in the order of the items, few of them in memory at a time.

    Args:
        function: a function of a module; so is `start`, which every process calls once.
        workers: 1 works in this process.
    """
    if workers == 1:
        if start:
            start(*start_arguments)
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy threads that hold locks
    with ProcessPoolExecutor(workers, context, start, start_arguments) as pool:
        pending: deque = deque()
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
