"""Model folder files, their checksums, and the options in config.json.

Reading them does not require torch.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fairseq_lxsr.encoder.packed_table import PackedTable
from fairseq_lxsr.errors import InputError, first_line, shown
from fairseq_lxsr.files.open import read_file, sha256
from fairseq_lxsr.files.records import parse_json, sealed
from fairseq_lxsr.files.write import atomic_folder, restore_folder
from fairseq_lxsr.modules.sizes import EncoderSize, TransformerConfig
from fairseq_lxsr.options import WEIGHT_TYPES, describe_type, fits
from fairseq_lxsr.text.tokenizer import (
    DICTIONARY_FILE,
    SENTENCEPIECE_FILE,
    TextOptions,
    Tokenizer,
    read_dictionary,
)

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TEXT_FILES = (DICTIONARY_FILE, SENTENCEPIECE_FILE)
# Model card, with the licences of the training text. It is not needed to load the model.
CARD_FILE = "README.md"
# Scores and sources of the training text, from which the card is written.
SCORES_FILE = "scores.json"
# Files that describe a model and are not needed to load it.
CARD_FILES = (CARD_FILE, SCORES_FILE)
# The licences of the training text alone, in a folder for a hub, whose cards link to this name.
LICENCE_FILE = "LICENSE.md"
MODEL_FILES = (CONFIG_FILE, WEIGHTS_FILE, *TEXT_FILES)
MODEL_FORMAT = 1
# Architecture whose size is known without torch.
DEFAULT_ARCHITECTURE = "transformer"
# Field with the teacher's fingerprint, if the embeddings of both models are comparable.
TEACHER = "teacher"
# config.json fields that describe training, and their types.
TRAINING = {
    "lang_pairs": str,
    "pairs": Mapping[str, int],
    "objective": str,
    "options": Mapping[str, Any],
    "updates": int,
    "finetuned": bool,
    "seed": int,
    TEACHER: str,
    "ema_decay": float,
}
# Model folder inside a sentence-transformers folder (see export/st_module.py).
ST_MODULE = "0_SentenceModule"
# Name of the layout of dense tensors in torch.
DENSE = "torch.strided"
# NumPy names of safetensors data types.
ARRAY_TYPES = {
    "F64": "f8",
    "F32": "f4",
    "F16": "f2",
    "I64": "i8",
    "I32": "i4",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
# Suffix of the tensor name under which the scales of a quantized weight are stored.
SCALE = ".scale"
# Scales to try, relative to the scale at which the largest value of a row just fits. A smaller
# scale clips a few values, but rounds the others more precisely.
SCALE_SHARES = (1, 0.92, 0.84, 0.76, 0.68, 0.6)
# Advice if files in a model folder do not belong together.
ADVICE = "export the model again, or copy the whole folder"


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json, and check that the model folder is complete and unchanged.

    Args:
        folder: the model folder.

    Returns:
        Content of config.json.

    Raises:
        InputError: if a file is missing or invalid, or does not match the checksum in config.json.
    """
    restore_folder(folder)
    advice = "create a model folder with `lxsr export folder`"
    if not folder.is_dir():
        problem = "not a folder" if folder.exists() else "no such model folder"
        raise InputError(f"{folder}: {problem}: {advice}")
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise InputError(f"{path}: no such file; {advice}")
    config, checksums = parse_config(path)
    check_files(folder, (WEIGHTS_FILE, *TEXT_FILES), checksums)
    return config


def check_files(folder: Path, names: Sequence[str], checksums: Mapping[str, str]) -> None:
    """Check that files of a model folder match the SHA-256 checksums in its config.json.

    Raises:
        InputError: if a file is missing or has changed.
    """
    for name in names:
        if not (folder / name).is_file():
            raise InputError(
                f"{folder / name}: no such file, so the model folder is incomplete: {ADVICE}"
            )
        if sha256(folder / name) != checksums.get(name):
            raise InputError(f"{folder / name}: checksum mismatch with {CONFIG_FILE}: {ADVICE}")


def parse_config(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse and check config.json.

    Returns:
        The configuration, and the checksums of the other files, keyed by file name.
    """
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
        version = config["format_version"]
        checksums = dict(config["files"])
        if version != MODEL_FORMAT:
            raise InputError(f"unsupported format {version!r:.60}; expected {MODEL_FORMAT}")
        size_of(config)
        TextOptions(**config["text"])
        check_training(config["training"])
    except InputError as error:
        raise InputError(f"{path}: {error}; {ADVICE}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path}: not the config.json of a model folder ({error!r:.200}); {ADVICE}"
        ) from None
    return config, checksums


def size_of(config: Mapping[str, Any]) -> EncoderSize:
    """Return the encoder sizes from config.json.

    Only architectures other than the default require torch.
    """
    if config["architecture"] == DEFAULT_ARCHITECTURE:
        return TransformerConfig(**config["encoder"])
    from fairseq_lxsr.modules.network import all_networks

    return all_networks()[config["architecture"]].Config(**config["encoder"])


def check_training(training: Any) -> None:
    """Check the types of the training fields in config.json, all of which are optional.

    Raises:
        InputError: if a field has the wrong type.
    """
    if not isinstance(training, dict):
        raise InputError(f"training is {shown(training)}; expected an object")
    for name, kind in TRAINING.items():
        value = training.get(name)
        if value is not None and not fits(value, kind):
            raise InputError(
                f"training: {name} {shown(value)} is invalid; expected {describe_type(kind)}"
            )


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Read a model folder's tokenizer, and check the size of its dictionary.

    Raises:
        InputError: if a file is invalid, or the dictionary size does not match the encoder.
    """
    symbols = read_dictionary(folder / DICTIONARY_FILE)
    entries = size_of(config).vocab_size
    # The dictionary may lack <mask>, which training adds.
    if entries - len(symbols) not in (0, 1):
        raise InputError(
            f"{folder / DICTIONARY_FILE}: {len(symbols):,} entries instead of the encoder's "
            f"{entries:,}: {ADVICE}"
        )
    return Tokenizer(folder / SENTENCEPIECE_FILE, TextOptions(**config["text"]), symbols)


def read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read the weights of a model folder by name; 8-bit and 4-bit weights become float32.

    Raises:
        InputError: see `read_packed_weights`.
    """
    weights = {}
    for name, value in read_packed_weights(folder, config).items():
        weights[name] = value.all_rows() if isinstance(value, PackedTable) else value
    return weights


def read_packed_weights(
    folder: Path, config: Mapping[str, Any]
) -> dict[str, np.ndarray | PackedTable]:
    """Read the weights of a model folder by name; 8-bit and 4-bit weights stay packed.

    Raises:
        InputError: if the file is invalid, or does not belong to the folder's text files.
    """
    path = folder / WEIGHTS_FILE
    checksums = config["files"]
    weights, metadata = read_arrays(path)
    for name in TEXT_FILES:
        if metadata.get(name) != checksums[name]:
            raise InputError(
                f"{folder / name}: not the file that was exported together with {path}: {ADVICE}"
            )
    return _with_packed_tables(weights, path)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a safetensors file.

    Returns:
        The tensors by name, which share the memory of the file, and the metadata of the file.

    Raises:
        InputError: if the file is invalid.
    """
    try:
        with safe_open(path, "np") as stored:
            metadata = stored.metadata() or {}
        return _arrays(read_file(path)), metadata
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{path}: not a safetensors file ({first_line(error)}); {ADVICE}"
        ) from None


def to_int8(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize a matrix to 8 bits, with one scale per row.

    A single scale per dimension would lose more precision, because word piece embeddings differ in
    norm.

    Args:
        rows: float32 [N, D] matrix to quantize.

    Returns:
        Codes int8 [N, D] and scales float32 [N]; codes * scales[:, None] approximates `rows`.
    """
    codes, scales = _quantize(rows, 127)
    return codes.astype(np.int8), scales


def to_int4(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize a matrix to 4 bits, with one scale per row.

    Args:
        rows: float32 [N, D] matrix to quantize; D must be even.

    Returns:
        Two codes per byte, uint8 [N, D/2], and scales float32 [N]. Codes -7 to 7 are stored as 1 to
        15: the first D/2 columns in the low bits, the other columns in the high bits.
    """
    codes, scales = _quantize(rows, 7, SCALE_SHARES)
    low, high = np.hsplit((codes + 8).astype(np.uint8), 2)
    return low | high << 4, scales


def _quantize(
    rows: np.ndarray, largest_code: int, shares: Sequence[float] = (1,)
) -> tuple[np.ndarray, np.ndarray]:
    """Quantize each row, choosing the scale with the smallest squared error.

    Args:
        rows: float32 [N, D] matrix to quantize.
        largest_code: codes range from -largest_code to largest_code.
        shares: candidate scales, relative to the scale at which a row's largest value just fits.

    Returns:
        Codes as float32 integers [N, D], and scales float32 [N].
    """
    full_scales = np.abs(rows).max(axis=1, initial=0) / largest_code
    least_errors = np.full(len(rows), np.inf)
    codes = np.zeros_like(rows)
    scales = np.zeros(len(rows), np.float32)
    scaled_rows = rows / np.where(full_scales > 0, full_scales, 1)[:, None]
    for share in shares:
        # A row of tiny values may have a scale that rounds down to 0.
        tried = (share * full_scales).astype(np.float32)
        rounded = np.rint(rows / np.where(tried > 0, tried, 1)[:, None])
        rounded = rounded.clip(-largest_code, largest_code)
        errors = np.square(rounded * share - scaled_rows).sum(axis=1)
        is_better = ~(errors >= least_errors)
        codes[is_better] = rounded[is_better]
        scales[is_better] = tried[is_better]
        least_errors[is_better] = errors[is_better]
    return codes, scales


def _with_packed_tables(
    stored: Mapping[str, np.ndarray], path: Path
) -> dict[str, np.ndarray | PackedTable]:
    """Combine each matrix of 8-bit or 4-bit codes with its scales, and return all weights."""
    weights: dict[str, np.ndarray | PackedTable] = dict(stored)
    for name, codes in stored.items():
        if codes.dtype not in (np.int8, np.uint8) or name + SCALE not in stored:
            continue
        scales = stored[name + SCALE]
        del weights[name + SCALE]
        if codes.ndim != 2 or scales.shape != codes.shape[:1] or scales.dtype != np.float32:
            raise InputError(
                f"{path}: {name}, {codes.dtype} {list(codes.shape)}, has scales {scales.dtype} "
                f"{list(scales.shape)}; expected float32 scales, one per row: {ADVICE}"
            )
        weights[name] = PackedTable(codes, scales)
    return weights


def _arrays(data: bytes) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file that safetensors has already validated.

    They share the memory of the file, whereas `safetensors.deserialize` would copy all of them.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    tensors = memoryview(data)[start:]
    arrays = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        arrays[name] = _array(name, entry["shape"], entry["dtype"], tensors[first:end])
    return arrays


def _array(name: str, shape: list[int], dtype: str, data: memoryview) -> np.ndarray:
    """Return a safetensors tensor as an array, converting bfloat16 to float32."""
    if dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        bits = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape)
    if dtype not in ARRAY_TYPES:
        raise ValueError(f"{name} has the unsupported type {dtype}")
    return np.frombuffer(data, ARRAY_TYPES[dtype]).reshape(shape)


def write_folder(
    folder: str | Path,
    texts: Sequence[bytes],
    description: Mapping[str, Any],
    save: Callable[..., bytes],
) -> None:
    """Write a model folder atomically.

    Args:
        folder: output folder; an existing model folder is replaced.
        texts: contents of the `TEXT_FILES`.
        description: the config.json fields architecture, encoder, text and training.
        save: serializes the weights, given the metadata for the safetensors file.

    Raises:
        InputError: if `folder` exists and is not a model folder.
    """
    with atomic_folder(folder, CONFIG_FILE, DICTIONARY_FILE, sign='"format_version"') as work:
        text_checksums = write_texts(work, texts)
        metadata = {"format": "pt", **text_checksums}
        weights = _with_ordered_metadata(save(metadata=metadata), metadata)
        (work / WEIGHTS_FILE).write_bytes(weights)
        checksums = {WEIGHTS_FILE: sha256(work / WEIGHTS_FILE), **text_checksums}
        # Write this file last, because a folder without it cannot be loaded.
        write_config(work, description, checksums)


def write_texts(folder: Path, texts: Sequence[bytes]) -> dict[str, str]:
    """Write the `TEXT_FILES` of a model folder, and return their checksums by name."""
    for name, content in zip(TEXT_FILES, texts, strict=True):
        (folder / name).write_bytes(content)
    return {name: sha256(folder / name) for name in TEXT_FILES}


def write_config(folder: Path, description: Mapping[str, Any], checksums: dict[str, str]) -> None:
    """Write the config.json of a model folder. For the description, see `write_folder`."""
    config = {"format_version": MODEL_FORMAT, **description, "files": checksums}
    content = json.dumps(sealed(config), indent=2) + "\n"
    (folder / CONFIG_FILE).write_text(content, encoding="utf-8")


def _with_ordered_metadata(data: bytes, metadata: dict[str, str]) -> bytes:
    """Return the bytes of a safetensors file, with its metadata in the given order.

    safetensors writes metadata in random order, but fingerprints require that equal weights have
    equal bytes.
    """
    # The file consists of the header length, the header and the weights.
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start]) | {"__metadata__": metadata}
    ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return data[:8] + ordered.ljust(start - 8) + data[start:]


def check_weights(
    weights: Mapping[str, Any], expected: Mapping[str, list[int]], path: str | Path
) -> None:
    """Check names, shapes and values of weights.

    Args:
        weights: maps names to arrays or tensors.
        expected: maps names to expected shapes.
        path: file of the weights, for messages.

    Raises:
        InputError: if a weight is missing or unknown, has the wrong type or shape, or contains NaN
            or infinity; reports the first such weight.
    """
    for name in sorted(weights.keys() ^ expected.keys()):
        problem = "missing weight" if name in expected else "unknown weight"
        raise InputError(
            f"{path}: {problem} {name}; expected the weights of the encoder in {CONFIG_FILE}: "
            f"{ADVICE}"
        )
    for name, value in weights.items():
        dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        is_dense = str(getattr(value, "layout", DENSE)) == DENSE
        if dtype not in WEIGHT_TYPES or not is_dense:
            raise InputError(
                f"{path}: {name} has type {dtype}; expected one of {', '.join(WEIGHT_TYPES)}: "
                f"{ADVICE}"
            )
        shape = list(value.shape)
        if shape != expected[name]:
            raise InputError(
                f"{path}: {name} has shape {shape}; expected {expected[name]}: {ADVICE}"
            )
        is_finite = np.isfinite(value) if isinstance(value, np.ndarray) else value.isfinite()
        if not is_finite.all():
            raise InputError(
                f"{path}: {name} contains NaN or infinity; use another checkpoint, or train again"
            )
