"""Exports a model without layers and a corpus as a web page that searches the corpus.

The page runs in the browser without a server; its content security policy forbids every request.
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

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import to_int8
from fairseq_lxsr.encoder.numpy_network import ORDER, TABLE
from fairseq_lxsr.encoder.packed_table import PackedTable
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export.fast_tokenizer import matching_rules
from fairseq_lxsr.files.lines import BLANKS, single_line
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.text import folding
from fairseq_lxsr.text.case import SECOND_DOT, STYLED
from fairseq_lxsr.text.sentencepiece_model import BPE, NORMAL, UNIGRAM, read_sentencepiece
from fairseq_lxsr.text.tokenizer import TextOptions, Tokenizer, is_word

PAGE_FILE = "index.html"
# Every website has an index.html; only one with this mark is replaced.
PAGE_SIGN = '<meta name="generator" content="lxsr export web">'
PAGE_PARTS = Path(__file__).parent / "web"
# Penalty of an unknown letter relative to the least likely piece, as in SentencePiece.
UNKNOWN_PENALTY = 10
# Piece types that the page supports: normal, unknown, control and unused. User-defined pieces and
# bytes are not supported.
READABLE_TYPES = {NORMAL, 2, 3, 5}
ALGORITHMS = {UNIGRAM: "unigram", BPE: "bpe"}
# The data is split into parts of this size, so that the page shows how much of it has been loaded.
PART_CHARACTERS = 1 << 20
# The script after each part, which advances the progress bar.
STEP = 'document.getElementById("progress").value++;'
# A regular expression that matches nothing.
NOTHING = "(?!)"


def export_web(
    encoder: SentenceEncoder,
    sentences: Sequence[str],
    output: str | Path,
    title: str,
    example: str = "",
) -> int:
    """Write a folder with a page that searches sentences.

        encoder = SentenceEncoder.from_pretrained("lxsr-static")
        export_web(encoder, ["A dog.", "Un chat."], "page", "Pets")

    Args:
        encoder: an encoder without layers, whose embedding is a weighted sum of table rows.
        sentences: the corpus; empty lines and lines without a known piece are skipped.
        output: output folder, written atomically.
        title: heading of the page.
        example: first query.

    Returns:
        The number of sentences on the page.

    Raises:
        InputError: if the encoder has layers or pieces that the page cannot compute, or if the
            corpus has no text.
    """
    size = encoder.size
    if not getattr(size, "is_bag", False):
        kind = f"architecture {encoder.config['architecture']}"
        if size.num_layers:
            kind = f"{size.num_layers} layers"
        raise InputError(
            f"a model with {kind} cannot be exported to a web page; use a model without layers, "
            "such as lxsr_best"
        )
    embeddings = encoder.encode(sentences, normalize=True)
    known_rows = np.flatnonzero(embeddings.any(axis=1))
    if not len(known_rows):
        raise InputError("no text in the corpus; expected one sentence per line")
    rows, _ = to_int8(embeddings[known_rows])
    table = encoder.packed_table
    if table is None:
        table = PackedTable(*to_int8(encoder.weights[TABLE]))
    order = encoder.weights[ORDER].tolist() if size.order_coefficients else []
    content: dict[str, Any] = tokenizer_content(encoder.tokenizer) | {
        "width": size.embed_dim,
        "order": order,
        "bits": 4 if table.codes.dtype == np.uint8 else 8,
        "table": _base64(table.codes),
        "scales": _base64(table.scales),
        "corpus": _base64(rows),
        "lengths": _base64(np.linalg.norm(rows.astype(np.float32), axis=1)),
        "sentences": [single_line(sentences[row]) for row in known_rows.tolist()],
    }
    page = _page(content, single_line(title), single_line(example))
    with atomic_folder(output, PAGE_FILE, sign=PAGE_SIGN) as work:
        (work / PAGE_FILE).write_text(page, encoding="utf-8")
    return len(known_rows)


def tokenizer_content(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokenizer data that the page needs to split sentences into pieces.

    Raises:
        InputError: if the page cannot compute the pieces of the SentencePiece model.
    """
    file = read_sentencepiece(tokenizer.serialized_model())
    unreadable_types = {piece.type for piece in file.pieces} - READABLE_TYPES
    if file.kind not in ALGORITHMS or not file.plain or unreadable_types:
        raise InputError(
            "this SentencePiece model cannot be exported to a web page: it has byte fallback or "
            "was not trained by `lxsr prepare`"
        )
    pieces = []
    scores = []
    rows = []
    for piece, row in zip(file.pieces, tokenizer.piece_ids.tolist(), strict=True):
        if piece.type == NORMAL:
            pieces.append(piece.text)
            scores.append(piece.score)
            rows.append(row)
    letters = letter_replacements(tokenizer)
    for code, replacement in tokenizer.options.table.items():
        letters[chr(code)] = replacement
    return {
        "kind": ALGORITHMS[file.kind],
        "pieces": pieces,
        "scores": scores,
        "rows": rows,
        "unknown": tokenizer.unknown,
        "unknownScore": min(scores) - UNKNOWN_PENALTY,
        "longest": max(map(len, pieces)),
        "letters": letters,
        "folded": matching_rules(tokenizer, folding.letters()),
        "sequences": list(matching_rules(tokenizer, folding.sequences()).items()),
        "marks": [number for number, piece in enumerate(pieces) if not is_word(piece)],
        **_normalization(tokenizer.options),
        "blanks": BLANKS,
    }


def _normalization(options: TextOptions) -> dict[str, Any]:
    """Return the normalization steps as regular expressions."""
    second_dot = NOTHING
    styled = NOTHING
    if not options.is_plain:
        second_dot = SECOND_DOT
        styled = STYLED
    return {
        "lowercase": options.lowercase,
        "splitHan": options.split_han,
        "invisible": options.steps,
        "secondDot": second_dot,
        "styled": styled,
    }


def letter_replacements(tokenizer: Tokenizer) -> dict[str, str]:
    """Map letters that SentencePiece normalizes differently from NFKC to their normal form.

    For example, SentencePiece keeps ～ and drops control characters.
    """
    letters = []
    for code in range(0x20, sys.maxunicode + 1):
        # Unassigned, private and surrogate code points do not occur in ordinary text.
        if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs"):
            letters.append(chr(code))
    # The zeros prevent spaces from being stripped.
    normalized = tokenizer.normalized([f"0{letter}0" for letter in letters])
    replacements = {}
    for letter, text in zip(letters, normalized, strict=True):
        replacement = text.replace("\u2581", " ").strip()[1:-1]
        if replacement != unicodedata.normalize("NFKC", letter):
            replacements[letter] = replacement
    return replacements


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _page(content: dict[str, Any], title: str, example: str) -> str:
    template = Template((PAGE_PARTS / "page.html").read_text(encoding="utf-8"))
    script = (PAGE_PARTS / "search.js").read_text(encoding="utf-8")
    style = (PAGE_PARTS / "page.css").read_text(encoding="utf-8")
    # `</script>` in a sentence would end the element.
    data = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")
    parts = [
        data[start : start + PART_CHARACTERS] for start in range(0, len(data), PART_CHARACTERS)
    ]
    elements = []
    for part in parts:
        elements.append(f'<script type="application/json" class="data">{part}</script>')
        elements.append(f"<script>{STEP}</script>")
    return template.substitute(
        sign=PAGE_SIGN,
        title=escape(title),
        example=escape(example, quote=True),
        script=script,
        style=style,
        script_hash=_hash(script),
        style_hash=_hash(style),
        step_hash=_hash(STEP),
        part_count=len(parts),
        data="\n".join(elements),
    )


def _hash(text: str) -> str:
    """Return the hash of a script or style, in the form that a content security policy requires."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
