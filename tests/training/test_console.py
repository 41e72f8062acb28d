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
# A model and a log that are quick: values of every update.
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

    # Updates take a second each.
    make_updates(console, clock, range(1, 8))
    console.emit(record("train_inner", TRAIN_RECORD))
    make_updates(console, clock, range(8, 80))

    # The time is estimated once, after five seconds, and 2,048 is `bsz` times `ups` of the record.
    assert capsys.readouterr().err.splitlines() == [
        "994 updates will take about 17 min",
        "update 11 of 1,000, 2,048 pairs/s, loss 14.1, 25.0 % retrieved in the batch, 16 min left",
        "update 71 of 1,000, 2,048 pairs/s, loss 14.1, 25.0 % retrieved in the batch, 15 min left",
    ]


@pytest.mark.parametrize(
    ("max_updates", "expected"), [(0, 3 * 100), (200, 200)], ids=["epochs", "updates"]
)
def test_the_number_of_updates_is_the_limit_that_is_reached_first(max_updates, expected):
    console = Console(shows_progress=True)
    # Zero updates are no limit.
    console.updates = max_updates
    console.epochs = 3

    # Its epoch has 100 updates.
    console.emit(record("train_inner", TRAIN_RECORD))

    assert console.updates == expected


INFO_RECORDS = [
    (
        "valid",
        VALID_RECORD,
        "update 200: validation: loss 5.25, 91.2 % retrieved in the batch, best loss 5.1\n",
    ),
    (
        "valid",
        "epoch 001 | valid on 'valid' subset | loss nan | num_updates 9",
        "update 9: validation: loss nan\n",
    ),
    # The means of an epoch and messages of fairseq are not shown.
    ("train", "epoch 002 | loss 5.25 | num_updates 200", ""),
    ("fairseq.trainer", "begin training epoch 2", ""),
    ("fairseq_lxsr.training.task", "finished", "lxsr train: finished\n"),
    ("fairseq_cli.train", "done training in 7200.5 seconds", "trained in 2 h 0 min\n"),
]


@pytest.mark.parametrize(
    ("name", "message", "expected"),
    INFO_RECORDS,
    ids=["valid", "nan", "train", "fairseq", "package", "end"],
)
def test_records_of_fairseq_are_shown_in_plain_words(capsys, name, message, expected):
    Console(shows_progress=True).emit(record(name, message))
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("name", "message", "_"),
    INFO_RECORDS,
    ids=["valid", "nan", "train", "fairseq", "package", "end"],
)
def test_without_progress_no_information_is_shown(capsys, name, message, _):
    Console(shows_progress=False).emit(record(name, message))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("level", "shows_progress", "expected"),
    [
        (logging.WARNING, True, "lxsr train: warning: out of memory\n"),
        (logging.WARNING, False, ""),
        (logging.ERROR, True, "lxsr train: error: out of memory\n"),
        (logging.ERROR, False, "lxsr train: error: out of memory\n"),
    ],
)
def test_without_progress_errors_are_shown_but_no_warnings(capsys, level, shows_progress, expected):
    message = record("fairseq.trainer", "out of memory", level)
    Console(shows_progress=shows_progress).emit(message)
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_worker_shows_progress(clock, capsys, monkeypatch, rank):
    monkeypatch.setattr(console, "_consoles", [Console(shows_progress=True)])
    limits = SimpleNamespace(max_update=20, max_epoch=0)
    worker = SimpleNamespace(distributed_rank=rank)

    console.set_run(SimpleNamespace(optimization=limits, distributed_training=worker))
    # More than the ten seconds after which progress is shown.
    for update in range(1, 20):
        clock.seconds += 1
        console.stepped(update)

    shows_progress = bool(capsys.readouterr().err)
    assert shows_progress == (rank == 0)


def test_a_line_of_progress_is_cleared_before_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", lambda *_: print("error", file=sys.stderr))
    line = SimpleNamespace(clear=lambda: print("cleared", file=sys.stderr))
    console.clear_before_errors(line)
    sys.excepthook(ValueError, ValueError(), None)
    assert capsys.readouterr().err == "cleared\nerror\n"


def train_words(data, save_dir):
    """The words of `lxsr train` for a small model."""
    return ["train", data, "--recipe", "best", *OPTIONS, "--save-dir", save_dir]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def plain_run(toy_work, run_folder):
    """The output of the first run in the folder: updates 1 to 4, and two validations."""
    words = train_words(toy_work / "data-bin", run_folder)
    intervals = ("--validate-interval-updates", 2, "--validate-interval", 100)
    return lxsr(*words, "--max-update", 4, *intervals)


@pytest.fixture(scope="module")
def json_run(toy_work, run_folder, plain_run):
    """The output of the second run, updates 5 and 6, with another format of the log."""
    words = train_words(toy_work / "data-bin", run_folder)
    return lxsr(*words, "--max-update", 6, "--log-format", "json")


@pytest.fixture(scope="module")
def quiet_run(toy_work, run_folder, json_run):
    """The output of the third run, update 7, with --quiet."""
    return lxsr("--quiet", *train_words(toy_work / "data-bin", run_folder), "--max-update", 7)


def test_training_shows_validations_and_its_time_instead_of_the_log_of_fairseq(plain_run):
    validations = [line for line in plain_run.stderr.splitlines() if "validation" in line]
    assert [line.partition(":")[0] for line in validations] == ["update 2", "update 4"]
    assert "trained in " in plain_run.stderr
    assert "INFO" not in plain_run.stdout + plain_run.stderr


def test_a_log_format_shows_the_log_of_fairseq_instead(json_run):
    assert '| INFO | train_inner | {"epoch"' in json_run.stdout
    assert "validation:" not in json_run.stderr


def test_quiet_training_shows_neither_progress_nor_messages(quiet_run):
    assert quiet_run.stdout == ""
    assert re.findall("^(?:update|trained|lxsr train).*", quiet_run.stderr, re.MULTILINE) == []


@pytest.mark.usefixtures("plain_run", "json_run", "quiet_run")
def test_all_runs_in_a_folder_append_to_one_log(run_folder):
    log = run_folder / console.LOG
    # This is the first line of a log of fairseq.
    assert "| INFO | fairseq_cli.train | {'_name'" in log.read_text()
    assert sorted(read_log(log).train["loss"]) == [1, 2, 3, 4, 5, 6, 7]


def test_a_refused_training_writes_no_log(toy_work, tmp_path):
    words = train_words(toy_work / "data-bin", tmp_path / "run")
    refused(lxsr(*words, "--lr", -1, check=False), "--lr -1")
    assert not (tmp_path / "run" / console.LOG).exists()


def test_a_training_without_saving_writes_no_log(toy_work, tmp_path):
    words = train_words(toy_work / "data-bin", tmp_path / "run")
    done = lxsr(*words, "--max-update", 1, "--no-save", "--disable-validation")
    assert "INFO" not in done.stdout
    assert not (tmp_path / "run" / console.LOG).exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a system without /dev/full")
def test_a_log_that_cannot_be_written_is_reported_once_in_one_line(capsys):
    log = console.LogFile("/dev/full")
    for number in range(3):
        log.emit(record("x", f"update {number}"))
    with contextlib.suppress(OSError):
        log.close()
    [message] = capsys.readouterr().err.splitlines()
    assert "/dev/full: No space left on device" in message
