"""Simulates a kill of this process just before any change of its files."""

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
    """Stands for SIGKILL; changes that would clean up after it raise it again."""


@contextlib.contextmanager
def killed_before(change: int) -> Iterator[list[str]]:
    """Raise KilledError for the `change`-th change of files, from 1, and for all that follow.

    A change creates, renames or removes a file or folder, or opens a file for writing. Writing to
    an open file is none.

    Yields:
        the list of changes, with the first one that did not happen at the end.
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

    Yields:
        after each kill, the number of changes before it. Locks of the killed run count as those of
        a process that has ended.
    """
    for change in itertools.count(1):
        with killed_before(change) as changes, contextlib.suppress(Exception):
            run()
        if len(changes) < change:
            return
        with mock.patch.object(atomic, "_is_alive", return_value=False):
            yield change - 1
