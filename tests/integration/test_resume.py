"""Resuming: the same parameters to the bit, and checkpoints that must not be trusted."""

import pickle
import shutil
import zipfile

import pytest
import torch
from conftest import lxsr, refused, train, train_here

from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.errors import InputError


def parameters(checkpoint):
    return read_checkpoint(checkpoint)["model"]


def test_two_epochs_and_two_more_equal_four(tmp_path, toy_work):
    """The two halves read their data in another process, which must not matter either."""
    data, flags = toy_work / "data-bin", ("--disable-validation",)
    train(data, tmp_path / "whole", *flags, max_epoch="4", num_workers="0")
    train(data, tmp_path / "halves", *flags, max_epoch="2", num_workers="1")
    train(data, tmp_path / "halves", *flags, max_epoch="4", num_workers="1")
    whole, halves = (parameters(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "halves"))
    assert whole.keys() == halves.keys()
    for name, value in whole.items():
        assert torch.equal(value, halves[name]), name
    started = parameters(tmp_path / "whole" / "checkpoint1.pt")
    assert not torch.equal(started["encoder.embed_tokens.weight"], whole["encoder.embed_tokens.weight"])


def test_resuming_in_the_middle_of_an_epoch_equals_going_through(tmp_path, toy_work):
    data, flags = toy_work / "data-bin", ("--disable-validation", "--no-epoch-checkpoints")
    train(data, tmp_path / "whole", *flags, max_update="40")
    train(data, tmp_path / "halves", *flags, max_update="13")
    train(data, tmp_path / "halves", *flags, max_update="40")
    whole, halves = (parameters(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "halves"))
    assert all(torch.equal(value, halves[name]) for name, value in whole.items())


def test_shuffled_full_batches_go_on_in_the_middle_of_an_epoch(tmp_path, toy_work):
    """900 pairs are 28 full batches; the second half reads them in another process."""
    flags = ("--disable-validation", "--no-epoch-checkpoints", "--batches", "shuffled", "--drop-last")
    runs = (("whole", "31", "0"), ("halves", "13", "0"), ("halves", "31", "1"))
    logs = [
        train_here(toy_work / "data-bin", tmp_path / name, *flags, max_update=updates, num_workers=workers).stdout
        for name, updates, workers in runs
    ]
    assert "end of epoch 1 (average epoch stats below)" in logs[0]
    whole, halves = (parameters(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "halves"))
    assert all(torch.equal(value, halves[name]) for name, value in whole.items())


class CallsCode:
    def __reduce__(self):
        return (print, ("this must never be printed",))


@pytest.fixture
def run_folder(tmp_path, toy_checkpoint):
    """A save folder whose checkpoint_last.pt is to be spoilt, with a whole and a newer spoilt one beside it."""
    for name in ("checkpoint1.pt", "checkpoint_last.pt", "checkpoint2.pt"):
        shutil.copy(toy_checkpoint, tmp_path / name)
    cut_off(tmp_path / "checkpoint2.pt")  # the newest is no way back
    return tmp_path


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-1000])


def cut_in_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def call_code(path):
    torch.save({"model": {}, "cfg": CallsCode()}, path)


def call_code_old_format(path):
    path.write_bytes(pickle.dumps(CallsCode()))


SPOILT = [cut_off, cut_in_half, empty, call_code, call_code_old_format]


@pytest.mark.parametrize("spoil", SPOILT)
def test_spoilt_checkpoint_is_refused_and_the_other_one_named(run_folder, spoil, capfd):
    last = run_folder / "checkpoint_last.pt"
    spoil(last)
    with pytest.raises(InputError) as error:
        read_checkpoint(last)
    assert str(last) in str(error.value)
    assert f"--restore-file {run_folder / 'checkpoint1.pt'}" in str(error.value)
    assert "must never" not in capfd.readouterr().out


@pytest.mark.parametrize("spoil", [cut_off, call_code])
def test_fairseq_train_stops_with_one_line(run_folder, toy_work, spoil):
    last = run_folder / "checkpoint_last.pt"
    spoil(last)
    done = train(toy_work / "data-bin", run_folder, check=False, max_epoch="7")
    refused(done, last, run_folder / "checkpoint1.pt")
    assert "must never" not in done.stdout + done.stderr
    refused(lxsr("export", "folder", "--checkpoint", last, "--output", run_folder / "model", check=False), last)
    assert not (run_folder / "model").exists()


def test_message_names_the_call(run_folder):
    call_code(run_folder / "checkpoint_last.pt")
    with pytest.raises(InputError, match=r"calls \S*print"):
        read_checkpoint(run_folder / "checkpoint_last.pt")


def test_training_goes_on_from_the_checkpoint_the_message_names(run_folder, toy_work):
    cut_off(run_folder / "checkpoint_last.pt")
    named = run_folder / "checkpoint1.pt"
    done = train(toy_work / "data-bin", run_folder, "--disable-validation", restore_file=str(named), max_epoch="7")
    assert f"Loaded checkpoint {named}" in done.stdout
    assert zipfile.is_zipfile(run_folder / "checkpoint_last.pt")


def test_a_checkpoint_of_other_losses_is_gone_on_from_without_its_optimizer_only(run_folder, toy_work):
    options = {"objective": "none", "sim_weight": "0", "max_epoch": "1"}
    done = train(toy_work / "data-bin", run_folder, check=False, **options)
    refused(done, run_folder / "checkpoint_last.pt", "other losses or layers", "head.", "--finetune-from-model")
    start = ("--finetune-from-model", run_folder / "checkpoint_last.pt", "--no-save")
    train(toy_work / "data-bin", run_folder / "other", *start, **options)


@pytest.mark.parametrize(("layers", "holder"), [("0", "only it has encoder.layers."), ("5", "only the new model has")])
def test_a_checkpoint_with_other_layers_is_refused(tmp_path, run_folder, toy_work, layers, holder):
    start = ("--finetune-from-model", run_folder / "checkpoint_last.pt")
    done = train(toy_work / "data-bin", tmp_path / "new", *start, check=False, encoder_layers=layers)
    refused(done, run_folder / "checkpoint_last.pt", "trained with other layers", holder, "--encoder-layers")


def test_a_checkpoint_that_is_not_there_is_refused(run_folder, toy_work):
    # fairseq would look for it in the working directory, not find it, and begin anew
    done = train(toy_work / "data-bin", run_folder, check=False, restore_file="checkpoint1.pt", max_epoch="7")
    refused(done, "checkpoint1.pt: no such checkpoint")


def test_checkpoint_of_another_dictionary_is_refused(run_folder, toy_work, tmp_path):
    other = tmp_path / "other"
    lxsr(
        "prepare",
        "--work",
        other,
        "--data",
        toy_work / "text",
        "--valid-size",
        9,
        "--test-size",
        9,
        "--vocab-size",
        190,
    )
    refused(train(other / "data-bin", run_folder, check=False), run_folder / "checkpoint_last.pt", "200", "190")
    # the same size, other symbols
    shutil.copytree(toy_work / "data-bin", other / "swapped")
    for path in (other / "swapped").glob("dict.*.txt"):
        lines = path.read_text().splitlines()
        path.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    refused(train(other / "swapped", run_folder, check=False), "another dictionary")
    export = ("export", "folder", "--checkpoint", run_folder / "checkpoint_last.pt", "--output", tmp_path / "model")
    refused(lxsr(*export, "--data", other / "data-bin", check=False), "not the dictionary")
    refused(lxsr(*export, "--data", other / "swapped", check=False), "not the dictionary")
