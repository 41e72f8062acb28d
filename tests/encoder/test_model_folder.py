"""Model folders are read, or refused with the file and what is wrong in it; nothing is trained."""

import json
import re
import shutil
from collections.abc import Callable
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
    """A folder of random weights for each network; tests change copies of it."""
    return small_model.write_folder(tmp_path_factory.mktemp("small") / "model", request.param)


@pytest.fixture
def folder(plain, tmp_path):
    """A copy of `plain` to change."""
    return Path(shutil.copytree(plain, tmp_path / "model"))


def test_a_folder_that_a_kill_left_under_a_hidden_name_is_read(tmp_path):
    """A folder is replaced by renaming the old one, then the new one."""
    small_model.write_folder(tmp_path / "model").rename(tmp_path / ".model.machine.7.x.old")

    assert SentenceEncoder.from_pretrained(tmp_path / "model").output_dim == 16


def test_the_same_model_is_written_as_the_same_bytes(tmp_path):
    """The fingerprint is their hash; safetensors alone writes its metadata in random order."""
    folders = [small_model.write_folder(tmp_path / str(number)) for number in range(6)]

    contents = {(folder / "model.safetensors").read_bytes() for folder in folders}
    fingerprints = {SentenceEncoder.from_pretrained(folder).fingerprint for folder in folders}
    assert len(contents) == 1
    assert len(fingerprints) == 1


def test_the_file_of_weights_has_the_hashes_of_the_text_files(tmp_path):
    folder = small_model.write_folder(tmp_path / "model")

    with safe_open(folder / "model.safetensors", "pt") as stored:
        assert set(stored.metadata()) == {"format", "dict.txt", "sentencepiece.model"}


def set_hashes(folder: Path) -> None:
    """Renew the hashes, so that a change is not refused because of them."""
    path = folder / "config.json"
    config = parse_json(path.read_text())
    config["files"] = {name: sha256(folder / name) for name in MODEL_FILES if name != "config.json"}
    path.write_text(json.dumps(config))


def change_weights(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], Any], stores_hashes: bool = False
) -> None:
    """Change the weights of a folder, and renew their hash in its config.

    `stores_hashes`: store the hashes of the present text files with the weights, too.
    """
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as stored:
        weights = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
        metadata = stored.metadata()
    if stores_hashes:
        metadata |= {name: sha256(folder / name) for name in ("dict.txt", "sentencepiece.model")}
    change(weights)
    save_file(weights, path, metadata)
    set_hashes(folder)


def change_config(folder: Path, *place: str, value: Any) -> None:
    """Set the value at a place of config.json, given by the names that lead to it."""
    path = folder / "config.json"
    path.write_text(json.dumps(changed(parse_json(path.read_text()), place, value)))


EMBEDDINGS = "embed_tokens.weight"


def quantise(
    weights: dict[str, torch.Tensor],
    scales: Callable[[torch.Tensor], torch.Tensor] | None,
    dtype: torch.dtype = torch.int8,
) -> None:
    """Replace the embeddings by codes of `dtype`, which are all 1, and scales made from them."""
    codes = torch.ones(weights[EMBEDDINGS].shape, dtype=dtype)
    weights[EMBEDDINGS] = codes
    if scales:
        weights[f"{EMBEDDINGS}.scale"] = scales(codes)


# The message about scales has their shape and the expected type, that on shapes both shapes.
ONE_A_ROW = r"scales .*\[.*\].* float32"
# By the name of the case: how the weights are changed, and what the message says.
WEIGHTS = {
    "NaN": (lambda weights: weights[EMBEDDINGS].__setitem__((5, 2), float("nan")), "NaN"),
    "infinity": (lambda weights: weights[EMBEDDINGS].__setitem__((5, 2), float("-inf")), "NaN"),
    "int32": (
        lambda weights: weights.update({EMBEDDINGS: weights[EMBEDDINGS].int()}),
        "int32.* float32",
    ),
    "bool": (
        lambda weights: weights.update({EMBEDDINGS: weights[EMBEDDINGS] > 0}),
        "bool.* float32",
    ),
    "one dimension": (
        lambda weights: weights.update({EMBEDDINGS: weights[EMBEDDINGS].flatten()}),
        r"shape .*\[.*\[",
    ),
    "a row less": (
        lambda weights: weights.update({EMBEDDINGS: weights[EMBEDDINGS][1:].clone()}),
        r"shape .*\[.*\[",
    ),
    "missing": (lambda weights: weights.pop(EMBEDDINGS), EMBEDDINGS),
    "more": (lambda weights: weights.update(more=torch.ones(1)), r"\bmore\b"),
    "none": (lambda weights: weights.clear(), ": 0 weights"),
    "scales of columns": (
        lambda weights: quantise(weights, lambda codes: torch.ones(codes.shape[1])),
        ONE_A_ROW,
    ),
    "scales of cells": (
        lambda weights: quantise(weights, lambda codes: torch.ones(codes.shape)),
        ONE_A_ROW,
    ),
    "float64 scales": (
        lambda weights: quantise(
            weights, lambda codes: torch.ones(len(codes), dtype=torch.float64)
        ),
        ONE_A_ROW,
    ),
    "int8 scales": (
        lambda weights: quantise(weights, lambda codes: torch.ones(len(codes), dtype=torch.int8)),
        ONE_A_ROW,
    ),
    "NaN scales": (
        lambda weights: quantise(weights, lambda codes: torch.full((len(codes),), float("nan"))),
        "NaN",
    ),
    "no scales": (lambda weights: quantise(weights, None), "int8.* float32"),
    "no scales of 4 bits": (
        lambda weights: quantise(weights, None, dtype=torch.uint8),
        "uint8.* float32",
    ),
    "4 bits of twice the width": (
        lambda weights: quantise(weights, lambda codes: torch.ones(len(codes)), dtype=torch.uint8),
        r"shape .*\[.*\[",
    ),
    "columns of 4 bits": (
        lambda weights: quantise(
            weights, lambda codes: torch.ones(codes.shape[1]), dtype=torch.uint8
        ),
        ONE_A_ROW,
    ),
    "8-bit floats": (
        lambda weights: weights.update({EMBEDDINGS: weights[EMBEDDINGS].to(torch.float8_e5m2)}),
        "F8_E5M2",
    ),
    "scales alone": (
        lambda weights: weights.update({f"{EMBEDDINGS}.scale": torch.ones(3)}),
        f"{EMBEDDINGS}.scale",
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_do_not_fit_the_config_are_named(folder, name):
    change, message = WEIGHTS[name]
    change_weights(folder, change)

    with pytest.raises(InputError) as caught:
        SentenceEncoder.from_pretrained(folder)

    assert re.search(message, str(caught.value))
    assert str(folder / "model.safetensors") in str(caught.value)
    # The embeddings are not what is wrong in these two cases.
    if name not in ("more", "none"):
        assert EMBEDDINGS in str(caught.value)


def test_weights_in_half_precision_are_read(folder):
    change_weights(
        folder,
        lambda weights: weights.update({name: value.half() for name, value in weights.items()}),
    )

    assert SentenceEncoder.from_pretrained(folder).encode(["one dog"]).any()


@pytest.mark.parametrize(("dtype", "least_cosine"), [("int8", 0.9999), ("int4", 0.98)])
def test_weights_in_few_bits_give_close_vectors(plain, tmp_path, dtype, least_cosine):
    small = small_model.save_as(plain, tmp_path / "small", dtype)

    rounded = SentenceEncoder.from_pretrained(small).encode("one dog", normalize=True)

    exact = SentenceEncoder.from_pretrained(plain).encode("one dog", normalize=True)
    assert float(rounded @ exact) > least_cosine
    # They are rounded.
    assert (rounded != exact).any()


@pytest.fixture
def int4_weights(plain, tmp_path):
    """The stored weights of `plain` in 4 bits."""
    small = small_model.save_as(plain, tmp_path / "small", "int4")
    with safe_open(small / "model.safetensors", "np") as stored:
        return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118


def test_only_embeddings_of_pieces_have_4_bits(int4_weights):
    names = [name for name, value in int4_weights.items() if value.dtype == np.uint8]

    assert names == [EMBEDDINGS]


def test_two_numbers_of_4_bits_are_in_a_byte_and_each_row_has_a_scale(int4_weights, plain):
    size = SentenceEncoder.from_pretrained(plain).size

    assert int4_weights[EMBEDDINGS].shape == (size.vocab_size, size.embed_dim // 2)
    assert int4_weights[f"{EMBEDDINGS}.scale"].dtype == np.float32


def test_an_odd_number_of_dimensions_stays_in_8_bits(tmp_path):
    plain = small_model.write_folder(
        tmp_path / "plain", num_layers=0, gated=True, embed_dim=5, num_heads=1
    )

    int8 = small_model.save_as(plain, tmp_path / "int8", "int8") / "model.safetensors"
    int4 = small_model.save_as(plain, tmp_path / "int4", "int4") / "model.safetensors"

    assert int8.read_bytes() == int4.read_bytes()


def rows_to_quantise() -> np.ndarray:
    """Return random rows, and rows of zeros, of equal numbers, and of very small and large ones."""
    rows = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
    rows[0] = 0
    rows[1] = 1
    rows[2] = -3
    rows[3] = 2 * np.eye(16)[0]
    rows[4] = -1e-30 * np.eye(16)[1]
    rows[5] = np.arange(16)
    rows[6] = 1e-45
    rows[7] *= np.float32(1e-38)
    rows[8] *= np.float32(1e38)
    return rows


def unpacked_codes(packed: np.ndarray) -> np.ndarray:
    """Return the codes from -8 to 7 in bytes [..., D / 2].

    The first half of a row is in the lower four bits, the second half in the upper four.
    """
    low_halves = packed.astype(int) % 16
    high_halves = packed.astype(int) // 16
    return np.concatenate([low_halves, high_halves], axis=-1) - 8


def nearest_codes(numbers: list[float], scale: float) -> list[int]:
    """Return the codes from -7 to 7 whose multiples of the scale are nearest to the numbers."""
    if scale == 0:
        return [0] * len(numbers)
    return [round(max(-7, min(7, number / scale))) for number in numbers]


def squared_error(numbers: list[float], scale: float) -> float:
    pairs = zip(numbers, nearest_codes(numbers, scale), strict=True)
    return sum((number - scale * code) ** 2 for number, code in pairs)


def test_codes_of_4_bits_are_the_nearest_of_their_scale():
    rows = rows_to_quantise()

    packed, scales = to_int4(rows)

    for numbers, codes, scale in zip(
        rows.tolist(), unpacked_codes(packed).tolist(), scales.tolist(), strict=True
    ):
        assert codes == nearest_codes(numbers, scale)


def test_4_bits_have_the_best_scale_that_is_tried():
    """Tried are shares of the scale at which the largest number has the code 7."""
    rows = rows_to_quantise()

    _, scales = to_int4(rows)

    for numbers, scale in zip(rows.tolist(), scales.tolist(), strict=True):
        largest_scale = max(map(abs, numbers)) / 7
        # The squares of smaller numbers are too small for float32 to compare.
        if largest_scale < 1e-36:
            continue
        tried_scales = [share * largest_scale for share in SCALE_SHARES]
        least_error = min(squared_error(numbers, tried) for tried in tried_scales)
        rounding = 1e-6 * sum(number**2 for number in numbers)
        assert min(abs(scale / tried - 1) for tried in tried_scales) < 1e-6
        assert squared_error(numbers, scale) <= least_error + rounding


def test_numpy_and_torch_unpack_4_bits_alike(tmp_path):
    plain = small_model.write_folder(tmp_path / "plain", num_layers=0, gated=True)
    small = small_model.save_as(plain, tmp_path / "small", "int4")
    with safe_open(small / "model.safetensors", "np") as stored:
        codes = unpacked_codes(stored.get_tensor(EMBEDDINGS))
        scales = stored.get_tensor(f"{EMBEDDINGS}.scale")
    expected = (codes * scales[:, None]).astype(np.float32)
    config = read_config(small)

    bag, _ = read_bag(small, config)
    network, _ = read_model(small, config)

    np.testing.assert_array_equal(bag.weights[EMBEDDINGS], expected)
    np.testing.assert_array_equal(network.embed_tokens.weight.detach(), expected)


@pytest.mark.parametrize(
    "command",
    [("embed", "--input", "text"), ("index", "--input", "text"), ("export", "onnx")],
    ids=["embed", "index", "export onnx"],
)
def test_commands_refuse_weights_with_nan(folder, tmp_path, command):
    change_weights(folder, WEIGHTS["NaN"][0])
    (tmp_path / "text").write_text("one dog\n")

    options = ("--model", folder, "--output", tmp_path / "output")
    done = lxsr_here(*command, *options, check=False, folder=tmp_path)

    refused(done, EMBEDDINGS, "NaN")
    assert not (tmp_path / "output").exists()


# Sizes of any network, invalid or too large in themselves or together with others, and what the
# message says.
SIZES = (
    ("embed_dim", 10**12, r"embed_dim 1000000000000.*\b65,536"),
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
    # An unknown name.
    ("width", 3, "width"),
)
TRANSFORMER_SIZES = (
    ("gated", "no", "gated 'no'"),
    ("order_coefficients", 10**9, "order_coefficients 1000000000"),
    ("order_coefficients", 1000, "order"),
    ("pooling", "max", "pooling 'max'.* mean, mean_max"),
    ("pooling", ["mean"], r"pooling \['mean'\]"),
    ("num_heads", 3, "num_heads 3"),
    ("max_positions", 10**9, "max_positions 1000000000"),
    ("max_positions", 41, r"embed_positions\.weight .*\[40, 16\].*\[41, 16\]"),
)


def assert_size_is_refused(folder, name, value, message, untrained=False):
    """Check that a folder with a value of its config is refused with one of its files named."""
    change_config(folder, "encoder", name, value=value)
    with pytest.raises(
        InputError, match=r"config\.json: |dict\.txt: |model\.safetensors: "
    ) as caught:
        SentenceEncoder.from_pretrained(folder, untrained=untrained)

    assert re.search(message, str(caught.value))


@pytest.mark.parametrize(("name", "value", "message"), SIZES)
def test_hostile_sizes_are_refused_before_memory_is_taken(folder, name, value, message):
    assert_size_is_refused(folder, name, value, message)


@pytest.mark.parametrize(("name", "value", "message"), TRANSFORMER_SIZES)
def test_hostile_options_of_the_transformer_are_refused(tmp_path, name, value, message):
    folder = small_model.write_folder(tmp_path / "model")
    assert_size_is_refused(folder, name, value, message, untrained=True)


# JSON of any type, with numbers out of range and a letter that UTF-8 does not have.
VALUES = [None, True, "no", -1, 0, 10**30, 0.5, float("nan"), [1], {"x": 1}, "\ud800"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "part"), [("transformer", None), ("tlaser", "encoder"), ("laser", "encoder")]
)
def test_any_value_in_any_place_of_config_is_read_or_refused(tmp_path, architecture, part):
    """`part`: the only part of config.json to change; None for all. Other exceptions fail the test."""
    folder = small_model.write_folder(tmp_path / "model", architecture)
    config = parse_json((folder / "config.json").read_text())
    messages = []
    for place in places(config):
        if part not in (None, place[0]):
            continue
        # An ellipsis removes the place.
        for value in [..., *VALUES]:
            (folder / "config.json").write_text(json.dumps(changed(config, place, value)))
            try:
                encoder = SentenceEncoder.from_pretrained(folder, "cpu")
                assert encoder.encode(["one dog"]).shape == (1, encoder.output_dim)
            except InputError as error:
                messages.append(str(error))
    # Most changes are refused, in short messages with the folder.
    assert len(messages) > 40
    for message in messages:
        assert str(folder) in message
        assert len(message) <= 500 + len(str(folder)), message


INVALID_CONFIGS = {
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


@pytest.mark.parametrize("name", INVALID_CONFIGS)
def test_a_config_that_is_no_object_with_options_is_refused(folder, name):
    path = folder / "config.json"
    path.write_text(INVALID_CONFIGS[name])

    with pytest.raises(InputError, match=re.escape(str(path))):
        SentenceEncoder.from_pretrained(folder)


# -- text files that do not belong to the weights


def dictionary_lines(folder):
    return (folder / "dict.txt").read_text().splitlines(keepends=True)


def reverse_dictionary(folder):
    (folder / "dict.txt").write_text("".join(dictionary_lines(folder)[::-1]))


def cut_dictionary(folder):
    (folder / "dict.txt").write_text("".join(dictionary_lines(folder)[:-7]))


def replace_pieces(folder):
    """Copy a SentencePiece model of the same text with fewer pieces, all in the dictionary."""
    fewer_pieces = small_model.write_pieces(folder.parent / "fewer", 60)
    shutil.copy(fewer_pieces / "sentencepiece.model", folder)


@pytest.mark.parametrize(
    ("change", "file"),
    [
        (reverse_dictionary, "dict.txt"),
        (cut_dictionary, "dict.txt"),
        (replace_pieces, "sentencepiece.model"),
    ],
)
def test_text_files_other_than_those_of_the_weights_are_refused(folder, change, file):
    """The weights have their hashes; those in the config are renewed."""
    change(folder)
    set_hashes(folder)

    with pytest.raises(InputError, match=rf"{re.escape(file)}: .*model\.safetensors"):
        SentenceEncoder.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(cut_dictionary, r"dict\.txt: \d+ entries.* \d+", id="too few entries"),
        pytest.param(
            replace_pieces, r"sentencepiece\.model: .*\b\d+ of the \d+ ", id="too few pieces"
        ),
    ],
)
def test_text_files_that_do_not_fit_are_refused_even_with_their_hashes(folder, change, message):
    change(folder)
    change_weights(folder, lambda weights: None, stores_hashes=True)

    with pytest.raises(InputError, match=message):
        SentenceEncoder.from_pretrained(folder)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        # The largest numbers are 65,504 and 3.39e38.
        ("float16", 1e5),
        ("bfloat16", 3.4e38),
        ("float32", float("nan")),
    ],
)
def test_weights_beyond_the_range_of_a_precision_are_not_written(tmp_path, dtype, number):
    data = small_model.write_pieces(tmp_path / "data")
    network = small_model.network(data)
    with torch.no_grad():
        network.embed_tokens.weight[7, 3] = -number
    files = data / "dict.txt", data / "sentencepiece.model"

    with pytest.raises(InputError, match=rf"--dtype {dtype}: embed_tokens\.weight"):
        save_folder(tmp_path / "model", network, *files, TextOptions(True), {}, dtype)

    assert list(tmp_path.iterdir()) == [data]


def test_a_sentence_whose_embedding_overflows_is_named(tmp_path):
    folder = small_model.write_folder(tmp_path / "model", num_layers=0, gated=True)
    # The sum of two such rows is beyond the range of float32.
    change_weights(folder, lambda weights: weights[EMBEDDINGS].fill_(3e38))

    with pytest.raises(InputError, match=r"sentence 2, 'one dog': .*float32.* NaN"):
        SentenceEncoder.from_pretrained(folder, "cpu").encode(["", "one dog"])


@pytest.mark.slow
def test_reading_a_folder_does_not_load_the_compiler_of_torch(tmp_path):
    """torch loads it, for seconds, to draw numbers for meta tensors."""
    folders = [str(COMPATIBILITY / "best.model")]
    for architecture in ("transformer", "laser", "tlaser"):
        folders.append(str(small_model.write_folder(tmp_path / architecture, architecture)))
    code = f"import sys\nfrom fairseq_lxsr import SentenceEncoder\nfor folder in {folders!r}:\n"
    code += "    SentenceEncoder.from_pretrained(folder, 'cpu')\n"
    code += "print('torch._dynamo' in sys.modules)"

    is_loaded = python(code).strip()

    assert is_loaded == "False"


def test_a_dictionary_with_letters_unknown_to_the_sentencepiece_model_is_read(tmp_path):
    """fairseq-preprocess writes every piece of the text into the dictionary."""
    folder = small_model.write_folder(tmp_path / "model")
    vocab_size = read_config(folder)["encoder"]["vocab_size"]
    with open(folder / "dict.txt", "a", encoding="utf-8") as stream:
        stream.write("字 1\nmadeupword0000 0\n")
    # The two new entries need rows, too.
    change_weights(
        folder,
        lambda weights: weights.update(
            {EMBEDDINGS: torch.cat([weights[EMBEDDINGS], torch.ones(2, 16)])}
        ),
        stores_hashes=True,
    )
    change_config(folder, "encoder", "vocab_size", value=vocab_size + 2)

    encoder = SentenceEncoder.from_pretrained(folder)

    assert encoder.encode("one dog").any()
    # The pieces are not read by another library.
    assert isinstance(encoder.tokenizer._processor, sentencepiece.SentencePieceProcessor)
