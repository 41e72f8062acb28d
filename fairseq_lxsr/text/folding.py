"""Folds letters: different ways to type the same text get one spelling.

For example, digits of every script become those of ASCII, Greek loses its accents, which capitals
do not have, and Persian letters become the Arabic letters that many keyboards have in their place.
The rules become part of a SentencePiece model, so that every program that reads the model applies
them. They are an option of `lxsr prepare` (`normalisation: folded`).
"""

import io
import re
import struct
import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from sentencepiece import SentencePieceTrainer

from fairseq_lxsr.text.sentencepiece_model import read_sentencepiece

# Name of the rules in SentencePiece models, and the rules of SentencePiece that they extend.
FOLDED = "folded"
BASE_RULES = "nmt_nfkc"
# Letters, marks and punctuation, and what replaces them.
LETTERS = {
    # Persian, Kurdish and Urdu letters, and spellings that leave out the hamza or the dots.
    **dict.fromkeys("ىیېےۓ", "ي"),
    **dict.fromkeys("کڪ", "ك"),
    **dict.fromkeys("ہھەۀۂة", "ه"),
    **dict.fromkeys("أإآٱ", "ا"),
    "ؤ": "و",
    "ئ": "ي",
    # Greek capitals have no accent.
    **dict(zip("άέήίόύώΐΰ", "αεηιουωϊϋ", strict=True)),
    # Romanian letters with a cedilla, which older keyboards have in place of the comma.
    "ș": "ş",
    "ț": "ţ",
    # Turkish capitals in text that is lowercased as in other languages.
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
# Thai: เ typed twice in place of แ, and the vowel am typed before the tone.
THAI_TONES = "\u0e48\u0e49\u0e4a\u0e4b"
NIKHAHIT = "\u0e4d"
AA = "\u0e32"
AM = "\u0e33"
# Vietnamese: the tone of these vowels stands on the first letter or on the second.
VIETNAMESE_VOWELS = ("oa", "oe", "uy")
VIETNAMESE_TONES = "\u0300\u0301\u0303\u0309\u0323"
# Bits of a node in the double array of a compiled rule (Darts-clone).
_HAS_VALUE = 1 << 8
_IS_FAR = 1 << 9
_LABEL = 1 << 31 | 0xFF
_VALUE = (1 << 31) - 1


def sequences() -> dict[str, str]:
    """Return the rules of two and three characters, and what replaces them.

    Programs that normalize one letter after the other need these rules as steps of their own.
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
    """Return the rules of single characters in the form NFKC, and what replaces them."""
    rules = dict(LETTERS)
    for code in range(128, sys.maxunicode + 1):
        digit = chr(code)
        if unicodedata.category(digit) == "Nd" and unicodedata.normalize("NFKC", digit) == digit:
            rules[digit] = str(unicodedata.digit(digit))
    rules.update(dict.fromkeys(map(chr, HEBREW_MARKS), ""))
    return rules


@cache
def _folds() -> dict[str, str]:
    return letters() | sequences()


def fold(text: str) -> str:
    """Return lowercased text, in the Unicode normal form NFKC, with folded letters.

    This is what a SentencePiece model with the rules does to such text.

        fold("naïve 東京 ٣")  # "naïve 東京 3"
    """
    return _pattern().sub(lambda match: _folds()[match[0]], text)


@cache
def _pattern() -> re.Pattern[str]:
    """Return a pattern of all sequences with a rule, of which the longest comes first."""
    sequences = sorted(_folds(), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, sequences)))


def folded_charsmap(charsmap: bytes) -> bytes:
    """Add the rules to a compiled normalization rule of SentencePiece.

    Args:
        charsmap: compiled rule, such as that of `nmt_nfkc`.

    Returns:
        The compiled rule that normalizes text as before, and then folds letters.
    """
    rules = _folded_rules(read_rules(charsmap))
    with tempfile.TemporaryDirectory() as folder:
        path = _write_rules(rules, Path(folder) / "rules.tsv")
        model = _trained_model(rule_file=str(path))
    return read_sentencepiece(model).charsmap


def _folded_rules(base: Mapping[str, str]) -> dict[str, str]:
    """Return all rules: those of the normal form with folded results, and those of letters."""
    rules = {old: fold(new) for old, new in base.items()}
    for old, new in _folds().items():
        rules.setdefault(old, new)
        # A letter may be typed as a letter and a mark, within a sequence too.
        decomposed = unicodedata.normalize("NFD", old)
        rules.setdefault(decomposed, new)
        capital = old.upper()
        if len(capital) == len(old):
            rules.setdefault(capital, new.upper())
    return {old: new for old, new in rules.items() if old != new}


def write_folded_rules(folder: Path) -> Path:
    """Write a file for the option `normalization_rule_tsv` of SentencePiece, and return its path.

    The rules are those of `BASE_RULES`, and then those of this module.
    """
    model = _trained_model(BASE_RULES)
    rules = _folded_rules(read_rules(read_sentencepiece(model).charsmap))
    return _write_rules(rules, folder / "rules.tsv")


def _write_rules(rules: Mapping[str, str], path: Path) -> Path:
    lines = []
    for old, new in rules.items():
        codes = [" ".join(f"{ord(letter):X}" for letter in text) for text in (old, new)]
        lines.append("\t".join(codes) + "\n")
    path.write_text("".join(lines), encoding="ascii")
    return path


def _trained_model(rule: str = "", rule_file: str = "") -> bytes:
    """Return a SentencePiece model with a normalization rule, and without useful pieces.

    Args:
        rule: name of a rule of SentencePiece, if there is no file.
        rule_file: path of a file of rules.
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
    """Return the rules of a compiled normalization rule: sequences, and what replaces them.

    The compiled form is the size of a double array, the array (Darts-clone) with the sequences in
    UTF-8, and the replacements, each of which ends with a zero byte.
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
    """Yield the sequences of a double array and their values."""
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
