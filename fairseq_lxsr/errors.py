"""Bad input is reported in one line, with exit status 2 and no traceback."""

import contextlib
import re
import reprlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

EXIT_STATUS = 2


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 80, 80, 80


class InputError(ValueError):
    """Something the user can mend: the message names the value, where it is, what was expected and what to do."""


def shown(value: Any, most: int = 60) -> str:
    """A value as a message quotes it, in time and memory that do not depend on its size."""
    try:
        return f"{_SHORT.repr(value):.{most}}"
    except Exception:  # for example a number of too many digits to be written
        return f"<{type(value).__name__}>"


def one_line(error: BaseException) -> str | None:
    """What to tell the user of an `InputError` or of a file system that refuses; None for anything else."""
    relayed = re.findall(r"^fairseq_lxsr\.errors\.InputError: (.+)$", str(error), re.MULTILINE)
    if relayed:  # torch hands on what a worker process raised with its traceback
        return relayed[-1]
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}; check the path, the permissions and the free space"
    return None


@contextlib.contextmanager
def exit_on_input_error(program: str) -> Iterator[None]:
    """Inside this, bad input ends the program with `program: error: ...` and exit status 2."""
    try:
        yield
    except Exception as error:
        message = one_line(error)
        if message is None:
            raise
        print(f"{program}: error: {message}", file=sys.stderr)
        sys.exit(EXIT_STATUS)


class Terminated(KeyboardInterrupt):
    """SIGTERM, by which a machine that shuts down or the end of a job asks a program to end."""


@contextlib.contextmanager
def heeding_sigterm() -> Iterator[None]:
    """Inside this, SIGTERM is raised as Ctrl-C is, so that what is half-written is removed; not where it is ignored."""
    heeded = (
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread()
    )
    if heeded:
        signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        if heeded:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


def install_excepthook(program: str, explain: Callable[[BaseException], str | None] = one_line) -> None:
    """The same for a program whose main function is not ours: fairseq-train with this plugin.

    Args:
        explain: what to tell the user of an error; None for one that keeps its traceback.
    """
    previous = sys.excepthook

    def report(kind, error, traceback):
        message = explain(error)
        if message is None:
            previous(kind, error, traceback)
            return
        print(f"{program}: error: {message}", file=sys.stderr)
        raise SystemExit(EXIT_STATUS)

    sys.excepthook = report
