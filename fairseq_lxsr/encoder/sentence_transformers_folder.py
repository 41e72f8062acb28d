"""Reads models without layers from `lxsr export sentence-transformers` folders.

If sentence-transformers trains such a model and saves it to another folder, only the weights and
tokenizer.json remain of the export.
"""

import json
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.encoder.exported_pieces import (
    PIECES_FOLDER,
    TOKENIZER_FILE,
    UNKNOWN_ROW,
    extended_symbols,
    read_pieces,
)
from fairseq_lxsr.encoder.library_tokenizer import LibraryTokenizer
from fairseq_lxsr.encoder.model_folder import (
    DEFAULT_ARCHITECTURE,
    MODEL_FORMAT,
    ST_MODULE,
    TEXT_FILES,
    WEIGHTS_FILE,
    check_weights,
    read_arrays,
    read_tokenizer,
    size_of,
)
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag
from fairseq_lxsr.encoder.packed_table import PackedTable
from fairseq_lxsr.encoder.st_checksums import MODULES_FILE, check_export, stored_checksums
from fairseq_lxsr.errors import InputError, install_command
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.machine import require
from fairseq_lxsr.modules.sizes import TransformerConfig
from fairseq_lxsr.text.tokenizer import (
    MASK,
    PAD,
    SENTENCEPIECE_FILE,
    SPECIAL,
    TextOptions,
    Tokenizer,
)

# Names of the embedding table in model2vec and sentence-transformers weights.
TABLE_NAMES = ("embeddings", "embedding.weight")
# Name of the tensor in model2vec weights that contains a factor for each row.
FACTORS = "weights"
# The files whose checksums identify the model.
FINGERPRINT_FILES = (WEIGHTS_FILE, TOKENIZER_FILE)
# Oldest major version that does not import a module just because a local folder names it.
OLDEST_VERSION = 6


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

    The SentencePiece model in the folder splits texts as long as it belongs to tokenizer.json;
    otherwise the tokenizers library does. Embeddings are always read from the folder's weights.

    Args:
        folder: output of `lxsr export sentence-transformers`, possibly saved again by
            sentence-transformers.

    Returns:
        The encoder, its tokenizer, and a description as in the config.json of a model folder.

    Raises:
        InputError: if the folder is not such an export, a file has changed since the export, or the
            tokenizers library is needed and missing.
    """
    checksums = check_export(folder)
    try:
        for name in FINGERPRINT_FILES:
            if not (folder / name).is_file():
                raise InputError(f"{name} is missing")
        pieces = read_pieces(folder, is_checked=bool(checksums))
        if pieces is not None:
            tokenizer, table = _read_exported(folder, pieces)
        else:
            tokenizer, table = _read_changed(folder)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        reason = error if isinstance(error, InputError) else f"{error!r:.100}"
        raise InputError(
            f"{folder}: not a `lxsr export sentence-transformers` folder of a model without layers "
            f"({reason}); open it with SentenceTransformer, or evaluate it with `lxsr eval`"
        ) from None
    weights: dict[str, np.ndarray | PackedTable] = {TABLE: table}
    check_weights(weights, {TABLE: list(table.shape)}, folder / WEIGHTS_FILE)
    files = {}
    for name in FINGERPRINT_FILES:
        files[name] = checksums.get(name) or sha256(folder / name)
    description = describe_static(table.shape[0], table.shape[1], tokenizer.options)
    config = {"format_version": MODEL_FORMAT, **description, "files": files}
    size = size_of(config)
    assert isinstance(size, TransformerConfig)
    return Bag(size, weights), tokenizer, config


def describe_static(num_rows: int, width: int, text: TextOptions) -> dict[str, Any]:
    """Describe a model without layers and word order, as in the config.json of a model folder.

    Args:
        num_rows: number of word piece embeddings.
        width: dimension of the embeddings.
        text: text normalization options.
    """
    size = TransformerConfig(
        vocab_size=num_rows,
        padding_idx=SPECIAL.index(PAD),
        embed_dim=width,
        num_heads=1,
        num_layers=0,
        gated=True,
    )
    return {
        "architecture": DEFAULT_ARCHITECTURE,
        "encoder": asdict(size),
        "text": text.record(),
        "training": {},
    }


def module_folder(folder: Path) -> Path:
    """Return the model folder inside a sentence-transformers folder, or else the folder itself.

    Models with layers are exported as a custom module that contains the whole model folder.
    """
    inner_folder = folder / ST_MODULE
    if inner_folder.is_dir():
        return inner_folder
    return folder


def text_files(folder: Path | None, tokenizer: Tokenizer) -> list[bytes]:
    """Return the contents of a model's `TEXT_FILES`.

    Args:
        folder: folder of the model. If it lacks these files, they are generated.
        tokenizer: tokenizer of the model.

    Raises:
        InputError: if the tokenizer has no SentencePiece model (see `LibraryTokenizer`).
    """
    if folder is not None:
        paths = [folder / name for name in TEXT_FILES]
        if all(path.is_file() for path in paths):
            return [path.read_bytes() for path in paths]
    ordinary_symbols = tokenizer.symbols[len(SPECIAL) :]
    lines = (f"{symbol} 1\n" for symbol in ordinary_symbols if symbol != MASK)
    return ["".join(lines).encode(), tokenizer.serialized_model()]


def _read_exported(
    folder: Path, config: dict[str, Any]
) -> tuple[Tokenizer, np.ndarray | PackedTable]:
    """Return the tokenizer and the embedding table [V, D] of exported word pieces.

    If training has changed the embeddings of pieces outside the dictionary, these pieces are added
    to the dictionary.

    Args:
        folder: the sentence-transformers folder.
        config: description of the pieces, which belong to the folder's tokenizer.json.
    """
    # Read the tokenizer first, because reading it takes the most memory.
    tokenizer = read_tokenizer(folder / PIECES_FOLDER, config)
    values, factors = _read_table(folder / WEIGHTS_FILE)
    num_rows = size_of(config).vocab_size
    unknown_row = config[UNKNOWN_ROW]
    num_pieces = max(num_rows, unknown_row + 1)
    if len(values) < num_pieces:
        raise InputError(f"{len(values):,} embeddings for {num_pieces:,} pieces")
    if values.dtype == np.int8 and factors is not None:
        # Libraries train tables of floats only.
        return tokenizer, PackedTable(values[:num_rows], factors[:num_rows], _root(values))
    rows = _float_rows(values, factors)
    # Unknown letters have this row in other programs, so it was trained.
    rows[tokenizer.unknown] = rows[unknown_row]
    outside = extended_symbols(tokenizer, num_rows)[num_rows:]
    end = min(num_rows + len(outside), len(rows))
    while end > num_rows and (rows[end - 1] == rows[tokenizer.unknown]).all():
        end -= 1
    if end == num_rows:
        return tokenizer, rows[:num_rows]
    # The row of <mask>, if any, comes after all rows of the dictionary.
    num_symbols = len(tokenizer.symbols)
    table = np.concatenate([rows[:num_symbols], rows[num_rows:end], rows[num_symbols:num_rows]])
    symbols = tokenizer.symbols + outside[: end - num_rows]
    model = folder / PIECES_FOLDER / SENTENCEPIECE_FILE
    return Tokenizer(model, tokenizer.options, symbols), table


def _read_changed(folder: Path) -> tuple[Tokenizer, np.ndarray]:
    """Return the tokenizer and the embeddings of all symbols of tokenizer.json, float32 [V, D]."""
    tokenizer = LibraryTokenizer(folder / TOKENIZER_FILE)
    rows = _float_rows(*_read_table(folder / WEIGHTS_FILE))
    if len(rows) != len(tokenizer.symbols):
        raise InputError(f"{len(rows):,} embeddings for {len(tokenizer.symbols):,} pieces")
    return tokenizer, rows


def _read_table(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the stored embeddings [V, D], and a factor for each of them, float32 [V], if any."""
    stored, _ = read_arrays(path)
    for name in TABLE_NAMES:
        if name not in stored:
            continue
        values = stored[name]
        factors = stored.get(FACTORS)
        has_factors = factors is None or (
            factors.shape == values.shape[:1] and factors.dtype == np.float32
        )
        if values.ndim != 2 or not has_factors:
            raise InputError(
                f"{path.name}: {name} has shape {list(values.shape)}; expected a table, with one "
                f"float32 factor per row if it has {FACTORS}"
            )
        return values, factors
    raise InputError(f"{path.name}: no tensor named {' or '.join(TABLE_NAMES)}")


def _float_rows(values: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
    """Return the embeddings of this package for stored ones, float32 [V, D]."""
    rows = values.astype(np.float32)
    if factors is not None:
        rows *= factors[:, None]
    rows /= np.float32(_root(values))
    return rows


def _root(table: np.ndarray) -> float:
    """Return the square root of the embedding dimension, by which the network scales embeddings."""
    return table.shape[1] ** 0.5
