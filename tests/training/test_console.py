"""What `lxsr train` shows of training, and the log that it keeps."""

import contextlib
import logging
import os
import re
import sys
import time
from types import SimpleNamespace

import pytest
from conftest import lxsr, refused

from fairseq_lxsr.report.training_log import read_log
from fairseq_lxsr.training import console
from fairseq_lxsr.training.console import Console

TRAIN_RECORD = (
    "epoch 002:     50 / 100 loss=14.1, accuracy=0.25, ups=2, bsz=1024, num_updates=150, wall=457"
)
VALID_RECORD = (
    "epoch 002 | valid on 'valid' subset | loss 5.25 | accuracy 0.9125 | num_updates 200 | "
    "best_loss 5.1"
)
OPTIONS = (
    "--cpu",
    "--num-workers",
    0,
    "--encoder-embed-dim",
    8,
    "--init-embeddings",
    "random",
    "--log-interval",
    1,
)


def record(name: str, message: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, message, (), None)


class Clock:
    """Stands for `time.monotonic`."""

    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def make_updates(console: Console, clock: Clock, updates: range) -> None:
    """Make updates that take a second each."""
    for update in updates:
        clock.seconds += 1
        console.stepped(update)


def test_the_progress_is_shown_in_a_line_after_ten_seconds_and_then_each_minute(clock, capsys):
    console = Console(shows_progress=True)
    console.updates = 1000
    make_updates(console, clock, range(1, 8))
    console.emit(record("train_inner", TRAIN_RECORD))
    make_updates(console, clock, range(8, 80))
    assert capsys.readouterr().err.splitlines() == [
        "994 updates will take about 17 min",
        "update 11 of 1,000, 2,048 pairs/s, loss 14.1, 25.0 % retrieved in the batch, 16 min left",
        "update 71 of 1,000, 2,048 pairs/s, loss 14.1, 25.0 % retrieved in the batch, 15 min left",
    ]


def test_the_number_of_updates_is_the_limit_that_is_reached_first(clock):
    console = Console(shows_progress=True)
    console.epochs = 3
    make_updates(console, clock, range(1, 3))
    # An epoch has 100 updates.
    console.emit(record("train_inner", TRAIN_RECORD))
    assert console.updates == 300
    console.updates = 200
    console.epochs = 3
    console.emit(record("train_inner", TRAIN_RECORD))
    assert console.updates == 200


@pytest.mark.parametrize(
    ("name", "message", "level", "expected"),
    [
        (
            "valid",
            VALID_RECORD,
            logging.INFO,
            "update 200: validation: loss 5.25, 91.2 % retrieved in the batch, best loss 5.1\n",
        ),
        (
            "valid",
            "epoch 001 | valid on 'valid' subset | loss nan | num_updates 9",
            20,
            "update 9: validation: loss nan\n",
        ),
        ("train", "epoch 002 | loss 5.25 | num_updates 200", logging.INFO, ""),
        ("fairseq.trainer", "begin training epoch 2", logging.INFO, ""),
        (
            "fairseq.trainer",
            "out of memory",
            logging.WARNING,
            "lxsr train: warning: out of memory\n",
        ),
        ("fairseq.trainer", "out of memory", logging.ERROR, "lxsr train: error: out of memory\n"),
        ("fairseq_lxsr.training.task", "finished", logging.INFO, "lxsr train: finished\n"),
        (
            "fairseq_cli.train",
            "done training in 7200.5 seconds",
            logging.INFO,
            "trained in 2 h 0 min\n",
        ),
    ],
)
def test_records_of_fairseq_are_shown_in_plain_words(capsys, name, message, level, expected):
    Console(shows_progress=True).emit(record(name, message, level))
    assert capsys.readouterr().err == expected
    # Without progress, only errors are shown.
    Console(shows_progress=False).emit(record(name, message, level))
    assert capsys.readouterr().err == (expected if level == logging.ERROR else "")


def test_only_the_first_worker_shows_progress(clock, capsys, monkeypatch):
    for rank in (0, 1):
        monkeypatch.setattr(console, "_consoles", [Console(shows_progress=True)])
        lengths = SimpleNamespace(max_update=20, max_epoch=0)
        worker = SimpleNamespace(distributed_rank=rank)
        console.set_run(SimpleNamespace(optimization=lengths, distributed_training=worker))
        for update in range(1, 20):
            clock.seconds += 1
            console.stepped(update)
        assert bool(capsys.readouterr().err) == (rank == 0)


def test_a_line_of_progress_is_cleared_before_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", lambda *_: print("error", file=sys.stderr))
    line = SimpleNamespace(clear=lambda: print("cleared", file=sys.stderr))
    console.clear_before_errors(line)
    sys.excepthook(ValueError, ValueError(), None)
    assert capsys.readouterr().err == "cleared\nerror\n"


def test_training_shows_validations_and_all_runs_append_to_one_log(toy_work, tmp_path):
    words = ("train", toy_work / "data-bin", "--recipe", "best", *OPTIONS, "--save-dir", tmp_path)
    log = tmp_path / console.LOG
    intervals = ("--validate-interval-updates", 2, "--validate-interval", 100)

    done = lxsr(*words, "--max-update", 4, *intervals)
    validations = [line for line in done.stderr.splitlines() if "validation" in line]
    assert [line.partition(":")[0] for line in validations] == ["update 2", "update 4"]
    assert "INFO" not in done.stdout + done.stderr
    assert "trained in " in done.stderr
    # This is the first line of a log of fairseq.
    assert "| INFO | fairseq_cli.train | {'_name'" in log.read_text()
    assert sorted(read_log(log).train["loss"]) == [1, 2, 3, 4]

    done = lxsr(*words, "--max-update", 6, "--log-format", "json")
    assert '| INFO | train_inner | {"epoch"' in done.stdout
    assert "validation:" not in done.stderr
    assert sorted(read_log(log).train["loss"]) == [1, 2, 3, 4, 5, 6]

    done = lxsr("--quiet", *words, "--max-update", 7)
    assert done.stdout == ""
    assert re.findall("^(?:update|trained|lxsr train).*", done.stderr, re.MULTILINE) == []
    assert sorted(read_log(log).train["loss"]) == [1, 2, 3, 4, 5, 6, 7]


def test_refused_and_unsaved_trainings_write_no_log(toy_work, tmp_path):
    save_dir = tmp_path / "run"
    words = ("train", toy_work / "data-bin", "--recipe", "best", *OPTIONS, "--save-dir", save_dir)
    refused(lxsr(*words, "--lr", -1, check=False), "--lr -1")
    assert not (save_dir / console.LOG).exists()
    done = lxsr(*words, "--max-update", 1, "--no-save", "--disable-validation")
    assert "INFO" not in done.stdout
    assert not (save_dir / console.LOG).exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a system without /dev/full")
def test_a_log_that_cannot_be_written_is_reported_once_in_one_line(capsys):
    from fairseq_lxsr.training.console import LogFile

    log = LogFile("/dev/full")
    for number in range(3):
        log.emit(logging.LogRecord("x", logging.INFO, "", 0, f"update {number}", None, None))
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert "/dev/full: No space left on device" in message
    with contextlib.suppress(OSError):
        log.close()
