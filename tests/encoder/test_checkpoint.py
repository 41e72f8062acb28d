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
from fairseq_lxsr.text.data_folder import STAGE_FILE, TEXT_FOLDER, keep_text
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
    """The checkpoint of `run`, a transformer with random weights."""
    return run / "save" / "checkpoint_best.pt"


def change_checkpoint(path, change):
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


def test_a_relative_data_folder_is_found_from_another_folder(checkpoint, tmp_path):
    """The training was started in `run`, and the export is started in `elsewhere`."""
    export_checkpoint(checkpoint, tmp_path / "model")

    assert SentenceEncoder.from_pretrained(tmp_path / "model").encode(["one dog"]).any()


def test_a_missing_data_folder_is_named(run, checkpoint, tmp_path):
    shutil.rmtree(run / "data")

    with pytest.raises(InputError, match="data: "):
        export_checkpoint(checkpoint, tmp_path / "model")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("checkpoint_best.pt", id="best"),
        pytest.param("checkpoint3.pt", id="newest"),
    ],
)
def test_a_folder_of_checkpoints_is_refused_with_the_checkpoint_to_use(run, tmp_path, name):
    save = run / "save"
    (save / "checkpoint_best.pt").rename(save / name)

    with pytest.raises(InputError, match=f"save .*/{re.escape(name)}"):
        export_checkpoint(save, tmp_path / "model")


def test_a_folder_without_checkpoints_is_refused(run, tmp_path):
    with pytest.raises(InputError, match="elsewhere is a folder"):
        export_checkpoint(tmp_path / "elsewhere", tmp_path / "model")


@pytest.mark.parametrize(
    "arguments",
    [("embed", "--input", "x", "--output", "o.npy"), ("export", "onnx", "--output", "o")],
    ids=["embed", "export onnx"],
)
def test_commands_that_need_a_model_folder_refuse_a_checkpoint_with_advice(checkpoint, arguments):
    done = lxsr_here(*arguments, "--model", checkpoint, check=False)

    refused(done, checkpoint, "lxsr export folder")


@pytest.mark.parametrize(
    ("options", "eps"),
    [
        pytest.param({}, 1e-5, id="default of torch"),
        pytest.param({"layer_norm_eps": 1e-12}, 1e-12, id="option of the training"),
    ],
)
def test_layer_norm_eps_of_the_training_is_that_of_the_model(checkpoint, tmp_path, options, eps):
    change_checkpoint(checkpoint, lambda state: state["cfg"]["model"].update(options))

    export_checkpoint(checkpoint, tmp_path / "model")

    network = SentenceEncoder.from_pretrained(tmp_path / "model", "cpu").model
    assert network.layer_norm.eps == eps
    assert network.layers[0].final_layer_norm.eps == eps


# -- the copies of text files next to checkpoints


def text_files(run) -> set[str]:
    """Return the names of the copies that `keep_text` has made."""
    return {path.name for path in (run / "save" / TEXT_FOLDER).iterdir()}


def test_text_files_are_copied_next_to_the_checkpoints_with_a_list_of_their_checksums(run):
    data_files = {path.name for path in (run / "data").iterdir()}

    keep_text(run / "data", run / "save")

    assert data_files == {"dict.txt", "sentencepiece.model", "text.json"}
    # The checksums are in STAGE_FILE.
    assert text_files(run) == data_files | {STAGE_FILE}


def test_equal_text_files_are_not_copied_again(run):
    keep_text(run / "data", run / "save")
    # A new copy would be another folder.
    inode = (run / "save" / TEXT_FOLDER).stat().st_ino

    keep_text(run / "data", run / "save")

    assert (run / "save" / TEXT_FOLDER).stat().st_ino == inode


def test_text_files_next_to_a_moved_checkpoint_replace_a_deleted_data_folder(run, tmp_path):
    keep_text(run / "data", run / "save")
    shutil.rmtree(run / "data")
    shutil.move(run / "save", tmp_path / "moved")

    export_checkpoint(tmp_path / "moved" / "checkpoint_best.pt", tmp_path / "model")

    for name in ("dict.txt", "sentencepiece.model"):
        copy = tmp_path / "moved" / TEXT_FOLDER / name
        assert (tmp_path / "model" / name).read_bytes() == copy.read_bytes()
    assert json.loads((tmp_path / "model" / "config.json").read_text())["text"]["lowercase"]


def test_text_files_of_a_later_run_in_the_same_folder_are_not_exported(run, checkpoint, tmp_path):
    later_data = small_model.write_pieces(tmp_path / "later", 70)
    keep_text(run / "data", run / "save")
    keep_text(later_data, run / "save")

    export_checkpoint(checkpoint, tmp_path / "model")

    dictionary = (run / "data" / "dict.txt").read_bytes()
    assert (tmp_path / "model" / "dict.txt").read_bytes() == dictionary


def test_no_sentencepiece_model_of_an_earlier_run_is_left_next_to_the_checkpoints(run, tmp_path):
    data_without_model = small_model.write_pieces(tmp_path / "later", 70)
    (data_without_model / "sentencepiece.model").unlink()
    keep_text(run / "data", run / "save")

    keep_text(data_without_model, run / "save")

    assert text_files(run) == {"dict.txt", "text.json", STAGE_FILE}


def test_a_missing_sentencepiece_model_may_be_given_as_an_option(run, checkpoint, tmp_path):
    moved_model = tmp_path / "mine.model"
    (run / "data" / "sentencepiece.model").rename(moved_model)
    keep_text(run / "data", run / "save")

    export_checkpoint(checkpoint, tmp_path / "model", sentencepiece_model=moved_model)

    assert (tmp_path / "model" / "sentencepiece.model").read_bytes() == moved_model.read_bytes()


def test_a_missing_sentencepiece_model_may_be_added_to_the_data_folder(run, checkpoint, tmp_path):
    moved_model = tmp_path / "mine.model"
    (run / "data" / "sentencepiece.model").rename(moved_model)
    keep_text(run / "data", run / "save")
    moved_model.rename(run / "data" / "sentencepiece.model")

    export_checkpoint(checkpoint, tmp_path / "model")

    assert (tmp_path / "model" / "sentencepiece.model").is_file()


def export_command(checkpoint, output, *options) -> tuple:
    return ("export", "folder", "--checkpoint", checkpoint, "--output", output, *options)


def test_a_sentencepiece_model_other_than_that_of_the_data_folder_is_refused(
    run, checkpoint, tmp_path
):
    wrong_model = small_model.write_pieces(tmp_path / "wrong", 99) / "sentencepiece.model"
    command = export_command(checkpoint, tmp_path / "model", "--sentencepiece-model", wrong_model)

    done = lxsr_here(*command, check=False)

    refused(done, wrong_model, run / "data" / "sentencepiece.model")
    assert not (tmp_path / "model").exists()


def test_a_sentencepiece_model_without_pieces_of_the_dictionary_is_refused(
    run, checkpoint, tmp_path
):
    """Without the model of the data folder, only the dictionary shows that pieces are missing."""
    (run / "data" / "sentencepiece.model").unlink()
    wrong_model = small_model.write_pieces(tmp_path / "wrong", 60) / "sentencepiece.model"
    command = export_command(checkpoint, tmp_path / "model", "--sentencepiece-model", wrong_model)

    done = lxsr_here(*command, check=False)

    # The model has 60 of the 100 pieces of the data folder; the dictionary has one symbol more.
    refused(done, wrong_model, " 40 ", " 101 ")
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


def test_an_option_replaces_one_text_option_of_the_data_folder(run, checkpoint, tmp_path):
    (run / "data" / "text.json").write_text('{"lowercase": true, "split_han": true}')

    export_checkpoint(checkpoint, tmp_path / "model", lowercase=False)

    text = json.loads((tmp_path / "model" / "config.json").read_text())["text"]
    assert text == {"lowercase": False, "split_han": True}


# -- weights that cannot be exported

# The dictionary of 102 entries has vectors of 16 numbers.
TABLE_SHAPE = (102, 16)


def set_table(weights, change):
    """Replace the embeddings of the weights of a checkpoint by what `change` makes of them."""
    weights[EMBEDDINGS] = change(weights[EMBEDDINGS])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda weights: weights[EMBEDDINGS].__setitem__((5, 2), float("nan")),
            r"embed_tokens\.weight .*NaN",
            id="NaN",
        ),
        pytest.param(
            lambda weights: set_table(weights, torch.Tensor.int),
            r"embed_tokens\.weight .*int32",
            id="integers",
        ),
        pytest.param(
            lambda weights: set_table(weights, torch.flatten),
            rf"token embeddings.* \[{TABLE_SHAPE[0] * TABLE_SHAPE[1]}\]",
            id="one dimension",
        ),
        pytest.param(
            lambda weights: set_table(weights, lambda table: torch.tensor(1.0)),
            r"token embeddings.* \[\]",
            id="a number",
        ),
        pytest.param(
            lambda weights: weights.pop(EMBEDDINGS), r"token embeddings.* \[\]", id="missing"
        ),
        pytest.param(
            lambda weights: set_table(weights, torch.Tensor.to_sparse),
            r"embed_tokens\.weight .*float32",
            id="sparse",
        ),
        pytest.param(
            lambda weights: weights.update({BIAS: torch.ones(7)}),
            r"fc1\.bias .*\[7\].*\[32\]",
            id="bias of another length",
        ),
        pytest.param(lambda weights: weights.pop(BIAS), r"layers\.0\.fc1\.bias", id="no bias"),
        pytest.param(
            lambda weights: weights.update({"encoder.more": torch.ones(1)}),
            r"\bmore\b",
            id="unknown name",
        ),
        pytest.param(lambda weights: weights.clear(), r"\bmodel\b", id="no weights"),
        pytest.param(lambda weights: weights.update(x=3), r"\bmodel\b", id="not a tensor"),
        pytest.param(
            lambda weights: weights.update({3: torch.ones(1)}), r"\bmodel\b", id="not a name"
        ),
    ],
)
def test_weights_that_cannot_be_exported_are_named(checkpoint, tmp_path, change, message):
    change_checkpoint(checkpoint, lambda state: change(state["model"]))

    with pytest.raises(InputError, match=message) as caught:
        export_checkpoint(checkpoint, tmp_path / "model")

    assert str(checkpoint) in str(caught.value)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("average", [None, {}, 5], ids=str)
def test_a_checkpoint_without_a_moving_average_is_refused_for_it(checkpoint, tmp_path, average):
    change_checkpoint(checkpoint, lambda state: state.update(extra_state={"ema": average}))

    with pytest.raises(InputError, match="moving average"):
        export_checkpoint(checkpoint, tmp_path / "model", ema=True)


def test_a_moving_average_is_checked_like_the_weights(checkpoint, tmp_path):
    weights = torch.load(checkpoint, weights_only=True)["model"]
    infinite = weights | {EMBEDDINGS: torch.full(TABLE_SHAPE, float("inf"))}
    change_checkpoint(checkpoint, lambda state: state.update(extra_state={"ema": infinite}))

    with pytest.raises(InputError, match=r"embed_tokens\.weight"):
        export_checkpoint(checkpoint, tmp_path / "model", ema=True)


# The largest float16 is 65,504; bfloat16 has the range of float32.
BEYOND_FLOAT16 = 1e5


def test_a_weight_beyond_the_range_of_float16_is_named(checkpoint, tmp_path):
    change_checkpoint(checkpoint, lambda state: state["model"][BIAS].__setitem__(3, BEYOND_FLOAT16))
    command = export_command(checkpoint, tmp_path / "model", "--dtype", "float16")

    done = lxsr_here(*command, check=False)

    refused(done, "layers.0.fc1.bias", "1e+05")


def test_a_weight_beyond_the_range_of_float16_is_exported_in_bfloat16(checkpoint, tmp_path):
    change_checkpoint(checkpoint, lambda state: state["model"][BIAS].__setitem__(3, BEYOND_FLOAT16))

    lxsr_here(*export_command(checkpoint, tmp_path / "model", "--dtype", "bfloat16"))

    assert (tmp_path / "model" / "model.safetensors").is_file()


# -- damaged checkpoints


@pytest.mark.slow
def test_any_value_in_any_place_of_a_checkpoint_is_exported_or_refused_in_a_short_message(tmp_path):
    """Any other exception fails the test."""
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
            # A message may contain several paths.
            assert len(str(error)) < 600 + 4 * len(str(tmp_path)), error  # noqa: PT017
    # Most places matter, but some options do not.
    assert refusals > 150
    assert exports > 1


@pytest.mark.slow
def test_a_checkpoint_with_changed_bytes_is_read_or_refused_with_its_path(tmp_path):
    """Three bytes are overwritten at 40 places of the file; any other exception fails the test."""
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
    """About 97 bits are flipped, each in a copy.

    Most bits of a checkpoint are in weights, which torch reads without a check.
    """
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

    # It may add defaults.
    for name, value in stored.items():
        assert options[name] == value


HIGHEST_ACCURACY = {"best_checkpoint_metric": "accuracy", "maximize_best_checkpoint_metric": True}


@pytest.mark.parametrize(
    ("extra_state", "options", "fragments"),
    [
        pytest.param(
            {"val_loss": 2.5, "best": 2.5}, {}, ("lowest validation loss, 2.5",), id="best loss"
        ),
        pytest.param(
            {"val_loss": 2.6, "best": 2.5}, {}, ("loss 2.6", "lowest 2.5"), id="not the best loss"
        ),
        pytest.param(
            {"val_loss": 0.98, "best": 0.98},
            HIGHEST_ACCURACY,
            ("highest validation accuracy, 0.98",),
            id="best accuracy",
        ),
        pytest.param({"val_loss": None}, {}, ("without validation",), id="not validated"),
        pytest.param({"val_loss": "x", "best": []}, "y", ("without validation",), id="invalid"),
    ],
)
def test_the_description_names_the_update_and_its_validation(
    checkpoint, extra_state, options, fragments
):
    def change(state):
        state["optimizer_history"] = [{"num_updates": 285}]
        state["extra_state"] = extra_state
        state["cfg"]["checkpoint"] = options

    change_checkpoint(checkpoint, change)

    description = describe_update(checkpoint)

    for fragment in ("update 285 ", *fragments):
        assert fragment in description
