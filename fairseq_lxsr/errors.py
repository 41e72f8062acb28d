"""Reports bad input in one line, with exit status 2 and without a traceback.

A message has the form `PLACE: PROBLEM with the VALUE; expected EXPECTED: WHAT TO DO`.
"""

import contextlib
import os
import re
import reprlib
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

EXIT_STATUS = 2
# 128 plus the number of the signal SIGINT: the exit status that shells report after Ctrl-C.
INTERRUPTED = 130
# Maps each optional module to the extra of this package that installs it.
EXTRAS = {"torch": "torch", "faiss": "faiss"}

# Maximum number of characters in a quoted value.
LONGEST_SHOWN = 60
# Seconds until an interrupt that Python has dropped is repeated.
REPEAT_AFTER = 0.02
# Maximum number of names listed in a message.
MAX_LISTED = 20

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = 80
_SHORT.maxother = 80
_SHORT.maxlong = 80


class InputError(ValueError):
    """An error caused by input or options, which the user can fix.

    The message names the place, the invalid value, what was expected, and what to do.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class SentenceError(InputError):
    """An input error in one sentence of a batch.

        raise SentenceError(0, "a dog", "longer than 3 pieces")

    The arguments are the zero-based index of the sentence, its text, and the problem.
    """

    def __str__(self) -> str:
        row, sentence, problem = self.args
        return printable(f"sentence {row + 1:,}, {sentence!r:.60}: {problem}")


def printable(text: str, but: str = "") -> str:
    """Escape control characters, except for those in `but`, to protect the terminal."""

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in but else repr(character)[1:-1]

    return _CONTROL.sub(escape, text)


def shown(value: Any) -> str:
    """Return a short representation of a value for a message, at most 60 characters long.

    The time and memory needed do not depend on the size of the value.

    Args:
        value: any value, even one that cannot be printed.
    """
    try:
        return f"{_SHORT.repr(value):.{LONGEST_SHOWN}}"
    except Exception:
        # For example, an integer with more digits than Python converts to text.
        return f"<{type(value).__name__}>"


def listed(names: Iterable[str]) -> str:
    """Join names for a message: the first `MAX_LISTED`, and the number of further names.

    Args:
        names: any number of names from the user's data.
    """
    names = list(names)
    text = ", ".join(f"{name:.{LONGEST_SHOWN}}" for name in names[:MAX_LISTED])
    num_more = len(names) - MAX_LISTED
    return f"{text} and {num_more:,} more" if num_more > 0 else text


def check_strings(name: str, texts: Sequence[Any], start: int = 0) -> None:
    """Check that all elements of a list are strings.

    Args:
        name: name of the argument, for messages.
        texts: the elements, or a part of them.
        start: index of the first element.

    Raises:
        InputError: if an element is not a string; the message contains its index.
    """
    types = set(map(type, texts))
    if all(issubclass(element_type, str) for element_type in types):
        return
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"{name}[{start + index}] is {shown(text)}; expected a string: remove it, or use ''"
            )


def check_text_list(name: str, texts: Any) -> None:
    """Check that a value can be used as a list of texts.

    Tables, mappings, sets, strings and values that are not iterable are rejected. Iterating over
    them would yield column names, keys or characters, would have no defined order, or would fail.
    Generators are accepted, and not consumed.

    Args:
        name: name of the argument.
        texts: value of the argument.

    Raises:
        InputError: if the value is rejected; the message says what to pass instead.
    """
    kind = type(texts).__name__
    if isinstance(texts, str | bytes):
        problem = f"the {kind} {shown(texts)}"
        advice = f"[{name}]"
    elif isinstance(texts, Mapping):
        problem = f"a {kind} with the keys {listed(map(shown, texts))}"
        advice = f"the values of one key, for example {name}[{_first(texts)}]"
    elif (columns := _columns(texts)) is not None:
        problem = f"a {kind} with the columns {listed(map(shown, columns))}"
        advice = f"one column, for example {name}[{_first(columns)}]"
    elif isinstance(texts, set | frozenset):
        problem = f"a {kind}, which has no order"
        advice = f"sorted({name})"
    elif not hasattr(texts, "__iter__") and not hasattr(texts, "__getitem__"):
        problem = f"the {kind} {shown(texts)}"
        advice = "a list"
    else:
        return
    raise InputError(f"{name} is {problem}; expected a list of strings: pass {advice}")


def _columns(value: Any) -> Iterable[Any] | None:
    """Return the column names of a table from any library, or None for other values."""
    # Try `column_names` first: the `columns` of an Arrow table are arrays, not names.
    for attribute in ("column_names", "columns"):
        columns = getattr(value, attribute, None)
        if columns is not None:
            return columns
    return None


def _first(names: Iterable[Any]) -> str:
    return shown(next(iter(names), "text"))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type's name if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def error_message(error: BaseException) -> str | None:
    """Return the message to show instead of a traceback, or None if the error is a bug.

    An error is a bug unless it is an `InputError`, a file system error or a missing package.
    """
    # torch re-raises an error from a worker process with the traceback in the message.
    relayed = re.findall(r"^fairseq_lxsr\.errors\.InputError: (.+)$", str(error), re.MULTILINE)
    if relayed:
        return relayed[-1]
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        place = f"{error.filename}: " if error.filename else ""
        problem = error.strerror or error
        return printable(f"{place}{problem}; check the path, the permissions and the free space")
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        command = install_command(EXTRAS[error.name])
        return f"{error.name} is required but not installed: {command}"
    return None


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra's packages for this Python.

    The command names the packages themselves, because this package may not be in any package index.
    """
    # Imported here because it is slow and needed only after an error.
    from importlib import metadata

    try:
        packages = list(_packages(extra, metadata.requires("fairseq-lxsr") or []))
    except metadata.PackageNotFoundError:
        # This package is not installed, but imported from a source folder.
        packages = ["-e", f"{Path(__file__).parents[1]}[{extra}]"]
    words = [sys.executable, "-m", "pip", "install", *packages]
    if os.name == "nt":
        return " ".join(map(_quote_for_windows, words))
    return shlex.join(words)


def _quote_for_windows(word: str) -> str:
    word = word.replace('"', "'")
    needs_quotes = re.search(r"[^\w.:\\/=-]", word)
    return f'"{word}"' if needs_quotes else word


def _packages(extra: str, requirements: list[str]) -> Iterator[str]:
    """Yield the packages that an extra requires, including those of nested extras.

    Args:
        extra: name of the extra.
        requirements: all requirements in this package's metadata.
    """
    condition = re.compile(rf"""(?: and )?\bextra == (["']){extra}\1""")
    for requirement in requirements:
        package, _, marker = requirement.partition("; ")
        if not condition.search(marker):
            continue
        included = re.fullmatch(r"fairseq-lxsr\[(.+)\]", package)
        if included:
            for name in included[1].split(","):
                yield from _packages(name, requirements)
            continue
        remaining_marker = condition.sub("", marker).strip()
        yield f"{package}; {remaining_marker}" if remaining_marker else package


@contextlib.contextmanager
def exit_on_input_error(program: str) -> Iterator[None]:
    """Exit with `program: error: ...` and status 2 if the block raises an error about bad input."""
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
    """Add the option's name to errors about its value: `--k: k is 4; ...`."""
    try:
        yield
    except InputError as error:
        if not str(error).startswith(f"{option.lstrip('-')} is "):
            raise
        raise InputError(f"{option}: {error}") from None


def say(line: str) -> None:
    """Print a line to standard error, or nothing if standard error is closed."""
    if sys.stderr is None:
        # print() would write to standard output instead, in the middle of the results.
        return
    try:
        print(printable(line), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Redirect a closed stream to the null device, which discards the data still to be written.

    Otherwise Python would try to write the data at exit, fail, and exit with status 120.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, when a shutdown or a job scheduler asks the program to stop."""


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C inside the block, so that partial files are removed.

    Nothing changes if the program ignores SIGTERM or already handles it.
    """
    is_main = threading.current_thread() is threading.main_thread()
    is_default = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_default:
        signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        if is_default:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextlib.contextmanager
def repeated_interrupts() -> Iterator[None]:
    """Repeat an interrupt inside the block that Python drops, so that Ctrl-C always stops it.

    Python drops exceptions in callbacks that it calls itself, for example at the end of an import.
    """
    previous = sys.unraisablehook

    def repeat(unraisable: "sys.UnraisableHookArgs") -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            previous(unraisable)
            return
        number = signal.SIGINT
        if issubclass(unraisable.exc_type, Terminated):
            number = signal.SIGTERM
        # Later and by another thread, because an exception in this function would be dropped too.
        timer = threading.Timer(REPEAT_AFTER, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = previous


def install_excepthook(
    program: str,
    explain: Callable[[BaseException], str | None] = error_message,
    interrupted: str = "interrupted",
) -> None:
    """Make fairseq-train report bad input in one line, by replacing `sys.excepthook`.

    Args:
        program: name of the program, which starts the message.
        explain: returns the message for an error, or None to print the traceback.
        interrupted: message for Ctrl-C.
    """
    previous = sys.excepthook
    # With several processes, torch replaces sys.stderr here, and discards what SystemExit prints.
    stderr = sys.stderr

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


def is_panic(error: BaseException) -> bool:
    """Return whether a Rust library, such as tokenizers, failed.

    The type of this error cannot be imported, and is not derived from `Exception`.
    """
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def rust_errors() -> Iterator[None]:
    """Raise `RuntimeError` if a Rust library panics in the block; discard what a failure prints."""
    try:
        with _held_stderr():
            yield
    except BaseException as error:
        if is_panic(error):
            raise RuntimeError(first_line(error)) from None
        raise


@contextlib.contextmanager
def _held_stderr() -> Iterator[None]:
    """Hold back standard error until the end of the block, and discard it if the block fails.

    Rust libraries print a report before they raise an error.
    """
    # Imported here, because every command imports this module.
    import tempfile

    try:
        stderr = os.dup(2)
    except OSError:
        # Standard error is closed.
        yield
        return
    with tempfile.TemporaryFile() as held, os.fdopen(stderr, "wb") as stream:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
        held.seek(0)
        stream.write(held.read())
