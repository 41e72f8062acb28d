"""The dictionary and the SentencePiece model in a `lxsr export sentence-transformers` folder.

With them, this package reads the folder as fast as a model folder. They belong to the folder's
tokenizer.json, whose weights may be trained further.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_lxsr.encoder.model_folder import ADVICE, TEXT_FILES
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import is_count, parse_json, sealed
from fairseq_lxsr.text.tokenizer import (
    DICTIONARY_FILE,
    MASK,
    SENTENCEPIECE_FILE,
    TextOptions,
    Tokenizer,
    read_dictionary,
)

# File in a sentence-transformers folder.
TOKENIZER_FILE = "tokenizer.json"
# Subfolder with the `TEXT_FILES` and their description.
PIECES_FOLDER = "lxsr"
DESCRIPTION_FILE = "pieces.json"


@dataclass(frozen=True)
class ExportedPieces:
    """The word pieces of an exported model.

    Attributes:
        folder: folder of the `TEXT_FILES`.
        text: text normalization options.
        num_rows: number of rows of the encoder's embedding table. The exported table has more rows:
            tokenizer.json needs copies for pieces outside the dictionary.
        unknown_row: row of the exported table that tokenizer.json assigns to unknown letters.
    """

    folder: Path
    text: TextOptions
    num_rows: int
    unknown_row: int

    def tokenizer(self, more_symbols: Sequence[str] = ()) -> Tokenizer:
        """Read the tokenizer.

        Args:
            more_symbols: pieces to add to the dictionary.

        Raises:
            InputError: if a file is invalid, or the files do not belong together.
        """
        symbols = read_dictionary(self.folder / DICTIONARY_FILE)
        # The dictionary may lack <mask>, which training adds.
        if self.num_rows - len(symbols) not in (0, 1):
            raise InputError(
                f"{self.folder / DICTIONARY_FILE}: {len(symbols):,} entries instead of the "
                f"encoder's {self.num_rows:,}: {ADVICE}"
            )
        return Tokenizer(self.folder / SENTENCEPIECE_FILE, self.text, [*symbols, *more_symbols])


def write_pieces(
    texts: Sequence[bytes], pieces: ExportedPieces, tokenizer: Mapping[str, Any]
) -> None:
    """Write the word pieces of a model.

    Args:
        texts: contents of the `TEXT_FILES`.
        pieces: what to record about them; `pieces.folder` is created.
        tokenizer: content of the tokenizer.json.
    """
    pieces.folder.mkdir()
    for name, content in zip(TEXT_FILES, texts, strict=True):
        (pieces.folder / name).write_bytes(content)
    description = {
        "text": pieces.text.record(),
        "rows": pieces.num_rows,
        "unknown_row": pieces.unknown_row,
        "tokenizer": hash_tokenizer(tokenizer),
        "files": {name: sha256(pieces.folder / name) for name in TEXT_FILES},
    }
    path = pieces.folder / DESCRIPTION_FILE
    path.write_text(json.dumps(sealed(description), indent=2) + "\n", encoding="utf-8")


def read_pieces(folder: Path, is_checked: bool) -> ExportedPieces | None:
    """Read the description of the word pieces in a sentence-transformers folder.

    Args:
        folder: the sentence-transformers folder.
        is_checked: whether all files are those of the export (see `st_checksums.check_export`).

    Returns:
        The pieces; None if there are none, or if tokenizer.json has changed since the export.

    Raises:
        InputError: if a file of the pieces is damaged or missing.
    """
    path = folder / PIECES_FOLDER / DESCRIPTION_FILE
    if not path.is_file():
        return None
    try:
        description = parse_json(path.read_text(encoding="utf-8"))
        pieces = ExportedPieces(
            folder=path.parent,
            text=TextOptions(**description["text"]),
            num_rows=description["rows"],
            unknown_row=description["unknown_row"],
        )
        checksums = {name: description["files"][name] for name in TEXT_FILES}
        if not is_count(pieces.num_rows) or not is_count(pieces.unknown_row):
            raise ValueError("a number of rows is not a count")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: damaged ({error!r:.150}); {ADVICE}") from None
    if is_checked:
        return pieces
    for name, checksum in checksums.items():
        file = path.parent / name
        if not file.is_file() or sha256(file) != checksum:
            raise InputError(f"{file}: missing, or checksum mismatch with {path.name}: {ADVICE}")
    tokenizer = parse_json((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    if hash_tokenizer(tokenizer) != description.get("tokenizer"):
        return None
    return pieces


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
