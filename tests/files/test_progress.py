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
def test_standard_error_that_is_no_stream_has_lines_or_nothing(clock, monkeypatch, stream):
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
        assert stream.text == "score: 10 of 20 pairs, 1/s, 10 s left\na state\n"


@pytest.fixture
def clock(monkeypatch):
    """The time, which the test moves on: [seconds]."""
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
def test_times_are_short(seconds, expected):
    assert duration(seconds) == expected


@pytest.mark.parametrize("whole", [True, False])
def test_without_a_terminal_a_line_comes_after_ten_seconds_and_then_each_minute(
    clock, capsys, whole
):
    def work():
        for item in range(200):
            clock[0] += 1
            yield item

    if whole:
        assert list(Progress(work(), total=200, desc="score", unit=" pairs")) == list(range(200))
    else:
        with Progress(total=200, desc="score", unit=" pairs", disable=None) as bar:
            for _ in work():
                bar.update(1)
    said = capsys.readouterr().err
    expected = [
        f"score: {done} of 200 pairs, 1/s, {duration(200 - done)} left"
        for done in (10, 70, 130, 190)
    ]
    assert said.splitlines() == expected
    assert not {"\r", "\x1b"} & set(said)


def test_short_work_says_nothing_and_so_does_what_is_not_to_be_shown(clock, capsys):
    for seconds, disable in ((9, None), (900, True)):
        with Progress(total=1, disable=disable) as bar:
            clock[0] += seconds
            bar.update(1)
    assert capsys.readouterr().err == ""


def test_what_has_no_end_has_no_time_left_and_what_goes_on_counts_what_it_does(clock, capsys):
    for options in ({}, {"total": 1000, "initial": 500}):
        with Progress(desc="rows", unit=" rows", **options) as bar:
            clock[0] += 20
            bar.update(100)
    assert (
        capsys.readouterr().err == "rows: 100 rows, 5/s\nrows: 600 of 1,000 rows, 5/s, 80 s left\n"
    )


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


def test_a_line_of_a_terminal_is_written_over_and_cleared(monkeypatch, clock):
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
