"""Formats fairseq's log for `lxsr train`: a progress line, and one line per validation.

The file train.log in --save-dir contains the whole log. `lxsr train` selects what to show with an
environment variable, because processes on other GPUs inherit the environment. Without the variable,
or with --log-format, fairseq's standard output is unchanged.
"""

import logging
import math
import os
import re
import sys
import time
from logging.handlers import MemoryHandler
from pathlib import Path

from fairseq.distributed.utils import is_master
from omegaconf import DictConfig

from fairseq_lxsr.errors import say
from fairseq_lxsr.files.progress import StatusLine, duration

# Environment variable that selects what to show, and its values.
SHOWN = "LXSR_TRAIN_SHOWS"
SHOWS_FAIRSEQ = "fairseq"
SHOWS_PROGRESS = "progress"
SHOWS_ERRORS = "errors"
# Log file in --save-dir.
LOG = "train.log"
# fairseq-train's log format.
FORMAT = logging.Formatter(
    "%(asctime)s | %(levelname)s | %(name)s | %(message)s", "%Y-%m-%d %H:%M:%S"
)
LOGGED_VALUE = re.compile(r"\b(\w+)[= ](-?[\d.]+(?:e[-+]?\d+)?|inf|nan)(?=[,\s|]|$)")
# Matches the number of updates per epoch in fairseq's training log.
EPOCH_PROGRESS = re.compile(r"epoch \d+: +\d+ / (\d+) ")
# Seconds of training before the total duration is estimated.
ESTIMATE_AFTER = 5


class LogFile(logging.FileHandler):
    """Writes the complete log to a file. If that fails, it warns once, and training continues."""

    def __init__(self, path: Path):
        super().__init__(path, encoding="utf-8")
        self.setFormatter(FORMAT)
        self.has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Report only the first error. By default, logging prints a traceback for each."""
        if not self.has_failed:
            self.has_failed = True
            error = sys.exc_info()[1]
            problem = getattr(error, "strerror", None) or error
            say(f"lxsr train: warning: {self.baseFilename}: {problem}; the log is not complete")


class Console(logging.Handler):
    """Log handler that shows training progress, validation results and warnings."""

    def __init__(self, shows_progress: bool):
        super().__init__()
        self.shows_progress = shows_progress
        self.least_level = logging.WARNING if shows_progress else logging.ERROR
        # Limits of the training run; 0 means no limit.
        self.updates = 0
        self.epochs = 0
        self.values: dict[str, str] = {}
        # Time and number of the first update in this process.
        self.start: tuple[float, int] | None = None
        self.is_estimated = False
        self.line = StatusLine()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a log record if it is important enough.

        Training metrics, which fairseq logs as `train_inner`, update the progress line.
        """
        message = record.getMessage()
        if record.name == "train_inner":
            self._read_values(message)
        elif "| valid on " in message and self.shows_progress:
            self._show_validation(dict(LOGGED_VALUE.findall(message)))
        elif seconds := re.fullmatch(r"done training in ([\d.]+) seconds", message):
            self.line.clear()
            if self.shows_progress:
                self.say(f"trained in {duration(float(seconds[1]))}")
        elif record.levelno >= self.least_level:
            self.say(f"lxsr train: {record.levelname.lower()}: {message}")
        elif record.name.startswith("fairseq_lxsr.") and self.shows_progress:
            self.say(f"lxsr train: {message}")

    def say(self, message: str) -> None:
        """Print a line above the progress line."""
        self.line.clear()
        say(message)

    def stepped(self, update: int) -> None:
        """Show the progress after an update.

        This method does not read any values from a GPU, which would slow down training.
        """
        now = time.monotonic()
        if self.start is None:
            self.start = (now, update)
            self.line = StatusLine()
            return
        if not self.shows_progress:
            return
        is_due = now - self.start[0] >= ESTIMATE_AFTER
        if is_due and self.updates and not self.is_estimated:
            self.is_estimated = True
            time_left = duration(self._seconds_left(now, update))
            self.say(f"{self.updates - update:,} updates will take about {time_left}")
        self.line.show(lambda: self._describe_progress(now, update))

    def _read_values(self, message: str) -> None:
        self.values = dict(LOGGED_VALUE.findall(message))
        progress = EPOCH_PROGRESS.search(message)
        if self.epochs and progress:
            # Training ends when either limit is reached.
            updates = self.epochs * int(progress[1])
            self.updates = min(self.updates or updates, updates)

    def _seconds_left(self, now: float, update: int) -> float:
        assert self.start is not None
        start_time, first_update = self.start
        seconds_per_update = (now - start_time) / max(1, update - first_update)
        return seconds_per_update * max(0, self.updates - update)

    def _describe_progress(self, now: float, update: int) -> str:
        values = self.values
        parts = [f"update {update:,}"]
        if self.updates:
            parts = [f"update {update:,} of {self.updates:,}"]
        if {"bsz", "ups"} <= values.keys():
            parts.append(f"{float(values['bsz']) * float(values['ups']):,.0f} pairs/s")
        parts += describe_values(values)
        if self.updates:
            parts.append(f"{duration(self._seconds_left(now, update))} left")
        return ", ".join(parts)

    def _show_validation(self, values: dict[str, str]) -> None:
        update = int(float(values.get("num_updates", "0")))
        message = f"update {update:,}: validation: {', '.join(describe_values(values))}"
        for name, value in values.items():
            if name.startswith("best_"):
                message += f", best {name.removeprefix('best_')} {value}"
        self.say(message)


def describe_values(values: dict[str, str]) -> list[str]:
    """Describe the loss, and the percentage of sentences that retrieve their translation."""
    descriptions = []
    if "loss" in values:
        descriptions.append(f"loss {values['loss']}")
    share = float(values.get("accuracy", "nan"))
    if not math.isnan(share):
        descriptions.append(f"{100 * share:.1f} % retrieved in the batch")
    return descriptions


# Console of this process, if any.
_consoles: list[Console] = []
# Buffers this process's log until the log folder is known.
_memory_handlers: list[MemoryHandler] = []


def begin() -> None:
    """Set up the output for `lxsr train`, and buffer the log in memory until `keep_log` is called.

    Call this when a task is imported, and again when a task is built.
    """
    display = os.environ.get(SHOWN)
    if display is None or _memory_handlers or _consoles:
        return
    root = logging.getLogger()
    memory = None
    for handler in root.handlers:
        if isinstance(handler, MemoryHandler):
            memory = handler
            break
    if display != SHOWS_FAIRSEQ:
        _consoles.append(Console(display == SHOWS_PROGRESS))
        root.handlers = [_consoles[0]]
        clear_before_errors(_consoles[0].line)
    if memory is None:
        memory = MemoryHandler(sys.maxsize, logging.CRITICAL + 1, flushOnClose=False)
    _memory_handlers.append(memory)
    if memory not in root.handlers:
        root.addHandler(memory)


def clear_before_errors(line: StatusLine) -> None:
    """Install an exception hook that clears the progress line before it reports an error."""
    report = sys.excepthook

    def hook(kind, error, traceback):
        line.clear()
        report(kind, error, traceback)

    sys.excepthook = hook


def keep_log(save_dir: Path | None) -> None:
    """Append the whole log to `train.log` in a folder.

    Args:
        save_dir: output folder. None discards the log, which all workers except the first do.
    """
    root = logging.getLogger()
    while _memory_handlers:
        memory = _memory_handlers.pop()
        root.removeHandler(memory)
        if save_dir is not None:
            file = LogFile(save_dir / LOG)
            memory.setTarget(file)
            memory.flush()
            root.addHandler(file)
        memory.close()


def set_run(options: DictConfig) -> None:
    """Set the update and epoch limits of the progress line, which only the first worker shows."""
    for console in _consoles:
        console.shows_progress &= is_master(options.distributed_training)
        console.updates = options.optimization.max_update or 0
        console.epochs = options.optimization.max_epoch or 0


def stepped(update: int) -> None:
    """Refresh the progress line after an update."""
    for console in _consoles:
        console.stepped(update)
