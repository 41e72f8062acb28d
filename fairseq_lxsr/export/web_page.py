"""Exports a model without layers and the sentences of a corpus as a page that searches in the
browser, without server.

Its content security policy forbids every request.
"""

import base64
import hashlib
import json
import sys
import unicodedata
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from fairseq_lxsr.characters import steps_of
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import to_int8
from fairseq_lxsr.encoder.numpy_network import ORDER, TABLE
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import BLANKS, single_line
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.text.case import SECOND_DOT, STYLED
from fairseq_lxsr.text.sentencepiece_model import BPE, NORMAL, UNIGRAM, read_sentencepiece
from fairseq_lxsr.text.tokenizer import TextOptions, Tokenizer, is_word

PAGE_FILE = "index.html"
# every website has a file of this name
PAGE_SIGN = '<meta name="generator" content="lxsr export web">'
PAGE_PARTS = Path(__file__).parent / "web"
UNKNOWN_PENALTY = 10  # SentencePiece's, below the lowest score of a piece
READ = {
    NORMAL,
    2,
    3,
    5,
}  # types of pieces: with unknown, control and unused ones; not user-defined ones and bytes
ALGORITHMS = {UNIGRAM: "unigram", BPE: "bpe"}


def export_web(
    encoder: SentenceEncoder,
    sentences: Sequence[str],
    output: str | Path,
    title: str,
    example: str = "",
) -> int:
    """Write the folder; it appears under its name only when it is complete.

        export_web(SentenceEncoder.from_pretrained("lxsr-static"), ["A dog.", "Un chat."], "page", "Pets")

    Args:
        encoder: an encoder without layers, whose embedding is a weighted sum of rows of a table.
        sentences: the corpus; empty lines and those without a known piece are left out.
        output: folder to write.
        title: heading of the page.
        example: first query.

    Returns:
        Number of sentences.

    Raises:
        InputError: for an encoder with layers, pieces that the page cannot make, or a corpus
            without text.
    """
    config = encoder.size
    if not getattr(config, "is_bag", False):
        kind = (
            f"{config.num_layers} layers" if config.num_layers else encoder.config["architecture"]
        )
        raise InputError(
            f"a model of {kind} cannot be written for a page; take one without layers, such as lxsr_best"
        )
    embeddings = encoder.encode(sentences, normalize=True)
    kept = np.flatnonzero(embeddings.any(axis=1))
    if not len(kept):
        raise InputError("no text in the corpus; expected one sentence a line")
    rows, _ = to_int8(embeddings[kept])
    table, scales = to_int8(encoder.weights[TABLE])
    content: dict[str, Any] = tokenizer_content(encoder.tokenizer) | {
        "width": config.embed_dim,
        "most": config.max_positions,
        "order": encoder.weights[ORDER].tolist() if config.order_coefficients else [],
        "table": _base64(table),
        "scales": _base64(scales),
        "corpus": _base64(rows),
        "lengths": _base64(np.linalg.norm(rows.astype(np.float32), axis=1)),
        "sentences": [single_line(sentences[row]) for row in kept.tolist()],
    }
    with atomic_folder(output, PAGE_FILE, sign=PAGE_SIGN) as work:
        (work / PAGE_FILE).write_text(
            _page(content, single_line(title), single_line(example)), encoding="utf-8"
        )
    return len(kept)


def tokenizer_content(tokenizer: Tokenizer) -> dict[str, Any]:
    """Collect what the page needs to make the pieces of a sentence and their rows."""
    file = read_sentencepiece(tokenizer.serialized_model())
    if (
        file.kind not in ALGORITHMS
        or not file.plain
        or {piece.type for piece in file.pieces} - READ
    ):
        why = "its pieces are made otherwise than by `lxsr prepare`, or have bytes"
        raise InputError(f"this SentencePiece model cannot be written for a page: {why}")
    rows = zip(file.pieces, tokenizer.piece_ids.tolist(), strict=True)
    normal = ((piece.text, piece.score, row) for piece, row in rows if piece.type == NORMAL)
    texts, scores, ids = zip(*normal, strict=True)
    return {
        "kind": ALGORITHMS[file.kind],
        "pieces": texts,
        "scores": scores,
        "rows": ids,
        "unknown": tokenizer.unknown,
        "unknownScore": min(scores) - UNKNOWN_PENALTY,
        "longest": max(map(len, texts)),
        "letters": letter_replacements(tokenizer)
        | {chr(old): new for old, new in tokenizer.options.table.items()},
        "marks": [number for number, text in enumerate(texts) if not is_word(text)],
        **_reading(tokenizer.options),
        "blanks": BLANKS,
    }


def _reading(options: TextOptions) -> dict[str, Any]:
    """Collect what `normalise` does to a text, as regular expressions."""
    newer = options.version > 1
    return {
        "lowercase": options.lowercase,
        "splitHan": options.split_han,
        "invisible": steps_of(options.version),
        "secondDot": SECOND_DOT if newer else "(?!)",
        "styled": STYLED if newer else "(?!)",
    }


def letter_replacements(tokenizer: Tokenizer) -> dict[str, str]:
    """Map the letters that SentencePiece normalizes otherwise than NFKC does; it keeps ～ and drops
    controls.
    """
    every = map(chr, range(0x20, sys.maxunicode + 1))
    letters = [letter for letter in every if unicodedata.category(letter) not in ("Cn", "Co", "Cs")]
    normal = tokenizer.normalized([f"0{letter}0" for letter in letters])
    mapped = {}
    for letter, result in zip(letters, normal, strict=True):
        inner = result.replace("\u2581", " ").strip()[1:-1]
        if inner != unicodedata.normalize("NFKC", letter):
            mapped[letter] = inner
    return mapped


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _page(content: dict[str, Any], title: str, example: str) -> str:
    script, style = (
        (PAGE_PARTS / name).read_text(encoding="utf-8") for name in ("search.js", "page.css")
    )
    return Template((PAGE_PARTS / "page.html").read_text(encoding="utf-8")).substitute(
        sign=PAGE_SIGN,
        title=escape(title),
        example=escape(example, quote=True),
        script=script,
        style=style,
        script_hash=_hash(script),
        style_hash=_hash(style),
        data=json.dumps(content, ensure_ascii=False).replace("<", "\\u003c"),
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
