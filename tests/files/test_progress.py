"""Progress on standard error."""

import io
import sys
import time

import pytest

from fairseq_lxsr.files import progress
from fairseq_lxsr.files.progress import Progress, StatusLine, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Logger:
    """Standard error of a program that logs it: it has no `isatty`."""

    def __init__(self):
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


# Standard error of a notebook: no terminal, but a carriage return overwrites its line. It is known
# by the module of its class.
NotebookStream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, as a list with one number that the test increases."""
    now = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def update_for_20_seconds(clock: list[float]) -> None:
    """Update a progress bar every second."""
    with Progress(total=20, desc="score", unit=" pairs", disable=None) as bar:
        for _ in range(20):
            clock[0] += 1
            bar.update(1)


def show_a_state_after_a_minute(clock: list[float]) -> None:
    line = StatusLine()
    clock[0] += progress.LINE_SECONDS
    line.show(lambda: "a state")
    line.clear()


def test_a_program_that_logs_standard_error_logs_the_status_and_no_bar(clock, monkeypatch):
    logger = Logger()
    monkeypatch.setattr(sys, "stderr", logger)

    update_for_20_seconds(clock)
    show_a_state_after_a_minute(clock)

    assert logger.text == "a state\n"


def test_progress_without_standard_error_raises_no_exception(clock, monkeypatch):
    """Python sets it to None if there is none, as in a window on Windows."""
    monkeypatch.setattr(sys, "stderr", None)

    update_for_20_seconds(clock)
    show_a_state_after_a_minute(clock)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-1, "0 s"),
        (0.4, "0 s"),
        # Below 90 seconds, seconds are shown, then minutes, and from 90 minutes on hours.
        (89, "89 s"),
        (91, "2 min"),
        (60 * 60, "60 min"),
        (90 * 60, "1 h 30 min"),
        (130 * 60 - 1, "2 h 10 min"),
    ],
)
def test_a_duration_is_rounded_to_seconds_or_minutes(seconds, expected):
    assert duration(seconds) == expected


def test_an_updated_bar_writes_nothing_without_a_terminal(clock, capsys):
    update_for_20_seconds(clock)

    assert capsys.readouterr().err == ""


def test_an_iterated_bar_yields_the_items_and_writes_nothing_without_a_terminal(clock, capsys):
    def count_seconds():
        for second in range(20):
            clock[0] += 1
            yield second

    seconds = list(Progress(count_seconds(), total=20, desc="score", unit=" pairs"))

    assert seconds == list(range(20))
    assert capsys.readouterr().err == ""


def test_a_disabled_bar_writes_nothing_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())

    with Progress(total=1, disable=True) as bar:
        bar.update(1)

    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize("stream_class", [Terminal, NotebookStream], ids=["terminal", "notebook"])
def test_a_terminal_and_a_notebook_show_the_bar_of_tqdm(monkeypatch, stream_class):
    monkeypatch.setattr(sys, "stderr", stream_class())

    with Progress(total=3, desc="encode", ncols=80) as bar:
        bar.update(3)

    assert "\rencode: 100%|" in sys.stderr.getvalue()


@pytest.mark.parametrize("stream_class", [Terminal, NotebookStream], ids=["terminal", "notebook"])
def test_a_status_line_is_shown_at_once_and_cleared_with_spaces(monkeypatch, stream_class):
    monkeypatch.setattr(sys, "stderr", stream_class())
    state = "a state"

    line = StatusLine()
    line.show(lambda: state)
    line.clear()
    # Clearing an empty line writes nothing.
    line.clear()

    spaces = " " * len(state)
    assert sys.stderr.getvalue() == f"\r{state}\r{spaces}\r"


def test_a_status_line_is_overwritten_by_the_next_state_when_it_is_due(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", Terminal())
    line = StatusLine()
    line.show(lambda: "first")

    line.show(lambda: pytest.fail("not due yet"))
    clock[0] += progress.REFRESH_SECONDS
    line.show(lambda: "2nd")

    # Two spaces cover the end of the longer first state.
    assert sys.stderr.getvalue() == "\rfirst\r2nd  "


def test_a_status_line_is_cut_off_before_the_last_column_of_the_terminal(monkeypatch):
    """A terminal may begin a new line after its last column."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "10")

    StatusLine().show(lambda: "123456789012345")

    assert sys.stderr.getvalue() == "\r123456789"
