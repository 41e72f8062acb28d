"""Every export reads every character of Unicode as this package does."""

import json
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from fairseq_lxsr.export.fast_tokenizer import tokenizer_json
from fairseq_lxsr.text.folding import FOLDED
from fairseq_lxsr.text.sentencepiece_model import (
    NORMAL,
    UNIGRAM,
    Piece,
    model_of_pieces,
    read_sentencepiece,
    with_rule_name,
)
from fairseq_lxsr.text.tokenizer import SPECIAL, TEXT_VERSION, TextOptions, Tokenizer
from fairseq_lxsr.text.words import WORD_START

tokenizers = pytest.importorskip("tokenizers")
# Alone, and between Latin, Greek, Cyrillic and Hebrew letters.
CONTEXTS = (
    "{}",
    "ab{}cd",
    "\u03b1\u03b2{}\u03b3\u03b4",
    "\u0436\u0431{}\u0432\u0433",
    "\u05d0{}\u05d1",
)
# Pairs of a traditional Chinese letter and the simplified one that is read in its place.
READ_AS = "\u6f22\u6c49\u8a9e\u8bed"


# Unassigned characters, private ones and surrogates.
WITHOUT_MEANING = ("Cn", "Co", "Cs")


def assigned_characters() -> list[str]:
    """Return every character that Unicode assigns, except NUL."""
    characters = map(chr, range(1, sys.maxunicode + 1))
    return [char for char in characters if unicodedata.category(char) not in WITHOUT_MEANING]


def letters_tokenizer(packaged, letters: list[str], folder: Path) -> Tokenizer:
    """Return a tokenizer with the rules of the packaged model and a piece for each letter."""
    charsmap = read_sentencepiece(packaged.tokenizer.serialized_model()).charsmap
    names = dict.fromkeys(WORD_START)
    for letter in (*letters, *"".join(CONTEXTS)):
        for form in (letter, letter.lower(), unicodedata.normalize("NFKC", letter).lower()):
            names |= dict.fromkeys(form)
    pieces = [Piece(name, -1.0, NORMAL) for name in names if not name.isspace()]
    model = model_of_pieces(pieces, UNIGRAM, charsmap)
    path = folder / "sentencepiece.model"
    path.write_bytes(with_rule_name(model, FOLDED.encode()))
    options = TextOptions(lowercase=True, version=TEXT_VERSION, read_as=READ_AS)
    return Tokenizer(path, options, [*SPECIAL, *(piece.text for piece in pieces)])


@pytest.mark.parametrize(
    "step",
    # 499 is a prime number, so that the characters are of all blocks.
    [pytest.param(499, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("javascript", [False, True], ids=["tokenizers", "onnx"])
def test_every_character_has_the_same_pieces_in_the_exported_tokenizer(
    packaged, tmp_path, javascript, step
):
    """`javascript`: as in folders of ONNX, whose tokenizer transformers.js can read, too."""
    letters = assigned_characters()[::step]
    tokenizer = letters_tokenizer(packaged, letters, tmp_path)
    content = tokenizer_json(
        tokenizer, tokenizer.symbols, empty_unknown=False, javascript=javascript
    )
    library = tokenizers.Tokenizer.from_str(json.dumps(content))

    differences = []
    for context in CONTEXTS:
        texts = [context.format(letter) for letter in letters]
        encodings = library.encode_batch(texts, add_special_tokens=False)
        for letter, encoding, ids in zip(letters, encodings, tokenizer.encode(texts), strict=True):
            if not np.array_equal(encoding.ids, ids):
                differences.append((context, f"U+{ord(letter):04X}"))

    assert differences == []
