"""Standard streams of the command line: what corpora and file names say never reaches a terminal as
commands.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from fairseq_lxsr.errors import InputError, discard, printable

PROGRESS = re.compile(r"(\x1b\[A|\r|\n)*")  # what tqdm writes by itself to move the cursor


class EscapedStream:
    """A stream of text without control characters but line ends and tabs; `exact` is the stream
    that it writes to.
    """

    def __init__(self, exact: TextIO):
        self.exact = exact

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exact, name)

    def write(self, text: str) -> int:
        try:
            self.exact.write(printable(text, but="\n\t"))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


class Messages(EscapedStream):
    """Standard error: where it cannot be written, the work goes on, and the exit status says the
    rest.
    """

    def write(self, text: str) -> int:
        with self._lost():
            start = "\r" if text.startswith("\r") else ""  # of a progress bar
            escaped = (
                text
                if PROGRESS.fullmatch(text)
                else start + printable(text.removeprefix("\r"), but="\n\t")
            )
            self.exact.write(escaped)
        return len(text)

    def flush(self) -> None:
        with self._lost():
            self.exact.flush()

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            discard(self.exact)


@contextlib.contextmanager
def escaped_streams() -> Iterator[None]:
    """Escape what the block writes to the standard streams; no file gets the number of one that is
    closed.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    with contextlib.ExitStack() as stack:
        if sys.stdout is not None:
            stack.enter_context(contextlib.redirect_stdout(EscapedStream(sys.stdout)))
        if sys.stderr is not None:
            stack.enter_context(contextlib.redirect_stderr(Messages(sys.stderr)))
        yield


def results() -> TextIO:
    """Return standard output for results that programs read: exact, but not on a terminal."""
    if sys.stdout is None:
        raise InputError(
            "standard output is closed; expected --output FILE, or a reader of the results"
        )
    return sys.stdout if sys.stdout.isatty() else getattr(sys.stdout, "exact", sys.stdout)
