"""Resumed training has bit-identical parameters; damaged and foreign checkpoints are refused."""

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
    ("flags", "limit", "first", "last"),
    [
        # The first half ends with an epoch, or in the middle of one.
        ((), "max_epoch", "1", "2"),
        (("--no-epoch-checkpoints",), "max_update", "13", "40"),
        # An epoch of 900 pairs has 28 full batches.
        (("--batches", "shuffled", "--drop-last"), "max_update", "13", "31"),
    ],
)
def test_a_run_in_two_halves_ends_with_the_weights_of_one(
    tmp_path, toy_work, flags, limit, first, last
):
    """Whether another process reads the data makes no difference."""

    def train_until(name, value, workers):
        options = {limit: value, "num_workers": workers}
        flags_of_run = ("--disable-validation", *flags)
        return train(toy_work / "data-bin", tmp_path / name, *flags_of_run, **options)

    result = train_until("whole", last, workers="0")
    assert "end of epoch 1 (average epoch stats below)" in result.stdout
    train_until("halves", first, workers="0" if limit == "max_update" else "1")
    train_until("halves", last, workers="1")

    assert_same_weights(tmp_path / "whole", tmp_path / "halves")
    # The second half has changed the weights.
    if not flags:
        table = "encoder.embed_tokens.weight"
        after_first = weights(tmp_path / "whole", "checkpoint1.pt")[table]
        assert not torch.equal(
            after_first, weights(tmp_path / "whole", "checkpoint_last.pt")[table]
        )


OUTPUT_OF_CODE = "a checkpoint has called code"


class CallsCode:
    """An object that prints when it is unpickled."""

    def __reduce__(self):
        return (print, (OUTPUT_OF_CODE,))


@pytest.fixture
def run_folder(tmp_path, toy_checkpoint):
    """A save folder with the whole checkpoints 1 and last, and a newer damaged one."""
    for name in ("checkpoint1.pt", "checkpoint_last.pt", "checkpoint2.pt"):
        shutil.copy(toy_checkpoint, tmp_path / name)
    cut_off(tmp_path / "checkpoint2.pt")
    return tmp_path


def cut_off(path, end=-1000):
    path.write_bytes(path.read_bytes()[:end])


def call_code(path):
    torch.save({"model": {}, "cfg": CallsCode()}, path)


def call_code_in_the_older_format(path):
    path.write_bytes(pickle.dumps(CallsCode()))


DAMAGES = [
    cut_off,
    lambda path: cut_off(path, path.stat().st_size // 2),
    lambda path: cut_off(path, 0),
    call_code,
    call_code_in_the_older_format,
]


DAMAGE_IDS = ["end", "half", "empty", "code", "older-code"]


@pytest.mark.parametrize("damage", DAMAGES, ids=DAMAGE_IDS)
def test_a_damaged_checkpoint_is_refused_and_the_newest_whole_one_is_named(run_folder, damage):
    """checkpoint2.pt is newer, but damaged, too."""
    last = run_folder / "checkpoint_last.pt"
    damage(last)

    with pytest.raises(InputError) as error:
        read_checkpoint(last)

    assert str(last) in str(error.value)
    assert f"--restore-file {run_folder / 'checkpoint1.pt'}" in str(error.value)


@pytest.mark.parametrize("damage", DAMAGES, ids=DAMAGE_IDS)
def test_a_damaged_checkpoint_is_not_exported(run_folder, damage):
    last = run_folder / "checkpoint_last.pt"
    damage(last)

    result = export(last, run_folder / "model", check=False)

    refused(result, last)
    assert not (run_folder / "model").exists()


@pytest.mark.parametrize("damage", [call_code, call_code_in_the_older_format])
def test_code_in_a_checkpoint_is_not_called(run_folder, damage, capfd):
    last = run_folder / "checkpoint_last.pt"
    damage(last)

    with pytest.raises(InputError):
        read_checkpoint(last)
    export(last, run_folder / "model", check=False)

    assert OUTPUT_OF_CODE not in capfd.readouterr().out


def test_the_error_of_a_checkpoint_with_code_names_its_function(run_folder):
    last = run_folder / "checkpoint_last.pt"
    call_code(last)

    with pytest.raises(InputError, match="print"):
        read_checkpoint(last)


# Trainings that start from the last checkpoint, and what their errors name.
FINETUNE = "--finetune-from-model {last} --save-dir {last.parent}/new --encoder-layers"
OTHER_LOSSES = ("{last}", "head.", "--finetune-from-model")
OTHER_LAYERS = ("{last}", "--encoder-layers")


@pytest.mark.parametrize(
    ("damage", "flags", "fragments"),
    [
        (cut_off, "", ("{last}", "{last.parent}/checkpoint1.pt")),
        (call_code, "", ("{last}", "{last.parent}/checkpoint1.pt")),
        (None, "--objective none --sim-weight 0", OTHER_LOSSES),
        (None, f"{FINETUNE} 0", (*OTHER_LAYERS, "encoder.layers.")),
        (None, f"{FINETUNE} 5", OTHER_LAYERS),
        # fairseq would look for it in the working directory, and start from random weights.
        (None, "--restore-file checkpoint1.pt", ("checkpoint1.pt: ",)),
    ],
    ids=["cut off", "calls code", "other losses", "no layers", "more layers", "relative path"],
)
def test_training_from_an_unsuitable_checkpoint_is_refused(
    run_folder, toy_work, damage, flags, fragments
):
    last = run_folder / "checkpoint_last.pt"
    if damage:
        damage(last)
    words = flags.format(last=last).split()

    result = train(toy_work / "data-bin", run_folder, *words, check=False, max_epoch="7")

    refused(result, *(fragment.format(last=last) for fragment in fragments))
    assert OUTPUT_OF_CODE not in result.stdout + result.stderr


@pytest.mark.slow
def test_training_continues_from_the_checkpoint_that_the_message_names(run_folder, toy_work):
    cut_off(run_folder / "checkpoint_last.pt")
    checkpoint = run_folder / "checkpoint1.pt"
    options = {"restore_file": str(checkpoint), "max_epoch": "7"}

    result = train(toy_work / "data-bin", run_folder, "--disable-validation", **options)

    assert f"Loaded checkpoint {checkpoint}" in result.stdout
    # A whole checkpoint is a zip file; the damaged one has been replaced.
    assert zipfile.is_zipfile(run_folder / "checkpoint_last.pt")


@pytest.mark.slow
def test_training_with_other_losses_may_start_from_a_checkpoint_with_finetune_from_model(
    run_folder, toy_work
):
    """The optimizer of the checkpoint, which has other weights, is not used."""
    start = ("--finetune-from-model", run_folder / "checkpoint_last.pt", "--no-save")
    options = {"objective": "none", "sim_weight": "0", "max_epoch": "1"}
    train(toy_work / "data-bin", run_folder / "other", *start, **options)


@pytest.fixture
def smaller_data(toy_work, tmp_path):
    """Data with 190 pieces instead of 200."""
    options = ("--valid-size", 9, "--test-size", 9, "--vocab-size", 190)
    lxsr("prepare", "--work", tmp_path / "smaller", "--data", toy_work / "text", *options)
    return tmp_path / "smaller" / "data-bin"


@pytest.fixture
def swapped_data(toy_work, tmp_path):
    """The data with the first two symbols of the dictionary swapped."""
    without_manifest = shutil.ignore_patterns("stage.json")
    data = shutil.copytree(toy_work / "data-bin", tmp_path / "swapped", ignore=without_manifest)
    for path in data.glob("dict.*.txt"):
        first, second, *rest = path.read_text().splitlines()
        path.write_text("\n".join([second, first, *rest]) + "\n")
    return data


def test_training_on_data_with_fewer_pieces_than_the_checkpoint_is_refused(
    run_folder, smaller_data
):
    result = train(smaller_data, run_folder, check=False)

    refused(result, run_folder / "checkpoint_last.pt", "200", "190")


def test_training_on_data_with_other_symbols_than_the_checkpoint_is_refused(
    run_folder, swapped_data
):
    result = train(swapped_data, run_folder, check=False)

    refused(result, run_folder / "checkpoint_last.pt")


@pytest.mark.parametrize("name", ["smaller_data", "swapped_data"])
def test_export_with_data_of_another_dictionary_is_refused(run_folder, tmp_path, name, request):
    data = request.getfixturevalue(name)
    last = run_folder / "checkpoint_last.pt"

    result = export(last, tmp_path / "model", "--data", data, check=False)

    refused(result, data)


@pytest.fixture
def save_dir(tmp_path, toy_checkpoint):
    """A folder with the checkpoints of a run."""
    (tmp_path / "save").mkdir()
    for name in ("checkpoint1.pt", "checkpoint_best.pt", "checkpoint_last.pt"):
        shutil.copy(toy_checkpoint, tmp_path / "save" / name)
    return tmp_path / "save"


@pytest.fixture
def changed_data(toy_work, tmp_path):
    """The data with the French ids of the first piece moved to the end."""
    data = shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    (data / "stage.json").unlink()
    path = data / "train.en-fr.fr.bin"
    content = path.read_bytes()
    path.write_bytes(content[2:] + content[:2])
    return data


def test_training_is_not_resumed_with_other_data(save_dir, changed_data):
    """The position in an epoch means other pairs there, even if only their order differs."""
    result = train_here(changed_data, save_dir, max_epoch="9")

    refused(result, save_dir / "checkpoint_last.pt", "--reset-dataloader")


def test_with_reset_dataloader_training_goes_on_with_other_data_which_is_then_its_own(
    save_dir, changed_data, toy_work
):
    flags = ("--disable-validation", "--no-epoch-checkpoints")

    changed = train_here(changed_data, save_dir, "--reset-dataloader", *flags, max_epoch="1")
    resumed = train_here(changed_data, save_dir, *flags, max_epoch="2")
    with_earlier_data = train_here(toy_work / "data-bin", save_dir, max_epoch="9")

    assert changed.returncode == 0
    assert resumed.returncode == 0
    refused(with_earlier_data, "--reset-dataloader")


@pytest.mark.parametrize(
    "name", ["train.en-fr.fr.bin", "valid.en-fr.en.idx", "text.json", "stage.json"]
)
def test_a_file_of_the_data_with_a_wrong_bit_is_named(toy_work, tmp_path, name):
    data = shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    content = bytearray((data / name).read_bytes())
    # Of the manifest, a letter of a file's name.
    position = content.index(b"train") if name == "stage.json" else len(content) // 2
    content[position] ^= 1
    (data / name).write_bytes(content)

    result = train_here(data, tmp_path / "save", "--no-save")

    refused(result, data / name)


def test_a_damaged_file_of_a_shard_is_named(toy_work, tmp_path):
    """The manifest is in the folder of all shards."""
    shard = shutil.copytree(toy_work / "data-bin", tmp_path / "parts" / "0")
    manifest = json.loads((shard / "stage.json").read_text())
    (shard / "stage.json").unlink()
    files = {f"0/{name}": value for name, value in manifest["files"].items()}
    (shard.parent / "stage.json").write_text(json.dumps({"files": files}))
    path = shard / "train.en-fr.fr.bin"
    path.write_bytes(bytes(path.stat().st_size))

    result = train_here(shard, tmp_path / "save", "--no-save")

    refused(result, "train.en-fr.fr.bin")


# A training from random weights, and one from the weights of a checkpoint.
START_FLAGS = pytest.mark.parametrize(
    "flags", [(), ("--finetune-from-model", "{last}")], ids=["random", "finetune"]
)


@START_FLAGS
def test_a_new_training_does_not_replace_the_best_checkpoint_of_another_run(
    save_dir, toy_work, toy_checkpoint, flags
):
    (save_dir / "checkpoint_last.pt").unlink()
    before = {path.name: path.read_bytes() for path in save_dir.glob("*.pt")}
    words = [flag.format(last=toy_checkpoint) for flag in flags]

    result = train_here(toy_work / "data-bin", save_dir, *words, max_epoch="1")

    best = save_dir / "checkpoint_best.pt"
    refused(result, f"{save_dir} contains ", f"--restore-file {best}")
    assert {path.name: path.read_bytes() for path in save_dir.glob("*.pt")} == before


@START_FLAGS
def test_a_new_training_that_saves_nothing_may_have_the_folder_of_another_run(
    save_dir, toy_work, toy_checkpoint, flags
):
    (save_dir / "checkpoint_last.pt").unlink()
    words = [flag.format(last=toy_checkpoint) for flag in flags]

    result = train_here(toy_work / "data-bin", save_dir, "--no-save", *words, max_update="1")

    assert result.returncode == 0


@pytest.fixture
def save_dir_with_nan(save_dir):
    """The folder with NaN as the weights of the last checkpoint, and a newer damaged checkpoint."""
    best = save_dir / "checkpoint_best.pt"
    last = save_dir / "checkpoint_last.pt"
    damaged = save_dir / "checkpoint9.pt"
    state = torch.load(best, weights_only=False)
    for value in state["model"].values():
        value.fill_(torch.nan)
    torch.save(state, last)
    damaged.write_bytes(best.read_bytes()[:-900])
    return save_dir


def test_training_with_nan_names_a_whole_checkpoint_without_nan(save_dir_with_nan, toy_work):
    data = toy_work / "data-bin"

    result = train_here(data, save_dir_with_nan, "--disable-validation", max_epoch="99")

    refused(result, "--clip-norm 1", "--restore-file")
    suggestion = Path(result.stderr.split("--restore-file ")[1].strip())
    assert suggestion.parent == save_dir_with_nan
    assert suggestion.name in {"checkpoint_best.pt", "checkpoint1.pt"}


def test_training_with_nan_without_a_good_checkpoint_names_another_folder(
    save_dir_with_nan, toy_work
):
    for name in ("checkpoint_best.pt", "checkpoint1.pt", "checkpoint9.pt"):
        (save_dir_with_nan / name).unlink()
    data = toy_work / "data-bin"

    result = train_here(data, save_dir_with_nan, "--disable-validation", max_epoch="99")

    refused(result, "--clip-norm 1", "--save-dir")
