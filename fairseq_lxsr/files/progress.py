"""Shows progress on standard error.

On a terminal and in a notebook, one line is overwritten. In a file there are no bars; the status
of a training is added every minute.
"""

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from fairseq_lxsr.errors import say

# In a file: seconds before the first line, and between lines.
FIRST_LINE_SECONDS = 10
LINE_SECONDS = 60
# On a terminal and in a notebook: seconds between updates of the line.
REFRESH_SECONDS = 0.5


# Module of the streams that a notebook shows in the output of a cell.
NOTEBOOK_STREAMS = "ipykernel.iostream"


def can_overwrite() -> bool:
    """Return whether a line on standard error can be overwritten: on terminals, in notebooks."""
    if type(sys.stderr).__module__ == NOTEBOOK_STREAMS:
        return True
    # A logger that replaces standard error may only have a `write` method.
    is_terminal = getattr(sys.stderr, "isatty", None)
    return is_terminal is not None and is_terminal()


def duration(seconds: float) -> str:
    """Format a duration in seconds: 40 s, 3 min, 2 h 10 min."""
    if seconds < 90:
        return f"{max(0, seconds):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


class StatusLine:
    """Shows the status of a long task in one line.

        line = StatusLine()
        for step in steps:
            line.show(lambda: f"step {step} of {len(steps)}")
        line.clear()

    In a file, a line is logged every minute.
    """

    def __init__(self) -> None:
        self._due = time.monotonic()
        if not can_overwrite():
            self._due += FIRST_LINE_SECONDS
        # Width of the text currently on the terminal.
        self._width = 0

    def show(self, state: Callable[[], str]) -> None:
        """Show the text that `state` returns; `state` is called only if an update is due."""
        now = time.monotonic()
        overwrites = can_overwrite()
        if now < self._due:
            return
        self._due = now + (REFRESH_SECONDS if overwrites else LINE_SECONDS)
        if overwrites:
            self._overwrite(state())
        else:
            say(state())

    def clear(self) -> None:
        """Clear the status line before writing anything else."""
        if self._width:
            self._overwrite("")
            sys.stderr.write("\r")
            sys.stderr.flush()

    def _overwrite(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write("\r")
        sys.stderr.write(text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)


class Progress(tqdm):
    """A tqdm progress bar on a terminal and in a notebook; nothing in a file.

        with Progress(total=len(texts), desc="encode", unit=" sentences") as bar:
            for block in blocks:
                ...
                bar.update(len(block))

    Args:
        disable: whether to show nothing.
    """

    def __init__(self, *args: Any, disable: bool | None = False, **options: Any):
        super().__init__(*args, disable=bool(disable) or not can_overwrite(), **options)
