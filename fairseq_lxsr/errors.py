"""Reports bad input in one line, with exit status 2 and no traceback."""

import contextlib
import os
import re
import reprlib
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

EXIT_STATUS = 2
INTERRUPTED = 130  # 128 and the number of the signal
EXTRAS = {
    "torch": "torch",
    "faiss": "faiss",
}  # module and the extra that installs it, where any command may need it

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 80, 80, 80


class InputError(ValueError):
    """An error the user can fix: the message names the value, where it is, what was expected and
    what to do.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class SentenceError(InputError):
    """An error of one of many sentences: its number from 0, the sentence, and what is wrong with
    it.
    """

    def __str__(self) -> str:
        row, sentence, why = self.args
        return printable(f"sentence {row + 1:,}, {sentence!r:.60}: {why}")


def printable(text: str, but: str = "") -> str:
    """Escape the control characters of a text, which a terminal would obey: `\\x1b`; those of `but`
    stay.
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in but else repr(found[0])[1:-1], text)


def shown(value: Any, most: int = 60) -> str:
    """Quote a value for a message, in time and memory that do not depend on its size."""
    try:
        return f"{_SHORT.repr(value):.{most}}"
    except Exception:  # for example an integer with more digits than Python prints
        return f"<{type(value).__name__}>"


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error, of any library; the name of its type where
    it says nothing.
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def error_message(error: BaseException) -> str | None:
    """Return the message for an `InputError`, an error of the file system or a missing extra; None
    for any other.
    """
    relayed = re.findall(r"^fairseq_lxsr\.errors\.InputError: (.+)$", str(error), re.MULTILINE)
    if relayed:  # torch re-raises the error of a worker process with its traceback in the message
        return relayed[-1]
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        where = f"{error.filename}: " if error.filename else ""
        return printable(
            f"{where}{error.strerror or error}; check the path, the permissions and the free space"
        )
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        return f"this needs {error.name}, which is not installed: {install_command(EXTRAS[error.name])}"
    return None


def install_command(extra: str) -> str:
    """Return the command that installs what an extra names for this Python; no index needs to have
    this package.
    """
    from importlib import metadata  # only an error needs it

    try:
        packages = list(_packages(extra, metadata.requires("fairseq-lxsr") or []))
    except metadata.PackageNotFoundError:  # a folder on the path of Python
        packages = ["-e", f"{Path(__file__).parents[1]}[{extra}]"]
    words = [sys.executable, "-m", "pip", "install", *packages]
    if os.name == "nt":
        quoted = (word.replace('"', "'") for word in words)
        return " ".join(
            f'"{word}"' if re.search(r"[^\w.:\\/=-]", word) else word for word in quoted
        )
    return shlex.join(words)


def _packages(extra: str, requirements: list[str]) -> Iterator[str]:
    """Yield the packages of an extra, and of those that it names, from the requirements of this
    package.
    """
    condition = re.compile(rf"""(?: and )?\bextra == (["']){extra}\1""")
    for requirement in requirements:
        package, _, marker = requirement.partition("; ")
        if condition.search(marker):
            others = re.fullmatch(r"fairseq-lxsr\[(.+)\]", package)
            for other in others[1].split(",") if others else ():
                yield from _packages(other, requirements)
            if not others:
                left = condition.sub("", marker).strip()
                yield f"{package}; {left}" if left else package


@contextlib.contextmanager
def exit_on_input_error(program: str) -> Iterator[None]:
    """End the program with `program: error: ...` and exit status 2 where the block raises for bad
    input.
    """
    try:
        yield
    except Exception as error:
        message = error_message(error)
        if message is None:
            raise
        say(f"{program}: error: {message}")
        sys.exit(EXIT_STATUS)


@contextlib.contextmanager
def naming_option(option: str) -> Iterator[None]:
    """Name an option of the command line in an error inside the block that is about its value: `k
    is 4; ...`.
    """
    try:
        yield
    except InputError as error:
        if not str(error).startswith(f"{option.lstrip('-')} is "):
            raise
        raise InputError(f"{option}: {error}") from None


def say(line: str) -> None:
    """Print a line to standard error; the exit status says the rest where its reader has closed
    it.
    """
    try:
        print(printable(line), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Drop what a stream could not write, which Python would flush again at exit, and then end with
    status 120.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Terminated(KeyboardInterrupt):
    """SIGTERM was received: a shutdown or a job scheduler asks the program to end."""


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise SIGTERM like Ctrl-C inside the block, so that partial files are removed; an ignored one
    stays ignored.
    """
    is_main = threading.current_thread() is threading.main_thread()
    heeded = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if heeded:
        signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        if heeded:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


def install_excepthook(
    program: str,
    explain: Callable[[BaseException], str | None] = error_message,
    interrupted: str = "interrupted",
) -> None:
    """Report bad input in one line in a program whose main function is not ours: fairseq-train with
    this plugin.

    `explain` returns the message for an error, or None to print the traceback; `interrupted` is
    that for Ctrl-C.
    """
    # torch, with several processes, replaces sys.stderr around this hook and drops what SystemExit
    # leaves there
    previous, stderr = sys.excepthook, sys.stderr

    def report(kind, error, traceback):
        if isinstance(error, KeyboardInterrupt):
            print(f"{program}: {interrupted}", file=stderr, flush=True)
            raise SystemExit(INTERRUPTED)
        message = explain(error)
        if message is None:
            previous(kind, error, traceback)
            return
        print(f"{program}: error: {printable(message)}", file=stderr, flush=True)
        raise SystemExit(EXIT_STATUS)

    sys.excepthook = report
