"""A checkpoint in any folder becomes a model folder, or is refused in one line; nothing is trained."""

import itertools
import json
import re
import shutil
import zipfile

import pytest
import small_model
import torch
from conftest import COMPATIBILITY, lxsr_here, refused
from other_values import changed_checkpoints

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import DICTIONARY_HASH, read_checkpoint
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export.folder import describe_update, export_checkpoint
from fairseq_lxsr.text.data_folder import TEXT_FOLDER, keep_text
from fairseq_lxsr.text.tokenizer import hash_symbols, read_dictionary

EMBEDDINGS = "encoder.embed_tokens.weight"
BIAS = "encoder.layers.0.fc1.bias"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a training, with its data and a checkpoint whose path of the data is relative."""
    data = small_model.write_pieces(tmp_path / "run" / "data")
    state = small_model.checkpoint_state(data, named="data")
    state["task_state"][DICTIONARY_HASH] = hash_symbols(read_dictionary(data / "dict.txt"))
    (tmp_path / "run" / "save").mkdir()
    torch.save(state, tmp_path / "run" / "save" / "checkpoint_best.pt")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "run"


@pytest.fixture
def checkpoint(run):
    return run / "save" / "checkpoint_best.pt"


def change_checkpoint(path, change):
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


def test_a_relative_data_folder_is_read_and_named_if_missing(run, checkpoint, tmp_path):
    export_checkpoint(checkpoint, tmp_path / "model")
    assert SentenceEncoder.from_pretrained(tmp_path / "model").encode(["one dog"]).any()
    shutil.rmtree(run / "data")
    with pytest.raises(InputError, match="data: "):
        export_checkpoint(checkpoint, tmp_path / "model")


def test_a_folder_of_checkpoints_is_refused_with_the_best_or_newest_checkpoint(run, tmp_path):
    save = run / "save"
    with pytest.raises(InputError, match=r"save .*/checkpoint_best\.pt"):
        export_checkpoint(save, tmp_path / "model")
    (save / "checkpoint_best.pt").rename(save / "checkpoint3.pt")
    with pytest.raises(InputError, match=r"save .*/checkpoint3\.pt"):
        export_checkpoint(save, tmp_path / "model")
    with pytest.raises(InputError, match="elsewhere is a folder"):
        export_checkpoint(tmp_path / "elsewhere", tmp_path / "model")


def test_commands_that_need_a_model_refuse_a_checkpoint(checkpoint):
    for arguments in (
        ("embed", "--input", "x", "--output", "o.npy"),
        ("export", "onnx", "--output", "o"),
    ):
        done = lxsr_here(*arguments, "--model", checkpoint, check=False)
        refused(done, checkpoint, "lxsr export folder")


def test_layer_norm_eps_of_the_training_is_that_of_the_model(checkpoint, tmp_path):
    export_checkpoint(checkpoint, tmp_path / "default")
    model = SentenceEncoder.from_pretrained(tmp_path / "default", "cpu").model
    assert model.layer_norm.eps == model.layers[0].final_layer_norm.eps == 1e-5

    change_checkpoint(checkpoint, lambda state: state["cfg"]["model"].update(layer_norm_eps=1e-12))
    export_checkpoint(checkpoint, tmp_path / "changed")
    model = SentenceEncoder.from_pretrained(tmp_path / "changed", "cpu").model
    assert model.layer_norm.eps == model.layers[0].final_layer_norm.eps == 1e-12


def test_text_files_next_to_the_checkpoint_replace_a_deleted_data_folder(run, tmp_path):
    keep_text(run / "data", run / "save")
    text_folder = run / "save" / TEXT_FOLDER
    names = {path.name for path in text_folder.iterdir()}
    assert names == {"dict.txt", "sentencepiece.model", "stage.json", "text.json"}
    inode = text_folder.stat().st_ino
    keep_text(run / "data", run / "save")
    # Equal files are not written again.
    assert text_folder.stat().st_ino == inode
    shutil.rmtree(run / "data")
    shutil.move(run / "save", tmp_path / "moved")
    export_checkpoint(tmp_path / "moved" / "checkpoint_best.pt", tmp_path / "model")
    for name in ("dict.txt", "sentencepiece.model"):
        assert (tmp_path / "model" / name).read_bytes() == (
            tmp_path / "moved" / TEXT_FOLDER / name
        ).read_bytes()
    assert json.loads((tmp_path / "model" / "config.json").read_text())["text"]["lowercase"]


def test_text_files_of_a_later_run_in_the_same_folder_are_not_exported(run, tmp_path):
    later_data = small_model.write_pieces(tmp_path / "later", 70)
    keep_text(run / "data", run / "save")
    keep_text(later_data, run / "save")
    export_checkpoint(run / "save" / "checkpoint_best.pt", tmp_path / "model")
    dictionary = (run / "data" / "dict.txt").read_bytes()
    assert (tmp_path / "model" / "dict.txt").read_bytes() == dictionary
    (later_data / "sentencepiece.model").unlink()
    keep_text(later_data, run / "save")
    # No SentencePiece model of an earlier run is left.
    names = {path.name for path in (run / "save" / TEXT_FOLDER).iterdir()}
    assert names == {"dict.txt", "stage.json", "text.json"}


def test_a_sentencepiece_model_is_an_option_or_added_to_the_data_folder(run, checkpoint, tmp_path):
    (run / "data" / "sentencepiece.model").rename(tmp_path / "mine.model")
    keep_text(run / "data", run / "save")
    export_checkpoint(checkpoint, tmp_path / "model", sentencepiece_model=tmp_path / "mine.model")
    (tmp_path / "mine.model").rename(run / "data" / "sentencepiece.model")
    export_checkpoint(checkpoint, tmp_path / "model")


def test_another_sentencepiece_model_is_refused(run, checkpoint, tmp_path):
    wrong_model = small_model.write_pieces(tmp_path / "wrong", 99) / "sentencepiece.model"
    export = ("export", "folder", "--checkpoint", checkpoint, "--output", tmp_path / "model")
    command = (*export, "--sentencepiece-model", wrong_model)
    data_model = run / "data" / "sentencepiece.model"
    refused(lxsr_here(*command, check=False), wrong_model, data_model)
    # Without the model of the data folder, only the dictionary shows that pieces are missing.
    data_model.unlink()
    small_model.write_pieces(tmp_path / "wrong", 60)
    refused(lxsr_here(*command, check=False), wrong_model, " 40 ", " 101 ")
    assert not (tmp_path / "model").exists()


def test_an_exported_model_names_no_file_of_its_training(checkpoint, tmp_path):
    options = {
        "mined": "/home/mined",
        "teacher_embeddings": "/home/teacher",
        "near_embeddings": "/home/near",
        "save_dir": "/home/save",
        "restore_file": "/home/restore",
        "finetune_from_model": "/home/finetune",
        "continue_once": "/home/continue",
    }
    change_checkpoint(checkpoint, lambda state: state["cfg"]["task"].update(options))
    export_checkpoint(checkpoint, tmp_path / "model")
    assert "/home/" not in (tmp_path / "model" / "config.json").read_text()


def test_text_options_without_a_new_value_are_those_of_the_data_folder(run, checkpoint, tmp_path):
    (run / "data" / "text.json").write_text('{"lowercase": true, "split_han": true}')
    export_checkpoint(checkpoint, tmp_path / "model", lowercase=False)
    text = json.loads((tmp_path / "model" / "config.json").read_text())["text"]
    assert text == {"lowercase": False, "split_han": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda weights: weights[EMBEDDINGS].__setitem__((5, 2), float("nan")),
            r"embed_tokens\.weight .*NaN",
        ),
        (
            lambda weights: weights.update({EMBEDDINGS: weights[EMBEDDINGS].int()}),
            r"embed_tokens\.weight .*int32",
        ),
        (
            lambda weights: weights.update({EMBEDDINGS: weights[EMBEDDINGS].flatten()}),
            r"token embeddings.* \[1632\]",
        ),
        (
            lambda weights: weights.update({EMBEDDINGS: torch.tensor(1.0)}),
            r"token embeddings.* \[\]",
        ),
        (lambda weights: weights.pop(EMBEDDINGS), r"token embeddings.* \[\]"),
        (
            lambda weights: weights.update({EMBEDDINGS: weights[EMBEDDINGS].to_sparse()}),
            r"embed_tokens\.weight .*float32",
        ),
        (
            lambda weights: weights.update({BIAS: torch.ones(7)}),
            r"fc1\.bias .*\[7\].*\[32\]",
        ),
        (lambda weights: weights.pop(BIAS), r"layers\.0\.fc1\.bias"),
        (lambda weights: weights.update({"encoder.more": torch.ones(1)}), r"\bmore\b"),
        (lambda weights: weights.clear(), r"\bmodel\b"),
        (lambda weights: weights.update(x=3), r"\bmodel\b"),
        (lambda weights: weights.update({3: torch.ones(1)}), r"\bmodel\b"),
    ],
)
def test_weights_that_cannot_be_exported_are_named(checkpoint, tmp_path, change, message):
    change_checkpoint(checkpoint, lambda state: change(state["model"]))
    with pytest.raises(InputError, match=message) as caught:
        export_checkpoint(checkpoint, tmp_path / "model")
    assert str(checkpoint) in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_a_moving_average_is_checked_like_the_weights(checkpoint, tmp_path):
    weights = torch.load(checkpoint, weights_only=True)["model"]
    infinite = weights | {EMBEDDINGS: torch.full((102, 16), float("inf"))}
    for average, message in (
        (None, "moving average"),
        ({}, "moving average"),
        (5, "moving average"),
        (infinite, r"embed_tokens\.weight"),
    ):
        change_checkpoint(
            checkpoint, lambda state, average=average: state.update(extra_state={"ema": average})
        )
        with pytest.raises(InputError, match=message):
            export_checkpoint(checkpoint, tmp_path / "model", ema=True)


def test_weights_beyond_half_precision_are_named(checkpoint, tmp_path):
    change_checkpoint(checkpoint, lambda state: state["model"][BIAS].__setitem__(3, 1e5))
    export = ("export", "folder", "--checkpoint", checkpoint, "--output", tmp_path / "model")
    done = lxsr_here(*export, "--dtype", "float16", check=False)
    refused(done, "layers.0.fc1.bias", "1e+05")
    lxsr_here(*export, "--dtype", "bfloat16")


@pytest.mark.slow
def test_any_value_in_any_place_of_a_checkpoint_is_exported_or_refused(tmp_path):
    data = small_model.write_pieces(tmp_path / "data")
    path = tmp_path / "checkpoint.pt"
    refusals = 0
    exports = 0
    for state in changed_checkpoints(small_model.checkpoint_state(data)):
        torch.save(state, path)
        try:
            folder = export_checkpoint(path, tmp_path / "model")
            assert SentenceEncoder.from_pretrained(folder, "cpu").output_dim == 16
            exports += 1
        except InputError as error:
            refusals += 1
            assert len(str(error)) < 600 + 4 * len(str(tmp_path)), error  # noqa: PT017
    assert refusals > 150
    assert exports > 1


@pytest.mark.slow
def test_a_checkpoint_with_changed_bytes_is_read_or_refused_with_its_path(tmp_path):
    content = (COMPATIBILITY / "best.pt").read_bytes()
    path = tmp_path / "checkpoint.pt"
    step = len(content) // 40
    for start, value in itertools.product(range(0, len(content), step), (0, 255)):
        path.write_bytes(content[:start] + bytes([value]) * 3 + content[start + 3 :])
        try:
            read_checkpoint(path)
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017


@pytest.mark.slow
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    """Most bits of a checkpoint are in weights, of which torch checks nothing."""
    content = (COMPATIBILITY / "best.pt").read_bytes()
    expected = read_checkpoint(COMPATIBILITY / "best.pt")["model"]
    path = tmp_path / "checkpoint.pt"
    refusals = 0
    for position in range(7, len(content), len(content) // 97):
        damaged = bytearray(content)
        damaged[position] ^= 0x40
        path.write_bytes(damaged)
        try:
            weights = read_checkpoint(path)["model"]
        except InputError as error:
            assert re.match(f"{path}: .*", str(error))  # noqa: PT017
            refusals += 1
        else:
            # The bit belongs to a time stamp, or lies between two records.
            assert all(value.equal(weights[key]) for key, value in expected.items())
    assert refusals > 60


def test_a_compressed_checkpoint_is_refused(tmp_path):
    """Its checksums need the uncompressed bytes, which may exceed the memory."""
    path = tmp_path / "checkpoint.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        with zipfile.ZipFile(COMPATIBILITY / "best.pt") as archive:
            for part in archive.namelist():
                packed.writestr(part, archive.read(part))
        # Far larger than in the file.
        packed.writestr("checkpoint/data/999", bytes(10**7))
    with pytest.raises(InputError, match=r"checkpoint\.pt: "):
        read_checkpoint(path)


def test_read_checkpoint_changes_no_stored_option(checkpoint):
    stored = torch.load(checkpoint, weights_only=True)["cfg"]
    options = read_checkpoint(checkpoint)["cfg"]
    for name, value in stored.items():
        assert options[name] == value


@pytest.mark.parametrize(
    ("extra", "options", "fragments"),
    [
        ({"val_loss": 2.5, "best": 2.5}, {}, ("update 285 ", "lowest validation loss, 2.5")),
        ({"val_loss": 2.6, "best": 2.5}, {}, ("update 285 ", "loss 2.6", "lowest 2.5")),
        (
            {"val_loss": 0.98, "best": 0.98},
            {"best_checkpoint_metric": "accuracy", "maximize_best_checkpoint_metric": True},
            ("update 285 ", "highest validation accuracy, 0.98"),
        ),
        ({"val_loss": None}, {}, ("update 285 ", "without validation")),
        ({"val_loss": "x", "best": []}, "y", ("update 285 ", "without validation")),
    ],
)
def test_the_description_names_the_update_and_its_validation(checkpoint, extra, options, fragments):
    def change(state):
        state["optimizer_history"] = [{"num_updates": 285}]
        state["extra_state"] = extra
        state["cfg"]["checkpoint"] = options

    change_checkpoint(checkpoint, change)
    description = describe_update(checkpoint)
    assert all(fragment in description for fragment in fragments), description
