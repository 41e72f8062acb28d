"""Reads the folder that `lxsr export sentence-transformers` writes of a model without layers, also
after that library has saved or trained it: of the model folder only weights and tokenizer.json are
left then.
"""

import base64
import sys
import tempfile
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fairseq_lxsr.characters import steps_of
from fairseq_lxsr.encoder.model_folder import (
    DEFAULT_ARCHITECTURE,
    MODEL_FORMAT,
    ST_MODULE,
    TEXT_FILES,
    WEIGHTS_FILE,
    check_weights,
)
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.modules.sizes import TransformerConfig
from fairseq_lxsr.text.sentencepiece_model import BPE, BYTE, NORMAL, UNIGRAM, Piece, model_of_pieces
from fairseq_lxsr.text.tokenizer import (
    MASK,
    PAD,
    SENTENCEPIECE_FILE,
    SPECIAL,
    UNK,
    TextOptions,
    Tokenizer,
)

MODULES_FILE, TOKENIZER_FILE = "modules.json", "tokenizer.json"  # of sentence-transformers
TABLE_NAMES = ("embeddings", "embedding.weight")  # model2vec's and sentence-transformers'
KIND_NUMBERS = {"BPE": BPE, "Unigram": UNIGRAM}
BEYOND_LATIN = range(0x250, sys.maxunicode + 1)


def is_sentence_transformers_folder(folder: Path) -> bool:
    """Return whether a folder is one of that library."""
    return (folder / MODULES_FILE).is_file()


def read_sentence_transformers_folder(folder: Path) -> tuple[Bag, Tokenizer, dict[str, Any]]:
    """Read the table and the tokenizer, and describe them as config.json of a model folder does."""
    try:
        if not (folder / TOKENIZER_FILE).is_file() or not (folder / WEIGHTS_FILE).is_file():
            raise InputError(f"no {TOKENIZER_FILE} and {WEIGHTS_FILE} of a model without layers")
        described = parse_json((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
        tokenizer, rows = _tokenizer(described, _rows(folder / WEIGHTS_FILE))
        longest = described["truncation"]["max_length"]
    except (
        InputError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        SafetensorError,
    ) as error:
        why = error if isinstance(error, InputError) else f"{error!r:.100}"
        raise InputError(
            f"{folder}: a folder of sentence-transformers that `lxsr export` did not write of a model without layers "
            f"({why}); open it with SentenceTransformer, or measure it with lxsr eval"
        ) from None
    size = TransformerConfig(
        vocab_size=len(rows),
        padding_idx=tokenizer.symbols.index(PAD),
        embed_dim=rows.shape[1],
        num_heads=1,
        num_layers=0,
        max_positions=longest,
        gated=True,
    )
    weights = {TABLE: rows / np.float32(rows.shape[1] ** 0.5)}
    check_weights(weights, {TABLE: list(rows.shape)}, folder / WEIGHTS_FILE)
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
    """Return the model folder in a folder of sentence-transformers, of models that are a module of
    ours there.
    """
    return folder / ST_MODULE if (folder / ST_MODULE).is_dir() else folder


def text_files(folder: Path, tokenizer: Tokenizer) -> list[bytes]:
    """Return the contents of the `TEXT_FILES` of a model folder, or make them where a folder has
    none.
    """
    if all((folder / name).is_file() for name in TEXT_FILES):
        return [(folder / name).read_bytes() for name in TEXT_FILES]
    lines = (f"{symbol} 1\n" for symbol in tokenizer.symbols[len(SPECIAL) :] if symbol != MASK)
    return ["".join(lines).encode(), tokenizer.serialized_model()]


def _rows(path: Path) -> np.ndarray:
    with safe_open(path, "np") as stored:
        names = set(stored.keys())
        name = next((name for name in TABLE_NAMES if name in names), None)
        if name is None:
            raise InputError(f"{path.name} has no {' and no '.join(TABLE_NAMES)}")
        return np.array(stored.get_tensor(name), dtype=np.float32)


def _tokenizer(described: dict[str, Any], rows: np.ndarray) -> tuple[Tokenizer, np.ndarray]:
    """Make the tokenizer again, and return the rows [V, D] of its symbols."""
    model, steps = described["model"], described["normalizer"]["normalizers"]
    symbols, pieces = (_bpe if model["type"] == "BPE" else _unigram)(model)
    if len(rows) != len(symbols):
        raise InputError(f"{len(rows):,} rows for {len(symbols):,} pieces")
    last, unknown = steps[-1].get("content"), symbols.index(UNK)
    # it stands for unknown letters, and learns in place of the unknown piece
    if last == symbols[-1]:
        rows[unknown] = rows[-1]
        rows, symbols = rows[:-1], symbols[:-1]
    # pieces without a row of their own; training gives them one
    while (rows[-1] == rows[unknown]).all():
        rows = rows[:-1]
    read = [step.get("pattern", {}).get("Regex") for step in steps]
    charsmaps = [base64.b64decode(step.get("precompiled_charsmap", "")) for step in steps]
    first = next(number for number, step in enumerate(steps) if step["type"] == "Strip")
    options = TextOptions(
        lowercase=any(step["type"] == "Lowercase" for step in steps),
        version=max(
            v for v in (1, 2, 3) if [old for old, _ in steps_of(v)] == read[: len(steps_of(v))]
        ),
        read_as=_read_as(b"".join(charsmaps[:first])),
    )
    charsmap = next((found for found in charsmaps[:first:-1] if found), b"")
    known = [piece for piece in pieces if piece.text not in (*SPECIAL, MASK, last)]
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / SENTENCEPIECE_FILE
        path.write_bytes(
            model_of_pieces(known, KIND_NUMBERS[model["type"]], charsmap, model["byte_fallback"])
        )
        return Tokenizer(path, options, symbols[: len(rows)]), rows


def _bpe(model: dict[str, Any]) -> tuple[list[str], list[Piece]]:
    """Return symbols and pieces; a piece that is joined later has a lower score, and a letter the
    lowest.
    """
    vocab = model["vocab"]
    symbols = sorted(vocab, key=vocab.__getitem__)
    if list(map(vocab.__getitem__, symbols)) != list(range(len(symbols))):
        raise InputError("ids with gaps")
    ranks: dict[str, int] = {}
    for pair in model["merges"]:
        ranks.setdefault("".join(pair.split(" ") if isinstance(pair, str) else pair), len(ranks))
    return symbols, [_piece(symbol, -ranks.get(symbol, len(ranks)), model) for symbol in symbols]


def _unigram(model: dict[str, Any]) -> tuple[list[str], list[Piece]]:
    """Return symbols and pieces; a symbol that SentencePiece never gives has a blank before it."""
    symbols = [name.removeprefix(" ") for name, _ in model["vocab"]]
    return symbols, [
        _piece(name, score, model) for name, score in model["vocab"] if not name.startswith(" ")
    ]


def _piece(text: str, score: float, model: dict[str, Any]) -> Piece:
    of_byte = model["byte_fallback"] and len(text) == 6 and text.startswith("<0x")
    return Piece(text, score, BYTE if of_byte else NORMAL)


def _read_as(charsmap: bytes) -> str:
    """Find the letters that a compiled rule reads as others: each, followed by the other."""
    if not charsmap:
        return ""
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "rule.model"
        path.write_bytes(model_of_pieces([Piece("a", 0, NORMAL)], UNIGRAM, charsmap, False))
        letters = [
            letter for letter in map(chr, BEYOND_LATIN) if unicodedata.category(letter) == "Lo"
        ]
        read = Tokenizer(path, TextOptions()).normalized([f"0{letter}" for letter in letters])
    pairs: Sequence[tuple[str, str]] = [
        (old, new[-1]) for old, new in zip(letters, read, strict=True)
    ]
    return "".join(old + new for old, new in pairs if old != new)
