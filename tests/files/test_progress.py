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


@pytest.mark.parametrize("stream", [Logger(), None])
def test_progress_works_if_standard_error_is_not_a_stream(clock, monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(total=20, desc="score", unit=" pairs", disable=None) as bar:
        for _ in range(20):
            clock[0] += 1
            bar.update(1)
    line = StatusLine()
    clock[0] += 60
    line.show(lambda: "a state")
    line.clear()
    if stream:
        assert stream.text == "a state\n"


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, as a list with one number that the test increases."""
    now = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-1, "0 s"),
        (0.4, "0 s"),
        (89, "89 s"),
        (91, "2 min"),
        (3600, "60 min"),
        (5400, "1 h 30 min"),
        (7799, "2 h 10 min"),
    ],
)
def test_durations_are_rounded(seconds, expected):
    assert duration(seconds) == expected


@pytest.mark.parametrize("is_iterated", [True, False])
def test_without_a_terminal_nothing_is_written(clock, capsys, is_iterated):
    def work():
        for item in range(200):
            clock[0] += 1
            yield item

    if is_iterated:
        assert list(Progress(work(), total=200, desc="score", unit=" pairs")) == list(range(200))
    else:
        with Progress(total=200, desc="score", unit=" pairs", disable=None) as bar:
            for _ in work():
                bar.update(1)
    assert capsys.readouterr().err == ""


def test_disabled_progress_writes_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(total=1, disable=True) as bar:
        bar.update(1)
    assert sys.stderr.getvalue() == ""


def test_a_terminal_has_the_bar_of_tqdm(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(total=3, desc="encode", ncols=80) as bar:
        bar.update(3)
    assert "\rencode: 100%|" in sys.stderr.getvalue()


def test_a_notebook_has_the_bar_of_tqdm_and_an_updated_line(monkeypatch):
    """Standard error of a notebook is no terminal, but a carriage return overwrites its line."""
    notebook_stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    monkeypatch.setattr(sys, "stderr", notebook_stream())
    with Progress(total=3, desc="encode", ncols=80) as bar:
        bar.update(3)
    line = StatusLine()
    line.show(lambda: "a state")
    line.clear()
    written = sys.stderr.getvalue()
    assert "\rencode: 100%|" in written
    assert written.endswith("\ra state\r       \r")


def test_a_status_line_of_a_terminal_is_overwritten_and_cleared(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "10")
    line = StatusLine()
    line.show(lambda: "a long state")
    line.show(lambda: pytest.fail("not due"))
    clock[0] += progress.REFRESH_SECONDS
    line.show(lambda: "b")
    line.clear()
    line.clear()
    assert sys.stderr.getvalue() == "\ra long st\rb        \r \r"
