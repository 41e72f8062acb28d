"""Progress on standard error: a line that is written over on a terminal; in files and notebooks one
a minute.
"""

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from fairseq_lxsr.errors import say

# seconds until the first line where there is no terminal, and between two lines
FIRST, EACH = (10, 60)
REFRESH = 0.5  # seconds between two states of the line of a terminal


def on_terminal() -> bool:
    """Return whether standard error is a terminal; that of a notebook is none."""
    return sys.stderr is not None and sys.stderr.isatty()


def duration(seconds: float) -> str:
    """Write a time as a person says it: 40 s, 3 min, 2 h 10 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(0, seconds):.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class StatusLine:
    """The state of long work in one line."""

    def __init__(self) -> None:
        self._due = time.monotonic() + (0 if on_terminal() else FIRST)
        self._width = 0  # of what stands on the terminal

    def show(self, state: Callable[[], str]) -> None:
        """Show the state that a function describes, which is called only where a line is due."""
        now, terminal = time.monotonic(), on_terminal()
        if now < self._due:
            return
        self._due = now + (REFRESH if terminal else EACH)
        if terminal:
            self._write_over(state())
        else:
            say(state())

    def clear(self) -> None:
        """Take the line from the terminal, before something else is written there."""
        if self._width:
            self._write_over("")
            sys.stderr.write("\r")
            sys.stderr.flush()

    def _write_over(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write("\r")
        sys.stderr.write(text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)


class Progress(tqdm):
    """A bar of tqdm on a terminal; elsewhere, unless `disable` is true, the same as lines of a log.

    with Progress(total=len(texts), desc="encode", unit=" sentences", disable=None) as bar:
        for block in blocks:
            ...
            bar.update(len(block))
    """

    def __init__(self, *args: Any, disable: bool | None = None, **options: Any):
        self.lines = disable is None and not on_terminal()
        if self.lines:
            options |= {"mininterval": EACH, "delay": FIRST, "miniters": 1, "leave": False}
        super().__init__(*args, disable=bool(disable), **options)
        if self.lines:
            self.last_print_t -= EACH - FIRST  # so the first line comes earlier

    def display(self, msg: str | None = None, pos: int | None = None) -> bool | None:
        if not self.lines:
            return super().display(msg, pos)
        if msg is None:
            say(self._state())
        return False

    def clear(self, nolock: bool = False) -> None:
        if not self.lines:
            super().clear(nolock)

    def _state(self) -> str:
        """Describe what is done: encode: 1,000 of 5,000 sentences, 400/s, 10 s left."""
        done, rate = self.n, (self.n - self.initial) / max(self._time() - self.start_t, 1e-9)
        number = self.format_sizeof if self.unit_scale else "{:,.0f}".format
        of_all = f" of {number(self.total)}" if self.total else ""
        left = f", {duration((self.total - done) / rate)} left" if self.total and rate else ""
        return f"{self.desc}: {number(done)}{of_all}{self.unit}, {number(rate)}/s{left}"
