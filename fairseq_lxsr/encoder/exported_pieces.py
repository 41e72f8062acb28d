"""The dictionary and the SentencePiece model in a `lxsr export sentence-transformers` folder.

With them, this package reads the folder as fast as a model folder. They belong to the folder's
tokenizer.json, whose weights may be trained further.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_lxsr.encoder.model_folder import CONFIG_FILE, TEXT_FILES, check_files, parse_config
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.text.tokenizer import MASK, Tokenizer

# File in a sentence-transformers folder.
TOKENIZER_FILE = "tokenizer.json"
# Subfolder with the files of a model folder, except for the weights.
PIECES_FOLDER = "lxsr"
# Additional fields of its config.json: checksum of tokenizer.json (see `hash_tokenizer`), and the
# row of the exported table that tokenizer.json assigns to unknown letters.
TOKENIZER = "tokenizer"
UNKNOWN_ROW = "unknown_row"


def read_pieces(folder: Path, is_checked: bool) -> dict[str, Any] | None:
    """Read the description of the word pieces in a sentence-transformers folder.

    Args:
        folder: the sentence-transformers folder.
        is_checked: whether all files are those of the export (see `st_checksums.check_export`).

    Returns:
        Content of config.json; None if it is missing, or if tokenizer.json has changed since the
        export.

    Raises:
        InputError: if a file of the pieces is damaged or missing.
    """
    pieces = folder / PIECES_FOLDER
    if not (pieces / CONFIG_FILE).is_file():
        return None
    config, checksums = parse_config(pieces / CONFIG_FILE)
    if is_checked:
        return config
    check_files(pieces, TEXT_FILES, checksums)
    tokenizer = parse_json((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    if hash_tokenizer(tokenizer) != config.get(TOKENIZER):
        return None
    return config


def hash_tokenizer(tokenizer: Mapping[str, Any]) -> str:
    """Return a SHA-256 checksum of how a tokenizer.json splits texts.

    The checksum stays the same when the tokenizers library saves the file again, although the
    library rounds scores and, depending on its version, writes merges in another form.
    """
    model = tokenizer["model"]
    vocabulary = model["vocab"]
    scores = []
    if isinstance(vocabulary, list):
        names = [name for name, _ in vocabulary]
        # Nine digits identify a float32, the type of SentencePiece's scores.
        scores = [f"{score:.9g}" for _, score in vocabulary]
    else:
        names = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = []
    for merge in model.get("merges", ()):
        merges.append(merge if isinstance(merge, str) else " ".join(merge))
    content = [tokenizer["normalizer"], model["type"], names, scores, merges]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def extended_symbols(tokenizer: Tokenizer, num_rows: int) -> list[str]:
    """List the symbols of the embedding table, then the pieces that are not in the dictionary.

    Args:
        tokenizer: the tokenizer of the model.
        num_rows: number of rows of the embedding table, one more than the dictionary if training
            added <mask>.
    """
    symbols = list(tokenizer.symbols)
    if len(symbols) < num_rows:
        symbols.append(MASK)
    in_dictionary = set(symbols)
    for piece in tokenizer.all_pieces():
        if piece not in in_dictionary:
            symbols.append(piece)
    return symbols
