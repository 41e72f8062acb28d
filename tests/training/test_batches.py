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
    ("num_batches", "num_used", "size", "skips", "expected"),
    [
        # These groups are those of fairseq.
        (11, 0, 4, False, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]),
        (11, 8, 4, False, [[8, 9, 10]]),
        (11, 0, 4, True, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (11, 4, 4, True, [[4, 5, 6, 7]]),
        # fairseq has no group.
        (11, 9, 4, False, [[9, 10]]),
        (11, 10, 100, False, [[10]]),
        # fairseq has one group, and repeats the epoch.
        (11, 5, 4, False, [[5, 6, 7, 8], [9, 10]]),
        (12, 5, 4, True, [[5, 6, 7, 8]]),
        (11, 7, 1, False, [[7], [8], [9], [10]]),
    ],
)
def test_groups_have_all_remaining_batches(num_batches, num_used, size, skips, expected):
    batches = remaining_batches(num_batches, num_used)
    groups = iterators.GroupedIterator(batches, size, skip_remainder_batch=skips)
    assert [next(groups) for _ in expected] == expected
    assert not groups.has_next()
    # Otherwise fairseq would repeat the epoch.
    assert not batches.has_next()


def test_an_epoch_without_a_whole_group_is_refused():
    for num_batches, num_used in ((11, 9), (3, 0)):
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


def out_of_memory(is_failing):
    """`FairseqTask.train_step` on a card without memory for some batches."""
    train_step = FairseqTask.train_step
    calls = []

    def step(*args, **kwargs):
        calls.append(1)
        if is_failing(len(calls)):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return train_step(*args, **kwargs)

    return calls, step


@pytest.mark.parametrize("update_freq", ["1", "2"])
def test_training_ends_if_no_batch_fits_into_the_memory(
    tmp_path, toy_work, monkeypatch, update_freq
):
    """With --update-freq 2, the first batch of each update fits, but no update is made."""
    freq = int(update_freq)
    calls, step = out_of_memory(lambda call: call % freq == 0)
    monkeypatch.setattr(FairseqTask, "train_step", step)
    options = {"max_update": "5", "update_freq": update_freq}
    flags = ("--disable-validation", "--drop-last")
    done = train_here(toy_work / "data-bin", tmp_path, *flags, **options)
    refused(done, "memory", "--batch-size", "--update-freq")
    assert len(calls) == MAX_OUT_OF_MEMORY * freq
    assert not (tmp_path / "crash.pt").exists()


def test_batches_that_do_not_fit_into_the_memory_are_skipped(tmp_path, toy_work, monkeypatch):
    calls, step = out_of_memory(lambda call: call % 3)
    monkeypatch.setattr(FairseqTask, "train_step", step)
    flags = ("--disable-validation", "--no-epoch-checkpoints")
    done = train_here(toy_work / "data-bin", tmp_path, *flags, max_update="15")
    assert done.returncode == 0, done.stderr
    assert len(calls) == 45


def test_errors_of_memory_in_validation_and_updates_are_explained():
    cuda = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."
    cpu = (
        "[enforce fail at alloc_cpu.cpp:125] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 8 bytes."
    )
    assert "--batch-size-valid" in explain(RuntimeError(cuda))
    assert "--batch-size-valid" in explain(RuntimeError(cpu))


def test_batches_of_single_pairs_are_refused_because_they_have_no_negatives(tmp_path, toy_work):
    for options in (
        {"batch_size": "1"},
        {"max_tokens": "4", "batch_size": None},
        {"batch_size_valid": "1"},
    ):
        done = train_here(toy_work / "data-bin", tmp_path / "save", max_update="1", **options)
        refused(done, "single pair", "--batch-size", "--align-weight 0")
        assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize(
    "flags", [("--align-weight", "0"), ("--hard-negatives", "swap", "--objective", "none")]
)
def test_batches_of_single_pairs_are_enough_for_losses_without_negatives(tmp_path, toy_work, flags):
    flags = ("--disable-validation", *flags)
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
    warning = "no sentencepiece.model"
    lines = done.stdout.splitlines()
    numbers = [number for number, line in enumerate(lines) if warning in line]
    assert numbers[0] < 10
    assert numbers[-1] == len(lines) - 1
    # Warnings of hydra are for programmers.
    assert "hydra" not in done.stderr
