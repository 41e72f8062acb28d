"""Reads models without layers from `lxsr export sentence-transformers` folders.

After sentence-transformers has saved or trained such a model, only the weights and tokenizer.json
remain of the original model folder.
"""

import base64
import json
import sys
import tempfile
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fairseq_lxsr.characters import STEPS
from fairseq_lxsr.encoder.model_folder import (
    DEFAULT_ARCHITECTURE,
    MODEL_FORMAT,
    ST_MODULE,
    TEXT_FILES,
    WEIGHTS_FILE,
    check_weights,
)
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag
from fairseq_lxsr.encoder.st_checksums import MODULES_FILE, check_export, stored_checksums
from fairseq_lxsr.errors import InputError, install_command
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.machine import require
from fairseq_lxsr.modules.sizes import TransformerConfig
from fairseq_lxsr.text.sentencepiece_model import BPE, BYTE, NORMAL, UNIGRAM, Piece, model_of_pieces
from fairseq_lxsr.text.tokenizer import (
    MASK,
    PAD,
    PLAIN_VERSION,
    SENTENCEPIECE_FILE,
    SPECIAL,
    TEXT_VERSION,
    UNK,
    TextOptions,
    Tokenizer,
)

# File in a sentence-transformers folder.
TOKENIZER_FILE = "tokenizer.json"
# Names of the embedding table in model2vec and sentence-transformers weights.
TABLE_NAMES = ("embeddings", "embedding.weight")
# Name of the tensor in model2vec weights that contains a factor for each row.
FACTORS = "weights"
# Oldest major version that does not import a module just because a local folder names it.
OLDEST_VERSION = 6
KIND_NUMBERS = {"BPE": BPE, "Unigram": UNIGRAM}
# First code point after the Latin letters.
BEYOND_LATIN = range(0x250, sys.maxunicode + 1)


def require_library(feature: str) -> None:
    """Check that a version of sentence-transformers is installed that does not run code from
    folders.

    Args:
        feature: feature that needs the library; the message begins with it.

    Raises:
        InputError: if the library is missing or too old.
    """
    require("sentence_transformers", "st", feature)
    version = metadata.version("sentence-transformers")
    if int(version.partition(".")[0]) < OLDEST_VERSION:
        raise InputError(
            f"{feature} requires sentence-transformers {OLDEST_VERSION} or later, because "
            f"older versions run code in model folders; {version} is installed: "
            f"{install_command('st')}"
        )


def is_sentence_transformers_folder(folder: Path) -> bool:
    """Return whether a folder is in sentence-transformers format."""
    return (folder / MODULES_FILE).is_file()


def is_static_export(folder: Path) -> bool:
    """Return whether a folder is an export of a model without layers, unchanged since the export.

    This package reads such a folder by itself. sentence-transformers drops the checksums when it
    saves a folder again.
    """
    try:
        has_checksums = bool(stored_checksums(folder / MODULES_FILE))
        return has_checksums and _module_types(folder)[0].endswith(".StaticEmbedding")
    except (OSError, ValueError):
        # A damaged folder is reported when it is loaded.
        return False


def normalizes(folder: Path) -> bool:
    """Return whether a sentence-transformers folder scales embeddings to unit length."""
    return any(name.endswith(".Normalize") for name in _module_types(folder))


def _module_types(folder: Path) -> list[str]:
    """Return the class names of the modules of a sentence-transformers folder."""
    modules = json.loads((folder / MODULES_FILE).read_text(encoding="utf-8"))
    return [str(module.get("type", "")) for module in modules]


def read_sentence_transformers_folder(folder: Path) -> tuple[Bag, Tokenizer, dict[str, Any]]:
    """Read a model without layers from a sentence-transformers folder.

    Args:
        folder: output of `lxsr export sentence-transformers`, possibly saved again by
            sentence-transformers.

    Returns:
        The encoder, its tokenizer, and the description from the original model's config.json.

    Raises:
        InputError: if the folder is not such an export, or a file has changed since the export.
    """
    check_export(folder)
    tokenizer_path = folder / TOKENIZER_FILE
    weights_path = folder / WEIGHTS_FILE
    try:
        if not tokenizer_path.is_file() or not weights_path.is_file():
            raise InputError(f"{TOKENIZER_FILE} or {WEIGHTS_FILE} is missing")
        description = parse_json(tokenizer_path.read_text(encoding="utf-8"))
        tokenizer, rows = _read_tokenizer(description, _read_table(weights_path))
    except (
        InputError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        SafetensorError,
    ) as error:
        reason = error if isinstance(error, InputError) else f"{error!r:.100}"
        raise InputError(
            f"{folder}: not a `lxsr export sentence-transformers` folder of a model without layers "
            f"({reason}); open it with SentenceTransformer, or evaluate it with `lxsr eval`"
        ) from None
    size = TransformerConfig(
        vocab_size=len(rows),
        padding_idx=tokenizer.symbols.index(PAD),
        embed_dim=rows.shape[1],
        num_heads=1,
        num_layers=0,
        gated=True,
    )
    weights = {TABLE: rows / np.float32(rows.shape[1] ** 0.5)}
    check_weights(weights, {TABLE: list(rows.shape)}, weights_path)
    config = {
        "format_version": MODEL_FORMAT,
        "architecture": DEFAULT_ARCHITECTURE,
        "encoder": asdict(size),
        "text": tokenizer.options.record(),
        "training": {},
        "files": {name: sha256(folder / name) for name in (WEIGHTS_FILE, TOKENIZER_FILE)},
    }
    return Bag(size, weights), tokenizer, config


def module_folder(folder: Path) -> Path:
    """Return the model folder inside a sentence-transformers folder, or else the folder itself.

    Models with layers are exported as a custom module that contains the whole model folder.
    """
    inner_folder = folder / ST_MODULE
    if inner_folder.is_dir():
        return inner_folder
    return folder


def text_files(folder: Path, tokenizer: Tokenizer) -> list[bytes]:
    """Return the contents of a model's `TEXT_FILES`.

    Args:
        folder: folder of the model. If it lacks these files, they are generated.
        tokenizer: tokenizer of the model.
    """
    paths = [folder / name for name in TEXT_FILES]
    if all(path.is_file() for path in paths):
        return [path.read_bytes() for path in paths]
    ordinary_symbols = tokenizer.symbols[len(SPECIAL) :]
    lines = (f"{symbol} 1\n" for symbol in ordinary_symbols if symbol != MASK)
    return ["".join(lines).encode(), tokenizer.serialized_model()]


def _read_table(path: Path) -> np.ndarray:
    """Return the word piece embeddings, float32 [V, D]."""
    with safe_open(path, "np") as stored:
        stored_names = set(stored.keys())
        for name in TABLE_NAMES:
            if name not in stored_names:
                continue
            rows = np.array(stored.get_tensor(name), dtype=np.float32)
            if FACTORS in stored_names:
                rows *= stored.get_tensor(FACTORS)[:, None]
            return rows
    raise InputError(f"{path.name}: no tensor named {' or '.join(TABLE_NAMES)}")


def _read_tokenizer(description: dict[str, Any], rows: np.ndarray) -> tuple[Tokenizer, np.ndarray]:
    """Build the tokenizer described by a tokenizer.json, and return it with its embeddings [V, D].

    Args:
        description: content of tokenizer.json.
        rows: the folder's embedding table, including rows that only tokenizer.json needs.
    """
    model = description["model"]
    steps = description["normalizer"]["normalizers"]
    read_pieces = _bpe if model["type"] == "BPE" else _unigram
    symbols, pieces = read_pieces(model)
    if len(rows) != len(symbols):
        raise InputError(f"{len(rows):,} embeddings for {len(symbols):,} pieces")
    unknown = symbols.index(UNK)
    stand_in = steps[-1].get("content")
    # In tokenizer.json, unknown letters are replaced by this symbol, so its embedding was trained.
    if stand_in == symbols[-1]:
        rows[unknown] = rows[-1]
        rows = rows[:-1]
        symbols = symbols[:-1]
    # The last pieces have a copy of the unknown symbol's embedding, because they were not in the
    # dictionary. Remove these pieces, unless their embeddings were changed by further training.
    while (rows[-1] == rows[unknown]).all():
        rows = rows[:-1]

    options, charsmap = _text_options(steps)
    left_out = (*SPECIAL, MASK, stand_in)
    pieces = [piece for piece in pieces if piece.text not in left_out]
    content = model_of_pieces(pieces, KIND_NUMBERS[model["type"]], charsmap, model["byte_fallback"])
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / SENTENCEPIECE_FILE
        path.write_bytes(content)
        return Tokenizer(path, options, symbols[: len(rows)]), rows


def _text_options(steps: Sequence[dict[str, Any]]) -> tuple[TextOptions, bytes]:
    """Derive the text options and SentencePiece's charsmap from the normalization steps.

    The steps come from tokenizer.json. A charsmap before `Strip` implements `read_as`; a charsmap
    after it belongs to the SentencePiece model.
    """
    patterns = []
    charsmaps = []
    types = []
    for step in steps:
        patterns.append(step.get("pattern", {}).get("Regex"))
        charsmaps.append(base64.b64decode(step.get("precompiled_charsmap", "")))
        types.append(step["type"])
    if "Strip" not in types:
        raise InputError("the normalizer lacks the Strip step")
    strip = types.index("Strip")
    options = TextOptions(
        lowercase="Lowercase" in types,
        version=_text_version(patterns),
        read_as=_read_as(b"".join(charsmaps[:strip])),
    )
    model_charsmap = b""
    for charsmap in charsmaps[strip + 1 :]:
        model_charsmap = charsmap or model_charsmap
    return options, model_charsmap


def _text_version(patterns: Sequence[str | None]) -> int:
    """Return the text version of an export whose normalizer begins with `patterns`."""
    expected = [pattern for pattern, _ in STEPS]
    return TEXT_VERSION if list(patterns[: len(expected)]) == expected else PLAIN_VERSION


def _bpe(model: dict[str, Any]) -> tuple[list[str], list[Piece]]:
    """Return the symbols and pieces of a BPE model, in id order.

    A piece that is merged later has a lower score. Single letters have the lowest scores.
    """
    vocab = model["vocab"]
    symbols = sorted(vocab, key=vocab.__getitem__)
    if [vocab[symbol] for symbol in symbols] != list(range(len(symbols))):
        raise InputError("the ids have gaps")
    ranks: dict[str, int] = {}
    for pair in model["merges"]:
        # Depending on its version, the tokenizers library stores a merge as one string or as two.
        parts = pair.split(" ") if isinstance(pair, str) else pair
        ranks.setdefault("".join(parts), len(ranks))
    lowest = len(ranks)
    return symbols, [_piece(symbol, -ranks.get(symbol, lowest), model) for symbol in symbols]


def _unigram(model: dict[str, Any]) -> tuple[list[str], list[Piece]]:
    """Return the symbols and pieces of a unigram model, in id order.

    In tokenizer.json, a symbol that SentencePiece never produces begins with a space.
    """
    symbols = []
    pieces = []
    for name, score in model["vocab"]:
        symbols.append(name.removeprefix(" "))
        if not name.startswith(" "):
            pieces.append(_piece(name, score, model))
    return symbols, pieces


def _piece(text: str, score: float, model: dict[str, Any]) -> Piece:
    is_byte = model["byte_fallback"] and len(text) == 6 and text.startswith("<0x")
    return Piece(text, score, BYTE if is_byte else NORMAL)


def _read_as(charsmap: bytes) -> str:
    """Return the `TextOptions.read_as` value that matches a SentencePiece charsmap.

    The value lists each replaced letter, followed by its replacement.
    """
    if not charsmap:
        return ""
    letters = [letter for letter in map(chr, BEYOND_LATIN) if unicodedata.category(letter) == "Lo"]
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "rule.model"
        path.write_bytes(model_of_pieces([Piece("a", 0, NORMAL)], UNIGRAM, charsmap, False))
        # A leading digit keeps the normalized text from being empty.
        normalized = Tokenizer(path, TextOptions()).normalized([f"0{letter}" for letter in letters])
    pairs = []
    for letter, text in zip(letters, normalized, strict=True):
        replacement = text[-1]
        if replacement != letter:
            pairs.append(letter + replacement)
    return "".join(pairs)
