"""Folds letters, so that different ways to type the same text give the same spelling.

For example, the digits of all scripts become ASCII digits, Greek vowels lose their accents, because
Greek capitals have none, and Persian letters become the Arabic letters that many keyboards have
instead. The rules become part of a SentencePiece model, so that every program that reads the model
applies them. `lxsr prepare` uses them with the option `normalisation: folded`.
"""

import io
import re
import struct
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from sentencepiece import SentencePieceTrainer

from fairseq_lxsr.text.sentencepiece_model import read_sentencepiece

# Name of the folding rules in SentencePiece models, and the built-in rules that they extend.
FOLDED = "folded"
BASE_RULES = "nmt_nfkc"
# Replacements of letters, marks and punctuation.
LETTERS = {
    # Persian, Kurdish and Urdu variants of Arabic letters, and Arabic letters whose hamza or dots
    # are often left out.
    **dict.fromkeys("ىیېےۓ", "ي"),
    **dict.fromkeys("کڪ", "ك"),
    **dict.fromkeys("ہھەۀۂة", "ه"),
    **dict.fromkeys("أإآٱ", "ا"),
    "ؤ": "و",
    "ئ": "ي",
    # Greek vowels lose their accents, because Greek capitals have none.
    **dict(zip("άέήίόύώΐΰ", "αεηιουωϊϋ", strict=True)),
    # Romanian letters with a comma below get a cedilla, which older keyboards have instead.
    "ș": "ş",
    "ț": "ţ",
    # The lowercase of a Turkish capital I has no dot, but other languages' rules give i.
    "ı": "i",
    "ß": "ss",
    "œ": "oe",
    "ё": "е",
    # The Devanagari nukta and chandrabindu are often left out.
    "\u093c": "",
    "ऩ": "न",
    "ऱ": "र",
    "ऴ": "ळ",
    "ँ": "ं",
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("`´ʹʻʼʽˈ‘’‛′՚׳", "'"),
    **dict.fromkeys("“”„‟«»〝〞〟״", '"'),
}
# Hebrew points and accents.
HEBREW_MARKS = (
    *range(0x591, 0x5BE),
    0x5BF,
    0x5C1,
    0x5C2,
    0x5C4,
    0x5C5,
    0x5C7,
)
# Thai: เ may be typed twice instead of แ, and the vowel am may be typed before the tone mark.
THAI_TONES = "\u0e48\u0e49\u0e4a\u0e4b"
NIKHAHIT = "\u0e4d"
AA = "\u0e32"
AM = "\u0e33"
# Vietnamese: the tone mark of these vowel pairs may be on the first or on the second letter.
VIETNAMESE_VOWELS = ("oa", "oe", "uy")
VIETNAMESE_TONES = "\u0300\u0301\u0303\u0309\u0323"
# There are no digits beyond Unicode's first two planes.
DIGITS_END = 0x20000
# Bits of a node in the double array of a compiled rule (Darts-clone).
_HAS_VALUE = 1 << 8
_IS_FAR = 1 << 9
_LABEL = 1 << 31 | 0xFF
_VALUE = (1 << 31) - 1


def sequences() -> dict[str, str]:
    """Return the rules for sequences of two or three characters, with their replacements.

    Programs that normalize each character separately need an additional step for these rules.
    """
    rules = {"\u0e40\u0e40": "\u0e41"}
    for tone in THAI_TONES:
        for typed in (NIKHAHIT + tone + AA, NIKHAHIT + AA + tone, AM + tone):
            rules[typed] = tone + NIKHAHIT + AA
    for vowels, tone in product(VIETNAMESE_VOWELS, VIETNAMESE_TONES):
        old = unicodedata.normalize("NFC", vowels[0] + tone + vowels[1])
        rules[old] = unicodedata.normalize("NFC", vowels + tone)
    return rules


@cache
def letters() -> dict[str, str]:
    """Return the rules for single characters in Unicode normal form NFKC, with replacements."""
    rules = dict(LETTERS)
    for code in range(128, DIGITS_END):
        digit = chr(code)
        if digit.isdecimal() and unicodedata.normalize("NFKC", digit) == digit:
            rules[digit] = str(unicodedata.digit(digit))
    rules.update(dict.fromkeys(map(chr, HEBREW_MARKS), ""))
    return rules


@cache
def _folds() -> dict[str, str]:
    return letters() | sequences()


def fold(text: str) -> str:
    """Fold the letters of lowercased text in Unicode normal form NFKC.

    A SentencePiece model with the rules does the same to such text.

        fold("naïve 東京 ٣")  # "naïve 東京 3"
    """
    text = _sequence_pattern().sub(lambda match: _folds()[match[0]], text)
    return text.translate(_letter_table())


@cache
def _sequence_pattern() -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sequences())))


@cache
def _letter_table() -> dict[int, str]:
    return str.maketrans(letters())


def folded_charsmap() -> bytes:
    """Return the compiled rules of a SentencePiece model that normalizes text and folds letters."""
    with tempfile.TemporaryDirectory() as folder:
        model = _trained_model(rule_file=str(write_folded_rules(Path(folder))))
    return read_sentencepiece(model).charsmap


def _folded_rules(base: Mapping[str, str]) -> dict[str, str]:
    """Return the base rules with folded replacements, and the folding rules."""
    folds = _folds()
    capitals = {}
    for old, new in folds.items():
        capital = old.upper()
        if len(capital) == len(old) and capital not in folds:
            capitals[capital] = new.upper()
    table = str.maketrans({old: new for old, new in capitals.items() if len(old) == 1})
    rules = {old: fold(new).translate(table) for old, new in base.items()}
    for old, new in (folds | capitals).items():
        # An accented letter may be typed as a letter and a mark, also within a sequence.
        rules.setdefault(unicodedata.normalize("NFD", old), new)
    # The base rules make a space and a mark of an acute accent (U+00B4).
    rules |= capitals | folds
    return {old: new for old, new in rules.items() if old != new}


def write_folded_rules(folder: Path) -> Path:
    """Write a file for the option `normalization_rule_tsv` of SentencePiece, and return its path.

    The rules normalize text like `BASE_RULES`, and then fold its letters.

    Args:
        folder: existing folder for the file.
    """
    model = _trained_model(BASE_RULES)
    rules = _folded_rules(read_rules(read_sentencepiece(model).charsmap))
    lines = []
    for old, new in rules.items():
        codes = [" ".join(f"{ord(letter):X}" for letter in text) for text in (old, new)]
        lines.append("\t".join(codes) + "\n")
    path = folder / "rules.tsv"
    path.write_text("".join(lines), encoding="ascii")
    return path


def _trained_model(rule: str = "", rule_file: str = "") -> bytes:
    """Train a SentencePiece model on two letters, only to compile its normalization rules.

    Args:
        rule: name of built-in rules; empty if a file is given.
        rule_file: path of a file with rules; empty if a name is given.
    """
    model = io.BytesIO()
    SentencePieceTrainer.Train(
        sentence_iterator=iter("ab"),
        model_writer=model,
        model_type="char",
        vocab_size=6,
        normalization_rule_name=rule,
        normalization_rule_tsv=rule_file,
        minloglevel=2,
    )
    return model.getvalue()


def read_rules(charsmap: bytes) -> dict[str, str]:
    """Decode compiled normalization rules into a dictionary from sequences to replacements.

    The compiled form starts with the size of a double array in bytes. The array (Darts-clone)
    follows, with the sequences in UTF-8, and then the replacements, each ending with a zero byte.
    """
    (size,) = struct.unpack_from("<I", charsmap)
    nodes = np.frombuffer(charsmap, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    replacements = charsmap[4 + size :]
    rules = {}
    for sequence, offset in _sequences(nodes):
        end = replacements.index(b"\0", offset)
        rules[sequence.decode()] = replacements[offset:end].decode()
    return rules


def _sequences(nodes: np.ndarray) -> Iterator[tuple[bytes, int]]:
    """Yield each sequence in a double array, and the offset of its replacement."""
    labels = np.arange(1, 256)
    waiting = [(0, b"")]
    while waiting:
        place, prefix = waiting.pop()
        node = int(nodes[place])
        first = place ^ (node >> 10) << ((node & _IS_FAR) >> 6)
        if node & _HAS_VALUE:
            yield prefix, int(nodes[first]) & _VALUE
        children = first ^ labels
        children[children >= len(nodes)] = 0
        is_child = nodes[children] & _LABEL == labels
        for label in labels[is_child].tolist():
            waiting.append((first ^ label, prefix + bytes([label])))
