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

TRAINED = (
    "epoch 002:     50 / 100 loss=14.1, accuracy=0.25, ups=2, bsz=1024, num_updates=150, wall=457"
)
VALID = (
    "epoch 002 | valid on 'valid' subset | loss 5.25 | accuracy 0.9125 | num_updates 200 | "
    "best_loss 5.1"
)
OWN = (
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


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def steps(shown: Console, clock: list[float], updates: range) -> None:
    for update in updates:
        clock[0] += 1
        shown.stepped(update)


def test_one_line_says_how_far_training_is(clock, capsys):
    shown = Console(shows_progress=True)
    shown.updates = 1000
    steps(shown, clock, range(1, 8))
    shown.emit(record("train_inner", TRAINED))
    steps(shown, clock, range(8, 80))
    assert capsys.readouterr().err.splitlines() == [
        "994 updates will take about 17 min",
        "update 11 of 1,000, 2,048 pairs/s, loss 14.1, 25.0 % retrieved in the batch, 16 min left",
        "update 71 of 1,000, 2,048 pairs/s, loss 14.1, 25.0 % retrieved in the batch, 15 min left",
    ]


def test_a_length_in_epochs_is_that_of_the_epochs_that_fairseq_counts(clock, capsys):
    shown = Console(shows_progress=True)
    shown.epochs = 3
    steps(shown, clock, range(1, 3))
    shown.emit(record("train_inner", TRAINED))
    assert shown.updates == 300
    shown.updates, shown.epochs = 200, 3
    shown.emit(record("train_inner", TRAINED))
    assert shown.updates == 200  # the limit that is reached first


@pytest.mark.parametrize(
    ("name", "message", "level", "expected"),
    [
        (
            "valid",
            VALID,
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
def test_records_of_fairseq_in_the_words_of_its_user(capsys, name, message, level, expected):
    Console(shows_progress=True).emit(record(name, message, level))
    assert capsys.readouterr().err == expected
    Console(shows_progress=False).emit(record(name, message, level))
    assert capsys.readouterr().err == (expected if level == logging.ERROR else "")


def test_the_progress_is_that_of_the_first_worker(clock, capsys, monkeypatch):
    for rank in (0, 1):
        shown = Console(shows_progress=True)
        monkeypatch.setattr(console, "_consoles", [shown])
        lengths = SimpleNamespace(max_update=20, max_epoch=0)
        console.set_run(
            SimpleNamespace(
                optimization=lengths, distributed_training=SimpleNamespace(distributed_rank=rank)
            )
        )
        for update in range(1, 20):
            clock[0] += 1
            console.stepped(update)
        assert bool(capsys.readouterr().err) == (rank == 0)


def test_a_line_of_progress_is_cleared_before_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", lambda *_: print("error", file=sys.stderr))
    line = SimpleNamespace(clear=lambda: print("cleared", file=sys.stderr))
    console.clear_before_errors(line)
    sys.excepthook(ValueError, ValueError(), None)
    assert capsys.readouterr().err == "cleared\nerror\n"


def test_training_shows_validations_and_keeps_the_whole_log(toy_work, tmp_path):
    words = ("train", toy_work / "data-bin", "--recipe", "best", *OWN, "--save-dir", tmp_path)
    done = lxsr(
        *words, "--max-update", 4, "--validate-interval-updates", 2, "--validate-interval", 100
    )
    shown = [line for line in done.stderr.splitlines() if "validation" in line]
    assert [line.partition(":")[0] for line in shown] == ["update 2", "update 4"]
    assert "INFO" not in done.stdout + done.stderr
    assert "trained in " in done.stderr
    log = (tmp_path / console.LOG).read_text()
    assert "| INFO | fairseq_cli.train | {'_name'" in log  # from its first line
    assert sorted(read_log(tmp_path / console.LOG).train["loss"]) == [1, 2, 3, 4]

    more = lxsr(*words, "--max-update", 6, "--log-format", "json")
    assert '| INFO | train_inner | {"epoch"' in more.stdout
    assert "validation:" not in more.stderr
    assert sorted(read_log(tmp_path / console.LOG).train["loss"]) == [1, 2, 3, 4, 5, 6]

    quiet = lxsr("--quiet", *words, "--max-update", 7)
    assert quiet.stdout == ""
    assert re.findall("^(?:update|trained|lxsr train).*", quiet.stderr, re.MULTILINE) == []
    assert sorted(read_log(tmp_path / console.LOG).train["loss"]) == [1, 2, 3, 4, 5, 6, 7]


def test_a_refused_training_keeps_no_log(toy_work, tmp_path):
    words = (
        "train",
        toy_work / "data-bin",
        "--recipe",
        "best",
        *OWN,
        "--save-dir",
        tmp_path / "run",
    )
    refused(lxsr(*words, "--lr", -1, check=False), "--lr -1")
    assert not (tmp_path / "run" / console.LOG).exists()
    assert not lxsr(*words, "--max-update", 1, "--no-save", "--disable-validation").stdout.count(
        "INFO"
    )
    assert not (tmp_path / "run" / console.LOG).exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a system without /dev/full")
def test_a_log_that_cannot_be_written_is_one_line(capsys):
    from fairseq_lxsr.training.console import LogFile

    log = LogFile("/dev/full")
    for number in range(3):
        log.emit(logging.LogRecord("x", logging.INFO, "", 0, f"update {number}", None, None))
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "/dev/full: No space left on device" in said
    with contextlib.suppress(OSError):
        log.close()
