"""What a model folder is: its files, their hashes, the options in config.json; torch is not needed
to read them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize, safe_open

from fairseq_lxsr.errors import InputError, first_line, shown
from fairseq_lxsr.files.open import sha256
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

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
TEXT_FILES = (DICTIONARY_FILE, SENTENCEPIECE_FILE)
CARD_FILE = "README.md"  # has the licences of the training text; not read with the model
MODEL_FILES = (CONFIG_FILE, WEIGHTS_FILE, *TEXT_FILES)
MODEL_FORMAT = 1
DEFAULT_ARCHITECTURE = "transformer"  # for folders whose config.json does not name one
TEACHER = "teacher"  # its fingerprint, where embeddings of both models can be compared
TRAINING = {  # fields of config.json that describe the training, for the model card
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
# our folder in one of sentence-transformers, see export/st_module.py
ST_MODULE = "0_SentenceModule"
DENSE = "torch.strided"  # layout of a tensor
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
SCALE = ".scale"  # ends the name of the scales of a weight in 8 or 4 bits
# of the largest scale; a smaller one cuts few numbers, rounds others better
SCALE_SHARES = (1, 0.92, 0.84, 0.76, 0.68, 0.6)
ADVICE = "export the model again, or copy the whole folder"  # where files do not fit together


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a model folder, and check that every file exists and has the hash that it
    names.
    """
    restore_folder(folder)
    if not folder.is_dir():
        what = "is a file; expected a model folder" if folder.exists() else "no such model folder"
        raise InputError(f"{folder}: {what}; make one with `lxsr export folder`")
    path = folder / CONFIG_FILE
    if not path.is_file():
        what = "no such file, so the folder is not a model folder"
        raise InputError(f"{path}: {what}; make one with `lxsr export folder`")
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
        version, files = config["format_version"], dict(config["files"])
        if version != MODEL_FORMAT:
            raise InputError(f"format {version!r:.60}; this version reads format {MODEL_FORMAT}")
        config.setdefault("architecture", DEFAULT_ARCHITECTURE)
        size_of(config)
        TextOptions(**config["text"])
        check_training(config["training"])
    except InputError as error:
        raise InputError(f"{path}: {error}; {ADVICE}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path}: not the description of a model folder ({error!r:.200}); {ADVICE}"
        ) from None
    for name in (WEIGHTS_FILE, *TEXT_FILES):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder / name}: no such file, the model folder is not whole; {ADVICE}"
            )
        if sha256(folder / name) != files.get(name):
            raise InputError(f"{folder / name}: differs from the file that was exported; {ADVICE}")
    return config


def size_of(config: Mapping[str, Any]) -> EncoderSize:
    """Return the sizes of the encoder that config.json describes; only other networks than ours
    need torch.
    """
    if config["architecture"] == DEFAULT_ARCHITECTURE:
        return TransformerConfig(**config["encoder"])
    from fairseq_lxsr.modules.network import all_networks

    return all_networks()[config["architecture"]].Config(**config["encoder"])


def check_training(training: Any) -> None:
    """Check the types of what config.json says of the training; any field may be missing."""
    if not isinstance(training, dict):
        raise InputError(f"training {shown(training)}; expected an object")
    for name, kind in TRAINING.items():
        value = training.get(name)
        if value is not None and not fits(value, kind):
            raise InputError(f"training: {name} {shown(value)}; expected {describe_type(kind)}")


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Read the tokenizer of a model folder, and check that its dictionary has the size of the
    table.
    """
    symbols = read_dictionary(folder / DICTIONARY_FILE)
    entries = size_of(config).vocab_size
    if entries - len(symbols) not in (0, 1):  # training may have added <mask>
        raise InputError(
            f"{folder / DICTIONARY_FILE}: {len(symbols):,} entries; the encoder has {entries:,}; {ADVICE}"
        )
    return Tokenizer(folder / SENTENCEPIECE_FILE, TextOptions(**config["text"]), symbols)


def read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read the weights by name, and check that they belong to these text files."""
    path, files = folder / WEIGHTS_FILE, config["files"]
    try:
        with safe_open(path, "np") as stored:
            made_with = stored.metadata() or {}
        weights = {name: _array(name, **about) for name, about in deserialize(path.read_bytes())}
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise InputError(f"{path}: not a file of weights ({first_line(error)}); {ADVICE}") from None
    for name in TEXT_FILES:
        if made_with.get(name, files[name]) != files[name]:
            raise InputError(f"{folder / name}: not the file that {path} was stored with; {ADVICE}")
    return _scaled(weights, path)


def to_int8(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round rows [N, D] to 8 bits: int8 [N, D] and the scale of each row, float32 [N], so that rows
    = int8 * scale.

    A scale for each dimension would lose more, because embeddings of pieces differ in length.
    """
    codes, scales = _codes(rows, 127)
    return codes.astype(np.int8), scales


def to_int4(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round rows [N, D] of an even D to 4 bits, as uint8 [N, D/2], and the scale of each row,
    float32 [N].

    Codes -7 to 7 are stored as 1 to 15: of the first D/2 columns in the low bits, of the others in
    the high ones.
    """
    codes, scales = _codes(rows, 7, SCALE_SHARES)
    first, last = np.hsplit((codes + 8).astype(np.uint8), 2)
    return first | last << 4, scales


def _codes(
    rows: np.ndarray, most: int, shares: Sequence[float] = (1,)
) -> tuple[np.ndarray, np.ndarray]:
    """Round rows [N, D], each at the most exact of its scales: shares of that which reaches the
    largest number.
    """
    largest, least = np.abs(rows).max(axis=1, initial=0) / most, np.full(len(rows), np.inf)
    codes, scales = np.zeros_like(rows), np.zeros(len(rows), np.float32)
    divided = rows / np.where(largest > 0, largest, 1)[:, None]
    for share in shares:
        tried = (share * largest).astype(np.float32)  # that of a tiny row may be rounded down
        rounded = np.rint(rows / np.where(tried > 0, tried, 1)[:, None]).clip(-most, most)
        errors = np.square(rounded * share - divided).sum(axis=1)
        better = ~(errors >= least)
        codes[better], scales[better], least[better] = (
            rounded[better],
            tried[better],
            errors[better],
        )
    return codes, scales


def _scaled(stored: Mapping[str, np.ndarray], where: Path) -> dict[str, np.ndarray]:
    """Multiply the rows of weights in 8 or 4 bits by their scales."""
    weights = dict(stored)
    for name, codes in stored.items():
        if codes.dtype not in (np.int8, np.uint8) or name + SCALE not in stored:
            continue
        scales = weights.pop(name + SCALE)
        if codes.ndim != 2 or scales.shape != codes.shape[:1] or scales.dtype != np.float32:
            raise InputError(
                f"{where}: {name}, {codes.dtype} {list(codes.shape)}, has scales {scales.dtype} {list(scales.shape)}; "
                f"expected float32, one for each row; {ADVICE}"
            )
        if codes.dtype == np.uint8:  # two codes a byte
            codes = np.hstack([codes & 15, codes >> 4]).view(np.int8) - np.int8(8)
        weights[name] = np.multiply(codes, scales[:, None], dtype=np.float32)
    return weights


def _array(name: str, shape: list[int], dtype: str, data: bytes) -> np.ndarray:
    """Make an array of what safetensors stores; a bfloat16 is the upper half of a float32."""
    if dtype == "BF16":
        return (
            (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
        )
    if dtype not in ARRAY_TYPES:
        raise ValueError(f"{name} has numbers of type {dtype}")
    return np.frombuffer(data, ARRAY_TYPES[dtype]).reshape(shape)


def write_folder(
    folder: str | Path,
    texts: Sequence[bytes],
    description: Mapping[str, Any],
    save: Callable[..., bytes],
) -> None:
    """Write a model folder, which appears only when it is complete; `texts` are the contents of the
    `TEXT_FILES`.

    `description` has architecture, encoder, text and training of config.json; `save` serializes the
    weights.
    """
    with atomic_folder(folder, CONFIG_FILE, DICTIONARY_FILE, sign='"format_version"') as work:
        for name, content in zip(TEXT_FILES, texts, strict=True):
            (work / name).write_bytes(content)
        made_with = {name: sha256(work / name) for name in TEXT_FILES}
        metadata = {"format": "pt", **made_with}
        (work / WEIGHTS_FILE).write_bytes(_ordered(save(metadata=metadata), metadata))
        files = {WEIGHTS_FILE: sha256(work / WEIGHTS_FILE), **made_with}
        config = {"format_version": MODEL_FORMAT, **description, "files": files}
        # written last, because a folder without it does not load
        (work / CONFIG_FILE).write_text(
            json.dumps(sealed(config), indent=2) + "\n", encoding="utf-8"
        )


def _ordered(data: bytes, metadata: dict[str, str]) -> bytes:
    """Order the metadata of safetensors, so that equal weights give equal bytes, as fingerprints
    need.
    """
    # offset of the weights, after the header's length and the header
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start]) | {"__metadata__": metadata}
    ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return data[:8] + ordered.ljust(start - 8) + data[start:]


def check_weights(
    weights: Mapping[str, Any], expected: Mapping[str, list[int]], where: str | Path
) -> None:
    """Compare names and shapes of tensors or arrays, and look for integers, NaN and infinity."""
    for name in sorted(weights.keys() ^ expected.keys()):
        what = "has no" if name in expected else "has an unknown"
        raise InputError(
            f"{where}: {what} {name}, by the number of layers and the options it names; {ADVICE}"
        )
    for name, value in weights.items():
        kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        if kind not in WEIGHT_TYPES or str(getattr(value, "layout", DENSE)) != DENSE:
            raise InputError(
                f"{where}: {name} is of type {kind}; expected one of {', '.join(WEIGHT_TYPES)}; {ADVICE}"
            )
        sizes = list(value.shape)
        if sizes != expected[name]:
            raise InputError(
                f"{where}: {name} has the sizes {sizes}; the options ask for {expected[name]}; {ADVICE}"
            )
        if not (np.isfinite(value) if isinstance(value, np.ndarray) else value.isfinite()).all():
            raise InputError(
                f"{where}: {name} has NaN or infinity in it; take another checkpoint, or train again"
            )
