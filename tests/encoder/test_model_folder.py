"""What a model folder must be to be read, without training one."""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import small_model
import torch
from conftest import COMPATIBILITY, lxsr_here, python, refused
from other_values import changed, places
from safetensors import safe_open
from safetensors.torch import save_file

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import MODEL_FILES, SCALE_SHARES, read_config, to_int4
from fairseq_lxsr.encoder.numpy_network import read_bag
from fairseq_lxsr.encoder.torch_network import read_model, save_folder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.modules import all_networks
from fairseq_lxsr.text.tokenizer import TextOptions


@pytest.fixture(scope="module", params=sorted(all_networks()))
def plain(request, tmp_path_factory):
    """A folder of random weights; tests spoil copies of it."""
    return small_model.write_folder(tmp_path_factory.mktemp("small") / "model", request.param)


@pytest.fixture
def folder(plain, tmp_path):
    return Path(shutil.copytree(plain, tmp_path / "model"))


def test_a_folder_that_a_kill_left_under_its_hidden_name_is_found(tmp_path):
    small_model.write_folder(tmp_path / "model").rename(tmp_path / ".model.machine.7.x.old")
    assert SentenceEncoder.from_pretrained(tmp_path / "model").output_dim == 16


def test_the_same_model_has_the_same_bytes_each_time(tmp_path):
    """The fingerprint is made of them; safetensors writes its metadata in random order."""
    folders = [small_model.write_folder(tmp_path / str(number)) for number in range(6)]
    assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 1
    assert len({SentenceEncoder.from_pretrained(folder).fingerprint for folder in folders}) == 1
    with safe_open(folders[0] / "model.safetensors", "pt") as stored:
        assert set(stored.metadata()) == {"format", "dict.txt", "sentencepiece.model"}


def set_hashes(folder: Path) -> None:
    """So that what is wrong is not found by them."""
    path = folder / "config.json"
    config = parse_json(path.read_text())
    config["files"] = {name: sha256(folder / name) for name in MODEL_FILES if name != "config.json"}
    path.write_text(json.dumps(config))


def change_weights(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], Any], renews: bool = False
) -> None:
    """`renews`: the weights name the dictionary and SentencePiece model that are there now."""
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as stored:
        weights = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
        metadata = stored.metadata()
    if renews:
        metadata |= {name: sha256(folder / name) for name in ("dict.txt", "sentencepiece.model")}
    change(weights)
    save_file(weights, path, metadata)
    set_hashes(folder)


def change_config(folder: Path, *place: str, value: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(changed(parse_json(path.read_text()), place, value)))


EMBEDDINGS = "embed_tokens.weight"


def quantise(
    weights: dict[str, torch.Tensor],
    scales: Callable[[torch.Tensor], torch.Tensor] | None,
    **how: Any,
) -> None:
    codes = weights[EMBEDDINGS] = torch.ones(
        weights[EMBEDDINGS].shape, **{"dtype": torch.int8} | how
    )
    if scales:
        weights[f"{EMBEDDINGS}.scale"] = scales(codes)


# The message on scales names their type and shape, and the type that is expected
ONE_A_ROW = r"scales .*\[.*\].* float32"
WEIGHTS = {
    "NaN": (lambda w: w[EMBEDDINGS].__setitem__((5, 2), float("nan")), "NaN"),
    "infinity": (lambda w: w[EMBEDDINGS].__setitem__((5, 2), float("-inf")), "NaN"),
    "int32": (
        lambda w: w.update({EMBEDDINGS: w[EMBEDDINGS].int()}),
        "int32.* float32",
    ),
    "bool": (lambda w: w.update({EMBEDDINGS: w[EMBEDDINGS] > 0}), "bool.* float32"),
    "one dimension": (
        lambda w: w.update({EMBEDDINGS: w[EMBEDDINGS].flatten()}),
        r"shape .*\[.*\[",
    ),
    "a row less": (
        lambda w: w.update({EMBEDDINGS: w[EMBEDDINGS][1:].clone()}),
        r"shape .*\[.*\[",
    ),
    "missing": (lambda w: w.pop(EMBEDDINGS), EMBEDDINGS),
    "more": (lambda w: w.update(more=torch.ones(1)), r"\bmore\b"),
    "none": (lambda w: w.clear(), ": 0 weights"),
    "scales of columns": (
        lambda w: quantise(w, lambda codes: torch.ones(codes.shape[1])),
        ONE_A_ROW,
    ),
    "scales of cells": (lambda w: quantise(w, lambda codes: torch.ones(codes.shape)), ONE_A_ROW),
    "float64 scales": (
        lambda w: quantise(w, lambda codes: torch.ones(len(codes), dtype=torch.float64)),
        ONE_A_ROW,
    ),
    "int8 scales": (
        lambda w: quantise(w, lambda codes: torch.ones(len(codes), dtype=torch.int8)),
        ONE_A_ROW,
    ),
    "NaN scales": (
        lambda w: quantise(w, lambda codes: torch.full((len(codes),), float("nan"))),
        "NaN",
    ),
    "no scales": (lambda w: quantise(w, None), "int8.* float32"),
    "no scales of 4 bits": (
        lambda w: quantise(w, None, dtype=torch.uint8),
        "uint8.* float32",
    ),
    "4 bits of twice the width": (
        lambda w: quantise(w, lambda codes: torch.ones(len(codes)), dtype=torch.uint8),
        r"shape .*\[.*\[",
    ),
    "columns of 4 bits": (
        lambda w: quantise(w, lambda codes: torch.ones(codes.shape[1]), dtype=torch.uint8),
        ONE_A_ROW,
    ),
    "8-bit floats": (
        lambda w: w.update({EMBEDDINGS: w[EMBEDDINGS].to(torch.float8_e5m2)}),
        "F8_E5M2",
    ),
    "scales alone": (
        lambda w: w.update({f"{EMBEDDINGS}.scale": torch.ones(3)}),
        f"{EMBEDDINGS}.scale",
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_no_weights_of_this_encoder_are_named(folder, name):
    change, message = WEIGHTS[name]
    change_weights(folder, change)
    with pytest.raises(InputError) as caught:
        SentenceEncoder.from_pretrained(folder)
    assert re.search(message, str(caught.value))
    assert str(folder / "model.safetensors") in str(caught.value)
    assert EMBEDDINGS in str(caught.value) or name in ("more", "none")


def test_weights_in_half_precision_are_read(folder):
    change_weights(
        folder, lambda weights: weights.update({name: w.half() for name, w in weights.items()})
    )
    assert SentenceEncoder.from_pretrained(folder).encode(["one dog"]).any()


@pytest.mark.parametrize(("dtype", "least"), [("int8", 0.9999), ("int4", 0.98)])
def test_weights_in_few_bits_are_read(plain, tmp_path, dtype, least):
    encoders = map(
        SentenceEncoder.from_pretrained,
        (small_model.save_as(plain, tmp_path / "small", dtype), plain),
    )
    found, expected = (encoder.encode(["one dog"], normalize=True) for encoder in encoders)
    assert float((found * expected).sum()) > least
    assert (found != expected).any()


def test_only_embeddings_of_pieces_have_4_bits(plain, tmp_path):
    with safe_open(
        small_model.save_as(plain, tmp_path / "small", "int4") / "model.safetensors", "np"
    ) as stored:
        types = {name: str(stored.get_tensor(name).dtype) for name in stored.keys()}  # noqa: SIM118
        entries, half = stored.get_tensor(EMBEDDINGS).shape
    assert [name for name, kind in types.items() if kind == "uint8"] == [EMBEDDINGS]
    assert types[f"{EMBEDDINGS}.scale"] == "float32"
    size = SentenceEncoder.from_pretrained(plain).size
    assert (entries, half * 2) == (size.vocab_size, size.embed_dim)


def test_an_odd_number_of_dimensions_stays_in_8_bits(tmp_path):
    plain = small_model.write_folder(
        tmp_path / "plain", num_layers=0, gated=True, embed_dim=5, num_heads=1
    )
    small = [
        small_model.save_as(plain, tmp_path / dtype, dtype) / "model.safetensors"
        for dtype in ("int8", "int4")
    ]
    assert small[0].read_bytes() == small[1].read_bytes()


ROWS = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
for number, row in enumerate(
    (0, 1, -3, 2 * np.eye(16)[0], -1e-30 * np.eye(16)[1], np.arange(16), 1e-45)
):
    ROWS[number] = row
ROWS[7:9] *= np.array([[1e-38], [1e38]], dtype=np.float32)


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_4_bits_are_those_that_are_computed_number_by_number(row):
    """At the scale of the least squared error of those that are tried."""
    numbers, (found, scales) = ROWS[row].tolist(), to_int4(ROWS)
    scale, largest = float(scales[row]), max(map(abs, numbers)) / 7

    def error(scale):
        return sum(
            (number - scale * round(max(-7, min(7, number / scale)))) ** 2 for number in numbers
        )

    if largest > 1e-36:
        tried = [share * largest for share in SCALE_SHARES]
        assert min(abs(scale / each - 1) for each in tried) < 1e-6
        assert error(scale) <= min(map(error, tried)) + 1e-6 * sum(number**2 for number in numbers)
    expected = [round(max(-7, min(7, number / scale))) + 8 if scale else 8 for number in numbers]
    assert [*(found[row] & 15), *(found[row] >> 4)] == expected  # low halves first


def test_4_bits_are_read_as_they_are_written(tmp_path):
    """By both readers, and by one that takes byte by byte."""
    plain = small_model.write_folder(tmp_path / "plain", num_layers=0, gated=True)
    small = small_model.save_as(plain, tmp_path / "small", "int4")
    with safe_open(small / "model.safetensors", "np") as stored:
        packed, scales = stored.get_tensor(EMBEDDINGS), stored.get_tensor(f"{EMBEDDINGS}.scale")
    expected = np.array(
        [
            [*(byte % 16 - 8 for byte in row), *(byte // 16 - 8 for byte in row)]
            for row in packed.tolist()
        ]
    )
    expected = expected * scales[:, None]
    config = read_config(small)
    np.testing.assert_array_equal(
        read_bag(small, config)[0].weights[EMBEDDINGS], expected.astype(np.float32)
    )
    np.testing.assert_array_equal(
        read_model(small, config)[0].embed_tokens.weight.detach(), expected.astype(np.float32)
    )


def test_every_verb_refuses_them(folder, tmp_path):
    change_weights(folder, WEIGHTS["NaN"][0])
    (tmp_path / "text").write_text("one dog\n")
    given = ("--model", folder, "--input", tmp_path / "text", "--output", tmp_path / "output")
    for verb in ("embed", "index"):
        refused(lxsr_here(verb, *given, check=False), EMBEDDINGS, "NaN")
    done = lxsr_here(
        "export", "onnx", "--model", folder, "--output", tmp_path / "output", check=False
    )
    refused(done, EMBEDDINGS, "NaN")
    assert not (tmp_path / "output").exists()


SIZES = (
    (
        "embed_dim",
        10**12,
        r"embed_dim 1000000000000.*\b65,536",
    ),
    ("embed_dim", 512.0, r"embed_dim 512\.0"),
    ("embed_dim", 65_536, "65536"),
    ("vocab_size", 0, "vocab_size 0"),
    ("vocab_size", 2**27, "134,217,728"),
    ("padding_idx", 99_999, "padding_idx is 99999.*vocab_size"),
    ("padding_idx", -1, "padding_idx -1"),
    ("num_layers", 10**9, "num_layers 1000000000"),
    ("num_layers", 1000, "1,000"),
    ("dropout", float("nan"), "dropout nan"),
    ("dropout", 1, "dropout 1 "),
    ("width", 3, "width"),
)
OF_THE_TRANSFORMER = (
    ("gated", "no", "gated 'no'"),
    ("order_coefficients", 10**9, "order_coefficients 1000000000"),
    ("order_coefficients", 1000, "order"),
    ("pooling", "max", "pooling 'max'.* mean, mean_max"),
    ("pooling", ["mean"], r"pooling \['mean'\]"),
    ("num_heads", 3, "num_heads 3"),
    ("max_positions", 10**9, "max_positions 1000000000"),
    (
        "max_positions",
        41,
        r"embed_positions\.weight .*\[40, 16\].*\[41, 16\]",
    ),
)


def refuses_size(folder, name, value, message, untrained=False):
    change_config(folder, "encoder", name, value=value)
    with pytest.raises(
        InputError, match=r"config\.json: |dict\.txt: |model\.safetensors: "
    ) as caught:
        SentenceEncoder.from_pretrained(folder, untrained=untrained)
    assert re.search(message, str(caught.value))


@pytest.mark.parametrize(("name", "value", "message"), SIZES)
def test_hostile_sizes_are_refused_before_memory_is_taken(folder, name, value, message):
    refuses_size(folder, name, value, message)


@pytest.mark.parametrize(("name", "value", "message"), OF_THE_TRANSFORMER)
def test_hostile_options_of_the_transformer(tmp_path, name, value, message):
    folder = small_model.write_folder(tmp_path / "model")
    refuses_size(folder, name, value, message, untrained=True)


VALUES = [None, True, "no", -1, 0, 10**30, 0.5, float("nan"), [1], {"x": 1}, "\ud800"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "part"), [("transformer", None), ("tlaser", "encoder"), ("laser", "encoder")]
)
def test_any_value_in_any_place_of_config_is_right_or_refused(tmp_path, architecture, part):
    folder = small_model.write_folder(tmp_path / "model", architecture)
    config = parse_json((folder / "config.json").read_text())
    said = []
    for place in places(config):
        if part not in (None, place[0]):
            continue
        for value in [..., *VALUES]:
            (folder / "config.json").write_text(json.dumps(changed(config, place, value)))
            try:
                encoder = SentenceEncoder.from_pretrained(folder, "cpu")
                assert encoder.encode(["one dog"]).shape == (1, encoder.output_dim)
            except InputError as error:
                said.append(str(error))
    assert len(said) > 40
    assert [
        message
        for message in said
        if str(folder) not in message or len(message) > 500 + len(str(folder))
    ] == []


NO_CONFIGS = {
    "empty": "",
    "number": "5",
    "list": "[]",
    "nothing in it": "{}",
    "null": "null",
    "text": '"x"',
    "deep lists": "[" * 200_000 + "]" * 200_000,
    "deep objects": '{"a":' * 200_000 + "1" + "}" * 200_000,
    "long number": "1" * 5000,
    "NaN": "NaN",
    "byte order mark": "\ufeff{}",
}


@pytest.mark.parametrize("text", NO_CONFIGS.values(), ids=NO_CONFIGS)
def test_config_that_is_something_else(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=re.escape(str(folder / "config.json"))):
        SentenceEncoder.from_pretrained(folder)


def take_entries(folder, part):
    lines = (folder / "dict.txt").read_text().splitlines(keepends=True)
    (folder / "dict.txt").write_text("".join(lines[part]))


reverse_dictionary = partial(take_entries, part=slice(None, None, -1))
cut_dictionary = partial(take_entries, part=slice(-7))


def other_pieces(folder):
    """Of the same text, but fewer: the dictionary has them all."""
    other = small_model.write_pieces(folder.parent / "other", 60)
    shutil.copy(other / "sentencepiece.model", folder)


OTHER_TEXT = r".*model\.safetensors"
# A change, whether the weights name the changed files, and the message
TEXT_FILES = {
    "reversed": (reverse_dictionary, False, rf"dict\.txt: {OTHER_TEXT}"),
    "cut": (cut_dictionary, False, rf"dict\.txt: {OTHER_TEXT}"),
    "pieces": (other_pieces, False, rf"sentencepiece\.model: {OTHER_TEXT}"),
    "named, cut": (cut_dictionary, True, r"dict\.txt: \d+ entries.* \d+"),
    "named, pieces": (
        other_pieces,
        True,
        r"sentencepiece\.model: .*\b\d+ of the \d+ ",
    ),
}


@pytest.mark.parametrize("name", TEXT_FILES)
def test_text_files_of_another_model(folder, name):
    change, is_named, message = TEXT_FILES[name]
    change(folder)
    change_weights(folder, lambda weights: None, renews=is_named)
    with pytest.raises(InputError, match=message):
        SentenceEncoder.from_pretrained(folder)


@pytest.mark.parametrize(
    ("dtype", "number"), [("float16", 1e5), ("bfloat16", 3.4e38), ("float32", float("nan"))]
)
def test_numbers_that_a_precision_lacks_are_not_written(tmp_path, dtype, number):
    data = small_model.write_pieces(tmp_path / "data")
    network = small_model.network(data)
    with torch.no_grad():
        network.embed_tokens.weight[7, 3] = -number
    files = data / "dict.txt", data / "sentencepiece.model"
    with pytest.raises(InputError, match=rf"--dtype {dtype}: embed_tokens\.weight"):
        save_folder(tmp_path / "model", network, *files, TextOptions(True), {}, dtype)
    assert list(tmp_path.iterdir()) == [data]


def test_an_embedding_that_is_no_number_is_named(tmp_path):
    """Weights that are numbers, and too large together."""
    folder = small_model.write_folder(tmp_path / "model", num_layers=0, gated=True)
    change_weights(folder, lambda weights: weights[EMBEDDINGS].fill_(3e38))
    with pytest.raises(InputError, match=r"sentence 2, 'one dog': .*float32.* NaN"):
        SentenceEncoder.from_pretrained(folder, "cpu").encode(["", "one dog"])


@pytest.mark.slow
def test_reading_a_folder_does_not_load_the_compiler_of_torch(tmp_path):
    """It takes seconds, and to draw numbers for tensors without memory torch loads it."""
    folders = [str(COMPATIBILITY / "best.model")]
    for architecture in ("transformer", "laser", "tlaser"):
        folders.append(str(small_model.write_folder(tmp_path / architecture, architecture)))
    code = f"import sys\nfrom fairseq_lxsr import SentenceEncoder\nfor folder in {folders!r}:\n"
    code += "    SentenceEncoder.from_pretrained(folder, 'cpu')\n"
    code += "assert 'torch._dynamo' not in sys.modules"
    python(code)


def test_a_sentencepiece_model_of_another_program(tmp_path):
    """Pieces of a dictionary may be letters that the model does not know: fairseq-preprocess takes
    all it reads.
    """
    folder = small_model.write_folder(tmp_path / "model")
    with open(folder / "dict.txt", "a", encoding="utf-8") as stream:
        stream.write("字 1\nmadeupword0000 0\n")
    change_weights(
        folder,
        lambda w: w.update({EMBEDDINGS: torch.cat([w[EMBEDDINGS], torch.ones(2, 16)])}),
        renews=True,
    )
    change_config(
        folder,
        "encoder",
        "vocab_size",
        value=len((folder / "dict.txt").read_text().splitlines()) + 5,
    )
    tokenizer = SentenceEncoder.from_pretrained(folder).tokenizer
    assert isinstance(tokenizer._processor, sentencepiece.SentencePieceProcessor)
