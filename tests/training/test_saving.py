"""Only one run saves in a folder at a time, and a finished run changes nothing."""

import os
import shutil

import pytest
from conftest import ROOT, checked, lxsr_here, refused, train_here

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.files.locks import locked


def checkpoints(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.pt")}


@pytest.mark.parametrize(
    "limit",
    [
        {"max_update": "2"},
        pytest.param({"max_epoch": "1"}, marks=pytest.mark.slow),
        pytest.param({"max_update": "29"}, marks=pytest.mark.slow),
    ],
)
def test_a_finished_run_names_the_limit_and_changes_nothing(tmp_path, toy_work, limit):
    [(name, value)] = limit.items()
    data = toy_work / "data-bin"
    done = train_here(data, tmp_path, "--disable-validation", **limit)
    assert "is reached" not in done.stdout
    finished = checkpoints(tmp_path)

    done = train_here(data, tmp_path, "--disable-validation", **limit)
    assert done.returncode == 0
    [message] = [line for line in done.stdout.splitlines() if "is reached" in line]
    assert f"--{name.replace('_', '-')} {value}" in message
    assert str(tmp_path / "checkpoint_last.pt") in message
    assert checkpoints(tmp_path) == finished

    done = train_here(data, tmp_path, "--disable-validation", **{name: str(int(value) + 1)})
    assert "is reached" not in done.stdout
    assert checkpoints(tmp_path)["checkpoint_last.pt"] != finished["checkpoint_last.pt"]


def test_a_moved_checkpoint_is_exported_without_its_data(tmp_path, toy_work):
    data = shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    relative_path = os.path.relpath(data, ROOT)
    flags = ("--disable-validation", "--no-epoch-checkpoints")
    checked(train_here(relative_path, tmp_path / "save", *flags, max_update="1"))
    shutil.rmtree(data)
    shutil.move(tmp_path / "save", tmp_path / "moved")
    checkpoint = tmp_path / "moved" / "checkpoint_last.pt"
    lxsr_here("export", "folder", "--checkpoint", checkpoint, "--output", tmp_path / "model")
    assert SentenceEncoder.from_pretrained(tmp_path / "model").encode(["one dog"]).any()


@pytest.mark.slow
def test_a_run_with_a_reset_limit_is_not_finished(tmp_path, toy_work):
    data = toy_work / "data-bin"
    train_here(data, tmp_path, "--disable-validation", max_epoch="1")
    for flag, limit in (
        ("--reset-optimizer", {"max_update": "2"}),
        ("--reset-dataloader", {"max_epoch": "1"}),
    ):
        finished = checkpoints(tmp_path)["checkpoint_last.pt"]
        done = train_here(data, tmp_path, "--disable-validation", flag, **limit)
        assert "is reached" not in done.stdout
        assert checkpoints(tmp_path)["checkpoint_last.pt"] != finished


def test_a_run_continues_from_the_checkpoint_of_another_run(tmp_path, toy_work):
    data = toy_work / "data-bin"
    first = tmp_path / "first"
    second = tmp_path / "second"
    flags = ("--disable-validation", "--no-epoch-checkpoints")
    train_here(data, first, *flags, max_update="1")
    flags += ("--continue-once", first / "checkpoint_last.pt")
    done = train_here(data, second, *flags, max_update="1")
    assert "is reached" in done.stdout
    train_here(data, second, *flags, max_update="2")
    state = read_checkpoint(second / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 2


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path, toy_work):
    flags = ("--disable-validation", "--no-epoch-checkpoints")
    train_here(toy_work / "data-bin", tmp_path, *flags, max_update="1")
    saved = checkpoints(tmp_path)
    done = train_here(toy_work / "data-bin", tmp_path, *flags, max_update="2", optimizer="sgd")
    refused(done, "FairseqAdam", "SGD", "--reset-optimizer")
    assert checkpoints(tmp_path) == saved


def test_a_second_run_in_the_same_folder_is_refused_if_it_saves(tmp_path, toy_work):
    data = toy_work / "data-bin"
    save_dir = tmp_path / "save"
    flags = ("--disable-validation", "--no-save")
    with locked(save_dir / ".lock", "x"):
        done = train_here(data, save_dir, max_update="1")
        refused(done, save_dir, str(os.getpid()))
        assert not checkpoints(save_dir)
        checked(train_here(data, save_dir, *flags, max_update="1"))
    checked(train_here(data, save_dir, "--disable-validation", max_update="1"))
