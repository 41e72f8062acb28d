"""Only one run saves in a folder at a time, and a finished run changes nothing."""

import os
import shutil

import pytest
from conftest import ROOT, checked, lxsr_here, refused, train_here

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.files.locks import locked


def checkpoints(folder):
    """The bytes of each checkpoint of a folder, by its name."""
    return {path.name: path.read_bytes() for path in folder.glob("*.pt")}


@pytest.mark.parametrize(
    ("option", "limit"),
    [
        ("max_update", 2),
        pytest.param("max_epoch", 1, marks=pytest.mark.slow),
        # The updates of a whole epoch.
        pytest.param("max_update", 29, marks=pytest.mark.slow),
    ],
)
def test_a_finished_run_names_the_limit_and_changes_nothing_until_it_is_raised(
    tmp_path, toy_work, option, limit
):
    def train_until(limit):
        options = {option: str(limit)}
        done = train_here(toy_work / "data-bin", tmp_path, "--disable-validation", **options)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if "is reached" in line]

    # The first run trains.
    assert train_until(limit) == []
    finished = checkpoints(tmp_path)

    # The second run has nothing to do.
    [message] = train_until(limit)
    assert f"--{option.replace('_', '-')} {limit}" in message
    assert str(tmp_path / "checkpoint_last.pt") in message
    assert checkpoints(tmp_path) == finished

    # The third run goes on.
    assert train_until(limit + 1) == []
    assert checkpoints(tmp_path)["checkpoint_last.pt"] != finished["checkpoint_last.pt"]


def test_a_moved_checkpoint_is_exported_although_its_data_is_gone(tmp_path, toy_work):
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
@pytest.mark.parametrize(
    ("flag", "limit"),
    [
        # The limit is reached by the updates, or the epoch, that the flag sets back to zero.
        ("--reset-optimizer", {"max_update": "2"}),
        ("--reset-dataloader", {"max_epoch": "1"}),
    ],
    ids=["optimizer", "dataloader"],
)
def test_a_run_whose_progress_is_reset_trains_again(tmp_path, toy_work, flag, limit):
    data = toy_work / "data-bin"
    # One epoch has 29 updates.
    train_here(data, tmp_path, "--disable-validation", max_epoch="1")
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

    # The update of the first run counts.
    done = train_here(data, second, *flags, max_update="1")
    assert "is reached" in done.stdout

    train_here(data, second, *flags, max_update="2")
    state = read_checkpoint(second / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 2


def test_a_checkpoint_of_another_optimizer_is_refused_and_kept(tmp_path, toy_work):
    flags = ("--disable-validation", "--no-epoch-checkpoints")
    train_here(toy_work / "data-bin", tmp_path, *flags, max_update="1", optimizer="adam")
    saved = checkpoints(tmp_path)

    done = train_here(toy_work / "data-bin", tmp_path, *flags, max_update="2", optimizer="sgd")

    refused(done, "FairseqAdam", "SGD", "--reset-optimizer")
    assert checkpoints(tmp_path) == saved


def test_a_second_run_in_the_same_folder_is_refused(tmp_path, toy_work):
    # A lock of this process stands for the first run.
    with locked(tmp_path / ".lock", "x"):
        done = train_here(toy_work / "data-bin", tmp_path, max_update="1")
        refused(done, tmp_path, str(os.getpid()))
        assert not checkpoints(tmp_path)


def test_a_second_run_in_the_same_folder_may_train_without_saving(tmp_path, toy_work):
    flags = ("--disable-validation", "--no-save")
    with locked(tmp_path / ".lock", "x"):
        checked(train_here(toy_work / "data-bin", tmp_path, *flags, max_update="1"))


def test_a_run_saves_in_a_folder_whose_first_run_has_ended(tmp_path, toy_work):
    with locked(tmp_path / ".lock", "x"):
        pass
    checked(train_here(toy_work / "data-bin", tmp_path, "--disable-validation", max_update="1"))
    assert checkpoints(tmp_path)
