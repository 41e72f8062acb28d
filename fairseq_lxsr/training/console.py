"""What `lxsr train` shows of fairseq's log: one line of progress, and a line at each validation; a
file has all of it.

`lxsr train` names what it shows in the environment, which the processes of other GPUs inherit;
without it, or with --log-format, the standard output of fairseq is left as it is.
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

SHOWN = "LXSR_TRAIN_SHOWS"  # of the environment: one of the following
SHOWS_FAIRSEQ, SHOWS_PROGRESS, SHOWS_ERRORS = "fairseq", "progress", "errors"
LOG = "train.log"  # in --save-dir
FORMAT = logging.Formatter(
    "%(asctime)s | %(levelname)s | %(name)s | %(message)s", "%Y-%m-%d %H:%M:%S"
)  # fairseq's
LOGGED_VALUE = re.compile(r"\b(\w+)[= ](-?[\d.]+(?:e[-+]?\d+)?|inf|nan)(?=[,\s|]|$)")
PLACE = re.compile(r"epoch \d+: +\d+ / (\d+) ")
ESTIMATED = 5  # seconds of training after which its length is told


class Console(logging.Handler):
    """Shows the records of fairseq's loggers as a progress line, validations and warnings."""

    def __init__(self, shows_progress: bool):
        super().__init__()
        self.shows_progress = shows_progress
        self.least = logging.WARNING if shows_progress else logging.ERROR
        self.updates = self.epochs = 0  # limits of the run, 0 where there is none
        self.values: dict[str, str] = {}
        self.start: tuple[float, int] | None = (
            None  # when the first update was done, and its number
        )
        self.estimated = False
        self.line = StatusLine()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record; the names are those under which fairseq logs values of training and of
        validation.
        """
        message = record.getMessage()
        if record.name == "train_inner":
            self._read(message)
        elif "| valid on " in message and self.shows_progress:
            self._validated(dict(LOGGED_VALUE.findall(message)))
        elif seconds := re.fullmatch(r"done training in ([\d.]+) seconds", message):
            self.say(f"trained in {duration(float(seconds[1]))}" if self.shows_progress else "")
        elif record.levelno >= self.least:
            self.say(f"lxsr train: {record.levelname.lower()}: {message}")
        elif record.name.startswith("fairseq_lxsr.") and self.shows_progress:
            self.say(f"lxsr train: {message}")

    def say(self, message: str) -> None:
        """Write a line that stays."""
        self.line.clear()
        if message:
            say(message)

    def stepped(self, update: int) -> None:
        """Show the progress after an update, where a line is due; nothing is fetched from a GPU for
        it.
        """
        now = time.monotonic()
        if self.start is None:
            self.start, self.line = (now, update), StatusLine()
            return
        if not self.shows_progress:
            return
        if not self.estimated and now - self.start[0] >= ESTIMATED and self.updates:
            self.estimated = True
            self.say(
                f"{self.updates - update:,} updates will take about {duration(self._seconds_left(now, update))}"
            )
        self.line.show(lambda: self._state(now, update))

    def _read(self, message: str) -> None:
        self.values = dict(LOGGED_VALUE.findall(message))
        place = PLACE.search(message)
        if self.epochs and place:
            of_epochs = self.epochs * int(place[1])
            self.updates = min(self.updates or of_epochs, of_epochs)

    def _seconds_left(self, now: float, update: int) -> float:
        assert self.start is not None
        begun, first = self.start
        return (now - begun) / max(1, update - first) * max(0, self.updates - update)

    def _state(self, now: float, update: int) -> str:
        values, of_all = self.values, f" of {self.updates:,}" if self.updates else ""
        parts = [f"update {update:,}{of_all}"]
        if {"bsz", "ups"} <= values.keys():
            parts.append(f"{float(values['bsz']) * float(values['ups']):,.0f} pairs/s")
        parts += described(values)
        if self.updates:
            parts.append(f"{duration(self._seconds_left(now, update))} left")
        return ", ".join(parts)

    def _validated(self, values: dict[str, str]) -> None:
        best = [
            f"best {name.removeprefix('best_')} {values[name]}"
            for name in values
            if name.startswith("best_")
        ]
        update = int(float(values.get("num_updates", "0")))
        self.say(
            ", ".join([f"update {update:,}: validation: " + ", ".join(described(values)), *best])
        )


def described(values: dict[str, str]) -> list[str]:
    """Name the loss, and the share of sentences whose translation is the nearest in the batch."""
    found = [f"loss {values['loss']}"] if "loss" in values else []
    share = float(values.get("accuracy", "nan"))
    return found if math.isnan(share) else [*found, f"{100 * share:.1f} % found in the batch"]


_consoles: list[Console] = []  # of this process: none or one
_kept: list[MemoryHandler] = []  # the log of this process until its folder is known: none or one


def begin() -> None:
    """Show what `lxsr train` asks for, and keep the whole log for `keep_log`; call when a task is
    imported and made.
    """
    shown = os.environ.get(SHOWN)
    if shown is None or _kept or _consoles:
        return
    root = logging.getLogger()
    kept = next((handler for handler in root.handlers if isinstance(handler, MemoryHandler)), None)
    if shown != SHOWS_FAIRSEQ:
        _consoles.append(Console(shown == SHOWS_PROGRESS))
        root.handlers = [_consoles[0]]
        clear_before_errors(_consoles[0].line)
    kept = kept or MemoryHandler(sys.maxsize, logging.CRITICAL + 1, flushOnClose=False)
    _kept.append(kept)
    if kept not in root.handlers:
        root.addHandler(kept)


def clear_before_errors(line: StatusLine) -> None:
    report = sys.excepthook

    def hook(kind, error, traceback):
        line.clear()
        report(kind, error, traceback)

    sys.excepthook = hook


def keep_log(save_dir: Path | None) -> None:
    """Write the whole log to a file in a folder, after what is there; None keeps it nowhere, in all
    other workers.
    """
    root = logging.getLogger()
    while _kept:
        kept = _kept.pop()
        root.removeHandler(kept)
        if save_dir is not None:
            file = logging.FileHandler(save_dir / LOG, encoding="utf-8")
            file.setFormatter(FORMAT)
            kept.setTarget(file)
            kept.flush()
            root.addHandler(file)
        kept.close()


def set_run(options: DictConfig) -> None:
    """Tell the progress line when training ends; only the first worker has one."""
    for console in _consoles:
        console.shows_progress &= is_master(options.distributed_training)
        console.updates = options.optimization.max_update or 0
        console.epochs = options.optimization.max_epoch or 0


def stepped(update: int) -> None:
    """Tell the progress line of an update."""
    for console in _consoles:
        console.stepped(update)
