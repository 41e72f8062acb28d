"""A process killed just before any change of its files, without a process."""

import builtins
import contextlib
import io
import itertools
import os
from collections.abc import Callable, Iterator
from unittest import mock

from fairseq_lxsr.files import write as atomic

CHANGES = ("link", "mkdir", "remove", "rename", "replace", "rmdir", "symlink", "truncate", "unlink")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class KilledError(OSError):
    """Stands for SIGKILL; whatever cleans up after it fails in the same way."""


@contextlib.contextmanager
def killed_before(change: int) -> Iterator[list[str]]:
    """The `change`-th change of names, from 1, and all that follow do not happen, inside this.

    Counted are files and folders that are made, renamed or removed, and files that are opened for
    writing; not what is written to an open file.

    Returns: what was changed, or would have been.
    """
    changes: list[str] = []

    def counted(
        function: Callable, changes_files: Callable[..., bool] = lambda *_, **__: True
    ) -> Callable:
        def call(*arguments, **options):
            if changes_files(*arguments, **options):
                changes.append(f"{function.__name__} {arguments}")
                if len(changes) >= change:
                    raise KilledError
            return function(*arguments, **options)

        return call

    def opens_for_writing(file, mode="r", *_, **__):
        return not isinstance(file, int) and any(letter in mode for letter in "wax+")

    with contextlib.ExitStack() as stack:
        for name in CHANGES:
            stack.enter_context(mock.patch.object(os, name, counted(getattr(os, name))))
        os_open = counted(os.open, lambda path, flags, *_, **__: bool(flags & WRITING))
        stack.enter_context(mock.patch.object(os, "open", os_open))
        for module in (builtins, io):
            stack.enter_context(mock.patch.object(module, "open", counted(open, opens_for_writing)))
        yield changes


def every_kill(run: Callable[[], object]) -> Iterator[int]:
    """Run with a kill before the first change, the second, ..., until none is left.

    Returns: after each kill, the number of changes before it; what runs then takes this process for
    another one.
    """
    for change in itertools.count(1):
        with killed_before(change) as changes, contextlib.suppress(Exception):
            run()
        if len(changes) < change:
            return
        with mock.patch.object(atomic, "_is_alive", return_value=False):
            yield change - 1
