"""Resuming: the same parameters to the bit, and checkpoints that must not be trusted."""

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import assert_same_weights, export, lxsr, refused, train, train_here, weights

from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.errors import InputError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "limits"),
    [
        ((), ({"max_epoch": "1"}, {"max_epoch": "2"})),
        (
            ("--no-epoch-checkpoints",),
            ({"max_update": "13"}, {"max_update": "40"}),
        ),  # in the middle of an epoch
        # 900 pairs are 28 full batches
        (("--batches", "shuffled", "--drop-last"), ({"max_update": "13"}, {"max_update": "31"})),
    ],
)
def test_a_run_in_two_halves_equals_one(tmp_path, toy_work, flags, limits):
    """The halves read their data in another process, the second or both, which must not matter
    either.
    """
    first, last = limits
    runs = {
        "whole": [(last, "0")],
        "halves": [(first, "0" if "max_update" in first else "1"), (last, "1")],
    }
    for name, parts in runs.items():
        for limit, workers in parts:
            options = limit | {"num_workers": workers}
            done = train(
                toy_work / "data-bin", tmp_path / name, "--disable-validation", *flags, **options
            )
            if name == "whole":
                assert "end of epoch 1 (average epoch stats below)" in done.stdout
    assert_same_weights(tmp_path / "whole", tmp_path / "halves")
    if not flags:
        started, ended = (
            weights(tmp_path / "whole", f"checkpoint{name}.pt") for name in ("1", "_last")
        )
        assert not torch.equal(
            started["encoder.embed_tokens.weight"], ended["encoder.embed_tokens.weight"]
        )


class CallsCode:
    def __reduce__(self):
        return (print, ("this must never be printed",))


@pytest.fixture
def run_folder(tmp_path, toy_checkpoint):
    """A save folder whose checkpoint_last.pt is to be spoilt, with a whole and a newer spoilt one
    beside it.
    """
    for name in ("checkpoint1.pt", "checkpoint_last.pt", "checkpoint2.pt"):
        shutil.copy(toy_checkpoint, tmp_path / name)
    cut_off(tmp_path / "checkpoint2.pt")  # the newest is no way back
    return tmp_path


def cut_off(path, end=-1000):
    path.write_bytes(path.read_bytes()[:end])


def call_code(path):
    torch.save({"model": {}, "cfg": CallsCode()}, path)


SPOILS = [
    cut_off,
    lambda path: cut_off(path, path.stat().st_size // 2),
    lambda path: cut_off(path, 0),
]
SPOILS += [call_code, lambda path: path.write_bytes(pickle.dumps(CallsCode()))]  # the older format


@pytest.mark.parametrize("spoil", SPOILS)
def test_spoilt_checkpoint_is_refused_and_the_other_one_named(run_folder, spoil, capfd):
    last = run_folder / "checkpoint_last.pt"
    spoil(last)
    with pytest.raises(InputError, match=r"print" if spoil is call_code else None) as error:
        read_checkpoint(last)
    assert str(last) in str(error.value)
    assert f"--restore-file {run_folder / 'checkpoint1.pt'}" in str(error.value)
    refused(export(last, run_folder / "model", check=False), last)
    assert not (run_folder / "model").exists()
    assert "must never" not in capfd.readouterr().out


FINETUNE = "--finetune-from-model {last} --save-dir {last.parent}/new --encoder-layers"
OTHER_LOSSES = ("{last}", "head.", "--finetune-from-model")
OTHER_LAYERS = ("{last}", "--encoder-layers")


@pytest.mark.parametrize(
    ("spoil", "flags", "fragments"),
    [
        (cut_off, "", ("{last}", "{last.parent}/checkpoint1.pt")),
        (call_code, "", ("{last}", "{last.parent}/checkpoint1.pt")),
        (None, "--objective none --sim-weight 0", OTHER_LOSSES),
        (None, f"{FINETUNE} 0", (*OTHER_LAYERS, "encoder.layers.")),
        (None, f"{FINETUNE} 5", OTHER_LAYERS),
        # fairseq would look for it in the working directory, not find it, and start again
        (None, "--restore-file checkpoint1.pt", ("checkpoint1.pt: ",)),
    ],
)
def test_checkpoints_that_training_does_not_go_on_from(
    run_folder, toy_work, spoil, flags, fragments
):
    last = run_folder / "checkpoint_last.pt"
    if spoil:
        spoil(last)
    done = train(
        toy_work / "data-bin",
        run_folder,
        *flags.format(last=last).split(),
        check=False,
        max_epoch="7",
    )
    refused(done, *(fragment.format(last=last) for fragment in fragments))
    assert "must never" not in done.stdout + done.stderr


@pytest.mark.slow
def test_training_goes_on_from_the_checkpoint_the_message_names(run_folder, toy_work):
    cut_off(run_folder / "checkpoint_last.pt")
    named = run_folder / "checkpoint1.pt"
    done = train(
        toy_work / "data-bin",
        run_folder,
        "--disable-validation",
        restore_file=str(named),
        max_epoch="7",
    )
    assert f"Loaded checkpoint {named}" in done.stdout
    assert zipfile.is_zipfile(run_folder / "checkpoint_last.pt")


@pytest.mark.slow
def test_a_checkpoint_of_other_losses_is_gone_on_from_without_its_optimizer(run_folder, toy_work):
    start = ("--finetune-from-model", run_folder / "checkpoint_last.pt", "--no-save")
    options = {"objective": "none", "sim_weight": "0", "max_epoch": "1"}
    train(toy_work / "data-bin", run_folder / "other", *start, **options)


def test_checkpoint_of_another_dictionary_is_refused(run_folder, toy_work, tmp_path):
    last, other, output = run_folder / "checkpoint_last.pt", tmp_path / "other", tmp_path / "model"
    options = ("--valid-size", 9, "--test-size", 9, "--vocab-size", 190)
    lxsr("prepare", "--work", other, "--data", toy_work / "text", *options)
    refused(train(other / "data-bin", run_folder, check=False), last, "200", "190")
    # the same size, other symbols
    shutil.copytree(
        toy_work / "data-bin", other / "swapped", ignore=shutil.ignore_patterns("stage.json")
    )
    for path in (other / "swapped").glob("dict.*.txt"):
        lines = path.read_text().splitlines()
        path.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    refused(train(other / "swapped", run_folder, check=False), last)
    for data in ("data-bin", "swapped"):
        refused(export(last, output, "--data", other / data, check=False), other / data)


@pytest.fixture
def save_dir(tmp_path, toy_checkpoint):
    """A folder with the checkpoints of a run."""
    (tmp_path / "save").mkdir()
    for name in ("checkpoint1.pt", "checkpoint_best.pt", "checkpoint_last.pt"):
        shutil.copy(toy_checkpoint, tmp_path / "save" / name)
    return tmp_path / "save"


def test_training_goes_on_with_the_data_it_began_with(save_dir, toy_work, tmp_path):
    """Its place in an epoch means other pairs in other data, also where only their order
    differs.
    """
    data = shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    (data / "stage.json").unlink()
    name = data / "train.en-fr.fr.bin"
    content = name.read_bytes()
    name.write_bytes(content[2:] + content[:2])
    done = train_here(data, save_dir, max_epoch="9")
    refused(done, save_dir / "checkpoint_last.pt", "--reset-dataloader")
    options = ("--reset-dataloader", "--disable-validation", "--no-epoch-checkpoints")
    assert not train_here(data, save_dir, *options, max_epoch="1").returncode
    # from here on it is the data of this training
    assert not train_here(data, save_dir, *options[1:], max_epoch="2").returncode
    refused(train_here(toy_work / "data-bin", save_dir, max_epoch="9"), "--reset-dataloader")


def test_a_damaged_file_of_the_data_is_named(toy_work, tmp_path):
    data = shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    for name in ("train.en-fr.fr.bin", "valid.en-fr.en.idx", "text.json", "stage.json"):
        content = (data / name).read_bytes()
        place = content.index(b"train") if name == "stage.json" else len(content) // 2
        (data / name).write_bytes(
            content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        )
        refused(train_here(data, tmp_path / "save", "--no-save"), data / name)
        (data / name).write_bytes(content)
    shards = shutil.copytree(data, tmp_path / "parts" / "0").parent
    files = json.loads((data / "stage.json").read_text())["files"]
    (shards / "0" / "stage.json").unlink()
    (shards / "stage.json").write_text(
        json.dumps({"files": {f"0/{name}": value for name, value in files.items()}})
    )
    (shards / "0" / "train.en-fr.fr.bin").write_bytes(bytes(len(content)))
    refused(
        train_here(shards / "0", tmp_path / "save", "--no-save"),
        "train.en-fr.fr.bin",
    )


@pytest.mark.parametrize("flags", [(), ("--finetune-from-model", "{last}")])
def test_a_new_training_does_not_replace_the_best_checkpoint_of_another(
    save_dir, toy_work, toy_checkpoint, flags
):
    (save_dir / "checkpoint_last.pt").unlink()
    before = {path.name: path.read_bytes() for path in save_dir.glob("*.pt")}
    words = [flag.format(last=toy_checkpoint) for flag in flags]
    done = train_here(toy_work / "data-bin", save_dir, *words, max_epoch="1")
    refused(
        done,
        f"{save_dir} contains ",
        f"--restore-file {save_dir / 'checkpoint_best.pt'}",
    )
    assert {path.name: path.read_bytes() for path in save_dir.glob("*.pt")} == before
    assert not train_here(
        toy_work / "data-bin", save_dir, "--no-save", *words, max_update="1"
    ).returncode


def test_after_nan_the_last_good_checkpoint_is_named(save_dir, toy_work):
    """Not one whose weights are none any more, nor a damaged one."""
    good, last = save_dir / "checkpoint_best.pt", save_dir / "checkpoint_last.pt"
    state = torch.load(good, weights_only=False)
    state["model"] = {
        name: torch.full_like(value, torch.nan) for name, value in state["model"].items()
    }
    torch.save(state, last)
    damaged = save_dir / "checkpoint9.pt"
    damaged.write_bytes(good.read_bytes()[:-900])
    done = train_here(toy_work / "data-bin", save_dir, "--disable-validation", max_epoch="99")
    refused(
        done,
        "--clip-norm 1",
        "--restore-file",
    )
    named = Path(done.stderr.split("--restore-file ")[1].strip())
    assert named in set(save_dir.glob("*.pt")) - {last, damaged}
    for path in save_dir.glob("*.pt"):
        if path != last:
            path.unlink()
    done = train_here(toy_work / "data-bin", save_dir, "--disable-validation", max_epoch="99")
    refused(done, "--clip-norm 1", "--save-dir")
