"""Checkpoints become model folders from any place, or are refused in one line; nothing is trained
here.
"""

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

EMBEDDINGS, BIAS = "encoder.embed_tokens.weight", "encoder.layers.0.fc1.bias"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A folder with data and a checkpoint that names it as `data`, as after training in this
    folder.
    """
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


def test_the_data_folder_is_found_from_the_checkpoint_or_named_where_it_is_gone(
    run, checkpoint, tmp_path
):
    export_checkpoint(checkpoint, tmp_path / "model")
    assert SentenceEncoder.from_pretrained(tmp_path / "model").encode(["one dog"]).any()
    shutil.rmtree(run / "data")
    with pytest.raises(InputError, match="data: "):
        export_checkpoint(checkpoint, tmp_path / "model")


def test_a_checkpoint_in_the_folder_is_named(run, tmp_path):
    save = run / "save"
    for name in ("checkpoint_best.pt", "checkpoint3.pt"):  # the best, or else the newest
        with pytest.raises(
            InputError,
            match=f"save .*/{name}",
        ):
            export_checkpoint(save, tmp_path / "model")
        if name == "checkpoint_best.pt":
            (save / name).rename(save / "checkpoint3.pt")
    with pytest.raises(InputError, match="elsewhere is a folder"):
        export_checkpoint(tmp_path / "elsewhere", tmp_path / "model")


def test_a_checkpoint_is_no_model(checkpoint):
    for arguments in (
        ("embed", "--input", "x", "--output", "o.npy"),
        ("export", "onnx", "--output", "o"),
    ):
        done = lxsr_here(*arguments, "--model", checkpoint, check=False)
        refused(done, checkpoint, "lxsr export folder")


def test_epsilon_of_the_options_is_that_of_the_model(checkpoint, tmp_path):
    for epsilon in (None, 1e-12):
        if epsilon is not None:
            change_checkpoint(
                checkpoint, lambda state: state["cfg"]["model"].update(layer_norm_eps=1e-12)
            )
        export_checkpoint(checkpoint, tmp_path / f"model{epsilon}")
        model = SentenceEncoder.from_pretrained(tmp_path / f"model{epsilon}", "cpu").model
        assert model.layer_norm.eps == model.layers[0].final_layer_norm.eps == (epsilon or 1e-5)


def test_what_is_kept_beside_the_checkpoint_is_enough(run, tmp_path):
    keep_text(run / "data", run / "save")
    kept = run / "save" / TEXT_FOLDER
    assert {path.name for path in kept.iterdir()} == {
        "dict.txt",
        "sentencepiece.model",
        "stage.json",
        "text.json",
    }
    before = kept.stat().st_ino
    keep_text(run / "data", run / "save")
    assert kept.stat().st_ino == before  # nothing was written again
    shutil.rmtree(run / "data")
    shutil.move(run / "save", tmp_path / "moved")
    export_checkpoint(tmp_path / "moved" / "checkpoint_best.pt", tmp_path / "model")
    for name in ("dict.txt", "sentencepiece.model"):
        assert (tmp_path / "model" / name).read_bytes() == (
            tmp_path / "moved" / TEXT_FOLDER / name
        ).read_bytes()
    assert json.loads((tmp_path / "model" / "config.json").read_text())["text"]["lowercase"]


def test_what_another_run_kept_is_not_taken(run, tmp_path):
    """A run with other data saved in the same folder afterwards."""
    other = small_model.write_pieces(tmp_path / "other", 70)
    keep_text(run / "data", run / "save")
    keep_text(other, run / "save")
    export_checkpoint(run / "save" / "checkpoint_best.pt", tmp_path / "model")
    assert (tmp_path / "model" / "dict.txt").read_bytes() == (
        run / "data" / "dict.txt"
    ).read_bytes()
    (other / "sentencepiece.model").unlink()
    keep_text(other, run / "save")  # of the earlier one nothing is left
    assert {path.name for path in (run / "save" / TEXT_FOLDER).iterdir()} == {
        "dict.txt",
        "stage.json",
        "text.json",
    }


def test_a_sentencepiece_model_put_into_the_data_folder_later_is_found(run, checkpoint, tmp_path):
    (run / "data" / "sentencepiece.model").rename(tmp_path / "mine.model")
    keep_text(run / "data", run / "save")
    export_checkpoint(checkpoint, tmp_path / "model", sentencepiece_model=tmp_path / "mine.model")
    (tmp_path / "mine.model").rename(run / "data" / "sentencepiece.model")
    export_checkpoint(checkpoint, tmp_path / "model")


def test_another_sentencepiece_model_is_refused(run, checkpoint, tmp_path):
    other = small_model.write_pieces(tmp_path / "other", 99) / "sentencepiece.model"
    export = ("export", "folder", "--checkpoint", checkpoint, "--output", tmp_path / "model")
    given = (*export, "--sentencepiece-model", other)
    refused(lxsr_here(*given, check=False), other, run / "data" / "sentencepiece.model")
    (run / "data" / "sentencepiece.model").unlink()  # then only its pieces can tell
    other = small_model.write_pieces(tmp_path / "other", 60) / "sentencepiece.model"
    refused(lxsr_here(*given, check=False), other, " 40 ", " 101 ")
    assert not (tmp_path / "model").exists()


def test_an_exported_model_names_no_file_of_its_training(checkpoint, tmp_path):
    files = (
        "mined",
        "teacher_embeddings",
        "near_embeddings",
        "save_dir",
        "restore_file",
        "finetune_from_model",
    )
    named = {name: f"/home/{name}" for name in (*files, "continue_once")}
    change_checkpoint(checkpoint, lambda state: state["cfg"]["task"].update(named))
    export_checkpoint(checkpoint, tmp_path / "model")
    assert "/home/" not in (tmp_path / "model" / "config.json").read_text()


def test_text_options_that_the_command_does_not_name_stay(run, checkpoint, tmp_path):
    (run / "data" / "text.json").write_text('{"lowercase": true, "split_han": true}')
    export_checkpoint(checkpoint, tmp_path / "model", lowercase=False)
    text = json.loads((tmp_path / "model" / "config.json").read_text())["text"]
    assert text == {"lowercase": False, "split_han": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w[EMBEDDINGS].__setitem__((5, 2), float("nan")),
            r"embed_tokens\.weight .*NaN",
        ),
        (
            lambda w: w.update({EMBEDDINGS: w[EMBEDDINGS].int()}),
            r"embed_tokens\.weight .*int32",
        ),
        (
            lambda w: w.update({EMBEDDINGS: w[EMBEDDINGS].flatten()}),
            r"token embeddings.* \[1632\]",
        ),
        (
            lambda w: w.update({EMBEDDINGS: torch.tensor(1.0)}),
            r"token embeddings.* \[\]",
        ),
        (lambda w: w.pop(EMBEDDINGS), r"token embeddings.* \[\]"),
        (
            lambda w: w.update({EMBEDDINGS: w[EMBEDDINGS].to_sparse()}),
            r"embed_tokens\.weight .*float32",
        ),
        (
            lambda w: w.update({BIAS: torch.ones(7)}),
            r"fc1\.bias .*\[7\].*\[32\]",
        ),
        (lambda w: w.pop(BIAS), r"layers\.0\.fc1\.bias"),
        (lambda w: w.update({"encoder.more": torch.ones(1)}), r"\bmore\b"),
        (lambda w: w.clear(), r"\bmodel\b"),
        (lambda w: w.update(x=3), r"\bmodel\b"),
        (lambda w: w.update({3: torch.ones(1)}), r"\bmodel\b"),
    ],
)
def test_weights_that_cannot_be_exported_are_named(checkpoint, tmp_path, change, message):
    change_checkpoint(checkpoint, lambda state: change(state["model"]))
    with pytest.raises(InputError, match=message) as caught:
        export_checkpoint(checkpoint, tmp_path / "model")
    assert str(checkpoint) in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_an_average_is_checked_as_well(checkpoint, tmp_path):
    weights = torch.load(checkpoint, weights_only=True)["model"]
    none, infinite = (
        "moving average",
        r"embed_tokens\.weight",
    )
    averages = [(None, none), ({}, none), (5, none)]
    averages += [(weights | {EMBEDDINGS: torch.full((102, 16), float("inf"))}, infinite)]
    for average, message in averages:
        change_checkpoint(
            checkpoint, lambda state, average=average: state.update(extra_state={"ema": average})
        )
        with pytest.raises(InputError, match=message):
            export_checkpoint(checkpoint, tmp_path / "model", ema=True)


def test_weights_beyond_half_precision_are_named(checkpoint, tmp_path):
    change_checkpoint(checkpoint, lambda state: state["model"][BIAS].__setitem__(3, 1e5))
    export = (
        "export",
        "folder",
        "--checkpoint",
        checkpoint,
        "--output",
        tmp_path / "model",
        "--dtype",
    )
    refused(
        lxsr_here(*export, "float16", check=False),
        "layers.0.fc1.bias",
        "1e+05",
    )
    lxsr_here(*export, "bfloat16")


@pytest.mark.slow
def test_any_value_in_any_place_of_a_checkpoint_is_exported_or_refused(tmp_path):
    data = small_model.write_pieces(tmp_path / "data")
    path, refusals = tmp_path / "checkpoint.pt", 0
    state = small_model.checkpoint_state(data)
    for number, other in enumerate(changed_checkpoints(state)):
        torch.save(other, path)
        try:
            folder = export_checkpoint(path, tmp_path / "model")
            assert SentenceEncoder.from_pretrained(folder, "cpu").output_dim == 16
        except InputError as error:
            message, refusals = str(error), refusals + 1
        else:
            message = ""
        assert len(message) < 600 + 4 * len(str(tmp_path)), (number, message)
    assert 150 < refusals < number


@pytest.mark.slow
def test_bytes_that_are_changed_are_read_or_refused(tmp_path):
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
    """Most bits of a checkpoint are numbers, for which any value is as good as another to torch."""
    content, path = (COMPATIBILITY / "best.pt").read_bytes(), tmp_path / "checkpoint.pt"
    good, refusals = read_checkpoint(COMPATIBILITY / "best.pt"), 0
    for place in range(7, len(content), len(content) // 97):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :])
        try:
            found = read_checkpoint(path)
        except InputError as error:
            assert re.match(f"{path}: .*", str(error))  # noqa: PT017
            refusals += 1
        else:  # a time, or a byte between two records
            assert all(value.equal(found["model"][key]) for key, value in good["model"].items())
    assert refusals > 60


def test_a_checkpoint_that_is_packed_is_refused(tmp_path):
    """It would have to be unpacked to compare its checksums, and may be larger than any memory
    then.
    """
    path = tmp_path / "checkpoint.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        with zipfile.ZipFile(COMPATIBILITY / "best.pt") as archive:
            for part in archive.namelist():
                packed.writestr(part, archive.read(part))
        packed.writestr("checkpoint/data/999", bytes(10**7))
    with pytest.raises(InputError, match=r"checkpoint\.pt: "):
        read_checkpoint(path)


def test_a_state_is_not_changed_by_reading(checkpoint):
    before = torch.load(checkpoint, weights_only=True)["cfg"]
    read = read_checkpoint(checkpoint)
    assert {name: part for name, part in read["cfg"].items() if name in before} == before


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
def test_the_exported_update_and_why(checkpoint, extra, options, fragments):
    def change(state):
        state["optimizer_history"] = [{"num_updates": 285}]
        state["extra_state"] = extra
        state["cfg"]["checkpoint"] = options

    change_checkpoint(checkpoint, change)
    description = describe_update(checkpoint)
    assert all(fragment in description for fragment in fragments), description
