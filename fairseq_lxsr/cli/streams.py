"""Standard streams of the commands, which escape control characters.

Corpus text and file names may contain sequences that a terminal would interpret as commands.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from fairseq_lxsr.errors import InputError, discard, printable

# Sequences that tqdm writes to move the cursor to the line of a progress bar.
CURSOR_MOVES = re.compile(r"(\x1b\[A|\r|\n)*")
# Control characters that are not escaped.
UNESCAPED = "\n\t"


class EscapedStream:
    """A text stream that escapes control characters except newlines and tabs.

    Attributes:
        exact: the stream to write to.
    """

    def __init__(self, exact: TextIO):
        self.exact = exact

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exact, name)

    def write(self, text: str) -> int:
        try:
            self.exact.write(printable(text, but=UNESCAPED))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


class Messages(EscapedStream):
    """Standard error with control characters escaped; messages that cannot be written are dropped.

    The command continues without them, and its exit status still says whether it succeeded.
    """

    def write(self, text: str) -> int:
        with self._dropping_errors():
            self.exact.write(_escaped_message(text))
        return len(text)

    def flush(self) -> None:
        with self._dropping_errors():
            self.exact.flush()

    @contextlib.contextmanager
    def _dropping_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            discard(self.exact)


def _escaped_message(text: str) -> str:
    """Escape a message, but not the cursor movements of a progress bar."""
    if CURSOR_MOVES.fullmatch(text):
        return text
    # A progress bar starts each update by moving to the start of its line.
    start = ""
    if text.startswith("\r"):
        start = "\r"
    return start + printable(text.removeprefix("\r"), but=UNESCAPED)


@contextlib.contextmanager
def escaped_streams() -> Iterator[None]:
    """Escape control characters that the block writes to standard output and standard error.

    A standard stream that is closed is connected to the null device first. Otherwise the next file
    that is opened would get its descriptor, and receive the output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The new file gets the lowest free descriptor, which is this one.
            os.open(os.devnull, os.O_RDWR)
    with contextlib.ExitStack() as stack:
        if sys.stdout is not None:
            stack.enter_context(contextlib.redirect_stdout(EscapedStream(sys.stdout)))
        if sys.stderr is not None:
            stack.enter_context(contextlib.redirect_stderr(Messages(sys.stderr)))
        yield


def results() -> TextIO:
    """Return standard output for results; they are escaped only on a terminal.

    The results are exact in a pipe or a file, and escaped on a terminal.

    Raises:
        InputError: if standard output is closed.
    """
    if sys.stdout is None:
        raise InputError(
            "standard output is closed; use --output FILE, or redirect standard output"
        )
    if sys.stdout.isatty():
        return sys.stdout
    return getattr(sys.stdout, "exact", sys.stdout)
