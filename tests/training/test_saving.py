"""One run saves in a folder at a time, and one that is finished changes nothing."""

import os
import shutil

import pytest
from conftest import ROOT, lxsr_here, refused, train_here

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.files.locks import locked


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.pt")}


@pytest.mark.parametrize(
    "limit",
    [
        {"max_update": "2"},
        pytest.param({"max_epoch": "1"}, marks=pytest.mark.slow),
        pytest.param({"max_update": "29"}, marks=pytest.mark.slow),
    ],
)
def test_a_finished_run_says_so_and_changes_nothing(tmp_path, toy_work, limit):
    [(name, value)] = limit.items()
    flags = ("--disable-validation",)
    first = train_here(toy_work / "data-bin", tmp_path, *flags, **limit)
    assert "is reached" not in first.stdout
    before = contents(tmp_path)
    again = train_here(toy_work / "data-bin", tmp_path, *flags, **limit)
    assert again.returncode == 0
    [message] = [line for line in again.stdout.splitlines() if "is reached" in line]
    assert f"--{name.replace('_', '-')} {value}" in message
    assert str(tmp_path / "checkpoint_last.pt") in message
    assert contents(tmp_path) == before
    more = train_here(toy_work / "data-bin", tmp_path, *flags, **{name: str(int(value) + 1)})
    assert "is reached" not in more.stdout
    assert contents(tmp_path)["checkpoint_last.pt"] != before["checkpoint_last.pt"]


def test_a_checkpoint_is_exported_anywhere_without_its_data(tmp_path, toy_work):
    data = shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    named = os.path.relpath(data, ROOT)
    flags = ("--disable-validation", "--no-epoch-checkpoints")
    assert not train_here(named, tmp_path / "save", *flags, max_update="1").returncode
    shutil.rmtree(data)
    shutil.move(tmp_path / "save", tmp_path / "moved")
    checkpoint = tmp_path / "moved" / "checkpoint_last.pt"
    lxsr_here("export", "folder", "--checkpoint", checkpoint, "--output", tmp_path / "model")
    assert SentenceEncoder.from_pretrained(tmp_path / "model").encode(["one dog"]).any()


@pytest.mark.slow
def test_what_is_reset_is_not_finished(tmp_path, toy_work):
    train_here(toy_work / "data-bin", tmp_path, "--disable-validation", max_epoch="1")
    for flag in ("--reset-optimizer", "--reset-dataloader"):
        before = contents(tmp_path)["checkpoint_last.pt"]
        limit = {"max_update": "2"} if flag == "--reset-optimizer" else {"max_epoch": "1"}
        done = train_here(toy_work / "data-bin", tmp_path, "--disable-validation", flag, **limit)
        assert "is reached" not in done.stdout
        assert contents(tmp_path)["checkpoint_last.pt"] != before


def test_a_new_run_goes_on_from_the_checkpoint_of_another_but_not_with_another_optimizer(
    tmp_path, toy_work
):
    flags = ("--disable-validation", "--no-epoch-checkpoints")
    train_here(toy_work / "data-bin", tmp_path / "one", *flags, max_update="1")
    there = ("--continue-once", tmp_path / "one" / "checkpoint_last.pt")
    assert (
        "is reached"
        in train_here(
            toy_work / "data-bin", tmp_path / "two", *flags, *there, max_update="1"
        ).stdout
    )
    train_here(toy_work / "data-bin", tmp_path / "two", *flags, *there, max_update="2")
    assert (
        read_checkpoint(tmp_path / "two" / "checkpoint_last.pt")["optimizer_history"][-1][
            "num_updates"
        ]
        == 2
    )
    before = contents(tmp_path / "two")
    done = train_here(
        toy_work / "data-bin", tmp_path / "two", *flags, max_update="3", optimizer="sgd"
    )
    refused(done, "FairseqAdam", "SGD", "--reset-optimizer")
    assert contents(tmp_path / "two") == before


def test_a_second_run_in_the_same_folder_is_refused(tmp_path, toy_work):
    data, save, flags = (
        toy_work / "data-bin",
        tmp_path / "save",
        ("--disable-validation", "--no-save"),
    )
    with locked(save / ".lock", "x"):
        done = train_here(data, save, max_update="1")
        refused(done, save, str(os.getpid()))
        assert not contents(save)
        # which writes nothing there
        assert not train_here(data, save, *flags, max_update="1").returncode
    assert not train_here(data, save, flags[0], max_update="1").returncode
