"""Batches of a training: their groups in a resumed run, their memory and their negatives."""

import re

import pytest
import torch
from conftest import refused, train, train_here
from fairseq.data import iterators
from fairseq.data.iterators import CountingIterator
from fairseq.tasks import FairseqTask

from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.training.fairseq_patches import explain
from fairseq_lxsr.training.task import MAX_OUT_OF_MEMORY


def remaining_batches(num_batches, num_used):
    """The batches of an epoch, of which some have been used."""
    return CountingIterator(range(num_used, num_batches), start=num_used)


@pytest.mark.parametrize(
    ("num_batches", "num_used", "size", "drops_incomplete", "expected"),
    [
        # fairseq makes these groups even without our patch.
        (11, 0, 4, False, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]),
        (11, 8, 4, False, [[8, 9, 10]]),
        (11, 0, 4, True, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (11, 4, 4, True, [[4, 5, 6, 7]]),
        # Without the patch, fairseq makes no group.
        (11, 9, 4, False, [[9, 10]]),
        (11, 10, 100, False, [[10]]),
        # Without the patch, fairseq makes one group, and repeats the epoch.
        (11, 5, 4, False, [[5, 6, 7, 8], [9, 10]]),
        (12, 5, 4, True, [[5, 6, 7, 8]]),
        (11, 7, 1, False, [[7], [8], [9], [10]]),
    ],
)
def test_all_remaining_batches_of_an_epoch_are_grouped_in_their_order(
    num_batches, num_used, size, drops_incomplete, expected
):
    """A group has the batches of one update; `drops_incomplete` leaves out a last smaller one."""
    batches = remaining_batches(num_batches, num_used)

    groups = iterators.GroupedIterator(batches, size, skip_remainder_batch=drops_incomplete)

    assert [next(groups) for _ in expected] == expected
    assert not groups.has_next()
    # Otherwise fairseq would repeat the epoch.
    assert not batches.has_next()


@pytest.mark.parametrize(
    ("num_batches", "num_used"), [(11, 9), (3, 0)], ids=["end of epoch", "small epoch"]
)
def test_remaining_batches_that_are_fewer_than_a_group_are_refused_if_it_must_be_whole(
    num_batches, num_used
):
    batches = remaining_batches(num_batches, num_used)
    with pytest.raises(InputError, match=r"--update-freq 4 .*--reset-dataloader"):
        iterators.GroupedIterator(batches, 4, skip_remainder_batch=True)


def test_a_run_resumes_with_another_update_freq(tmp_path, toy_work):
    """An epoch has 29 batches. After 28, one is left, and an update of 9 begins the next epoch."""
    data = toy_work / "data-bin"
    flags = ("--disable-validation", "--no-epoch-checkpoints")
    train_here(data, tmp_path, *flags, max_update="28")

    done = train_here(data, tmp_path, *flags, max_update="30", update_freq="9")

    assert done.returncode == 0, done.stderr
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 30
    assert state["extra_state"]["train_iterator"]["epoch"] == 2


def count_steps_and_fail(monkeypatch, is_failing):
    """Let steps of training fail as on a card without memory for a batch.

    Args:
        monkeypatch: pytest's fixture.
        is_failing: function of the number of a step, from 1: whether its batch does not fit.

    Returns:
        A list that has the number of each step.
    """
    train_step = FairseqTask.train_step
    steps = []

    def step(*args, **kwargs):
        steps.append(len(steps) + 1)
        if is_failing(steps[-1]):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return train_step(*args, **kwargs)

    monkeypatch.setattr(FairseqTask, "train_step", step)
    return steps


@pytest.mark.parametrize("update_freq", [1, 2])
def test_training_ends_if_no_update_fits_into_the_memory(
    tmp_path, toy_work, monkeypatch, update_freq
):
    """With --update-freq 2, the first batch of each update fits, but no update is made."""
    steps = count_steps_and_fail(monkeypatch, lambda number: number % update_freq == 0)
    flags = ("--disable-validation", "--drop-last")

    done = train_here(
        toy_work / "data-bin", tmp_path, *flags, max_update="5", update_freq=str(update_freq)
    )

    refused(done, "memory", "--batch-size", "--update-freq")
    assert len(steps) == MAX_OUT_OF_MEMORY * update_freq
    assert not (tmp_path / "crash.pt").exists()


def test_batches_that_do_not_fit_into_the_memory_are_skipped(tmp_path, toy_work, monkeypatch):
    # Only every third batch fits.
    steps = count_steps_and_fail(monkeypatch, lambda number: number % 3 != 0)
    flags = ("--disable-validation", "--no-epoch-checkpoints")

    done = train_here(toy_work / "data-bin", tmp_path, *flags, max_update="15")

    assert done.returncode == 0, done.stderr
    assert len(steps) == 3 * 15


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...",
        "[enforce fail at alloc_cpu.cpp:125] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 8 bytes.",
    ],
    ids=["gpu", "cpu"],
)
def test_the_explanation_of_an_error_of_memory_names_the_batch_size_of_validation(message):
    assert "--batch-size-valid" in explain(RuntimeError(message))


@pytest.mark.parametrize(
    "limit",
    [{"batch_size": "1"}, {"max_tokens": "4", "batch_size": None}, {"batch_size_valid": "1"}],
    ids=["pairs", "tokens", "validation"],
)
def test_batches_of_single_pairs_are_refused_because_they_have_no_negatives(
    tmp_path, toy_work, limit
):
    done = train_here(toy_work / "data-bin", tmp_path / "save", max_update="1", **limit)
    refused(done, "single pair", "--batch-size", "--align-weight 0")
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize(
    "loss",
    [("--align-weight", "0"), ("--hard-negatives", "swap", "--objective", "none")],
    ids=["no alignment", "hard negatives"],
)
def test_batches_of_single_pairs_are_enough_without_negatives_of_the_batch(
    tmp_path, toy_work, loss
):
    flags = ("--disable-validation", *loss)
    done = train_here(toy_work / "data-bin", tmp_path, *flags, max_update="1", batch_size="1")
    assert done.returncode == 0, done.stderr
    assert "single pair" not in done.stdout


def test_a_warning_has_the_number_of_batches_of_single_pairs(tmp_path, toy_work):
    # A batch of 14 tokens often has room for one pair only.
    options = {"max_update": "1", "max_tokens": "14", "batch_size": None}
    done = train_here(toy_work / "data-bin", tmp_path, "--disable-validation", **options)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ of \d+ batches have a single pair", done.stdout)


@pytest.mark.slow
def test_the_log_begins_and_ends_with_the_warning_of_a_missing_sentencepiece_model(
    tmp_path, toy_work
):
    data = tmp_path / "data"
    data.mkdir()
    for path in (toy_work / "data-bin").iterdir():
        if path.name != "sentencepiece.model":
            (data / path.name).symlink_to(path)

    done = train(data, tmp_path / "save", "--disable-validation", max_update="1")

    lines = done.stdout.splitlines()
    warning = "no sentencepiece.model"
    # A few lines of fairseq come first.
    assert any(warning in line for line in lines[:10])
    assert warning in lines[-1]


@pytest.mark.slow
def test_training_shows_no_warnings_of_hydra(tmp_path, toy_work):
    """They are for programmers."""
    done = train(toy_work / "data-bin", tmp_path, "--disable-validation", max_update="1")
    assert "hydra" not in done.stderr
