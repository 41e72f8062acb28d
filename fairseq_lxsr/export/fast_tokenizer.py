"""Converts the tokenizer to a Hugging Face tokenizer.json, which other programs need."""

import base64
import io
import itertools
import json
import math
import tempfile
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentencepiece import SentencePieceTrainer

from fairseq_lxsr.characters import JOINERS, in_brackets
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import DEFAULT_ARCHITECTURE
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import BLANKS
from fairseq_lxsr.text import folding
from fairseq_lxsr.text.case import DOT, DOTTED, MARKS
from fairseq_lxsr.text.sentencepiece_model import (
    BPE,
    BYTE,
    NORMAL,
    UNIGRAM,
    SentencePieceFile,
    read_sentencepiece,
)
from fairseq_lxsr.text.tokenizer import PAD, UNK, Tokenizer, is_word
from fairseq_lxsr.text.words import WORD_START

# Marks the JSON of exported folders; a later export replaces only folders with this mark.
EXPORTED_BY = {"exported_by": "fairseq-lxsr"}
EXPORT_SIGN = '"exported_by": "fairseq-lxsr"'
# Largest allowed difference between coordinates of float32 embeddings.
LARGEST_DIFFERENCE = 1e-4
# A Unicode noncharacter, which does not occur in ordinary text.
NONCHARACTER = "\ufdd0"
# Penalty of an unknown letter relative to the least likely piece, as in SentencePiece.
UNKNOWN_COST = 10.0
# Penalty of special symbols relative to the least likely piece: they are never chosen.
NEVER_COST = 1e4
# Maximum number of spellings of one piece; a piece of the packaged model has up to 160.
MAX_SPELLINGS = 1000
# Texts on which an exported model is compared with the original, in addition to the user's text.
SAMPLE = (
    "The quick brown fox jumps over the lazy dog.",
    "  Où   est la bibliothèque ?  Ça coûte 12,50 €… «\u00a0ici\u00a0» ",
    "Straße, \uff26\uff35\uff2c\uff2c\uff0d\uff37 ﬁne ½ №5 e\u0301te\u0301 — naïve",
    "printf('%s', a_b) ; x == y && ~/.config/file-name.txt http://a.b/c?d=e",
    "Привет, мир! 你好\uff0c世界。 こんにちは 안녕하세요 مرحبا",
    "aaaaaaaa bbbb abababab 1234567890 1,000,000.00",
    "ΔΡΟΜΟΣ Σ ΣΑΣ Λ.Σ. ΔΡΟ\u0301Σ λΣ\u0301λ 中Σ σας it\x92s here e\u0302\u0301 a\u0323\u0302 "
    "محم\u0651\u064eد",
    "hy\u00adphen \u2060wo\u200brd می\u200cشود ภาษา\u200bไทย İSTANBUL i\u0328\u0307 №5 \U0001d400 "
    "❤\ufe0f",
    "สวัสดีครับ 🚀!",
    "<p class='x'>**Fett**[1] <b>c</b>, a_b \u6211 \u7231 [d](e.f) ## https://a.b/c</p> | #g 2**3",
    "M\u043e\u0441\u043a\u0432\u0430 A\u0398\u0397\u039d\u0391 10 k\u03a9 5 \u00b5m don\u00b4t",
    "the <mask> of <pad> and <unk> in <s> </s>",
    "\uff76\uff9e\uff72\uff84\uff9e\uff8c\uff9e\uff6f\uff78 \uff8a\uff9f\uff98 "
    "か\u3099っこう ハ\u309aン",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \u110b\u1161\u11ab\u1102\u1167\u11bc \ud558\u11ab",
)
# Python lower-cases Σ to ς after a cased letter unless another cased letter follows; marks
# and dots in between are ignored.
_CASED = r"[\p{Lu}\p{Ll}\p{Lt}]"
FINAL_SIGMA = rf"(?<={_CASED}|{_CASED}[.':\u2019\p{{M}}])Σ(?![.':\u2019\p{{M}}]*{_CASED})"
# A second dot after a dotted letter, with at most two marks in between.
DOT_AFTER_DOT = f"(?<={DOTTED}|{DOTTED}{MARKS}|{DOTTED}{MARKS}{MARKS}){DOT}"
# Maps the single letters of some Korean syllables to the form that SentencePiece composes.
SYLLABLES = {"\u1112\u1161\u11ab": "\ud55c", "\u1100\u1173": "\uadf8"}
# Positions where Unicode NFC composes letters but SentencePiece does not: before marks, for which
# SentencePiece has its own rules, and between a syllable and a final consonant.
NOT_COMPOSED = r"(?<=.)(?=\p{M})|(?<=[\uac00-\ud7a3])(?=[\u11a8-\u11c2])"
# The position of a mark after another mark, or after a letter that Unicode NFKC replaces.
MARK_AFTER_COMPOSED = "(?<=[\\p{M}Ĳĳ\u3131-\u318eٵ-ٸ\ufb00-\ufefc\uff00-\uffef])(?=\\p{M})"


# An acute accent by itself, which is typed as an apostrophe.
ACUTE_ACCENT = "\u00b4"
# The only mark that composes with letters that are folded.
HAMZA_ABOVE = "\u0654"
# Thai and Lao vowels that the library joins to the letter before them, as it does with marks.
VOWELS_AM = "\u0e33\u0eb3"


def _letters_with_two_marks() -> dict[str, str]:
    """Map the decomposed form of every Latin letter with two marks to the letter."""
    letters = {}
    for code in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00)):
        decomposed = unicodedata.normalize("NFD", chr(code))
        if len(decomposed) == 3:
            letters[decomposed] = chr(code)
    return letters


def _voiced_kana() -> dict[str, str]:
    """Map each kana with a voicing mark to the single voiced kana."""
    letters = {}
    for code in (*range(0x3041, 0x30FF), *range(0xFF66, 0xFF9E)):
        for mark in VOICING.values():
            composed = unicodedata.normalize("NFKC", chr(code) + mark)
            if len(composed) == 1:
                letters[chr(code) + mark] = composed
    return letters


# The tokenizers library composes a letter with only one mark, but SentencePiece composes it with
# two, for example in Vietnamese.
TWO_MARKS = _letters_with_two_marks()
# The library does not compose letters that take six bytes with their mark: kana, whose half-width
# marks are replaced first, and a few Greek and Devanagari letters.
VOICING = {"\uff9e": "\u3099", "\uff9f": "\u309a"}
VOICED = _voiced_kana()
MARKED = {
    unicodedata.normalize("NFD", letter): letter for letter in "\u0390\u03b0\u0929\u0931\u0934"
}


def check_exportable(encoder: SentenceEncoder) -> None:
    """Check that other programs can run an encoder.

    Args:
        encoder: the encoder to export.

    Raises:
        InputError: if the encoder is not a transformer with mean pooling.
    """
    architecture = encoder.config["architecture"]
    kind = f"architecture {architecture}"
    if architecture == DEFAULT_ARCHITECTURE:
        pooling = encoder.size.pooling
        if pooling != "mean":
            kind = f"pooling {pooling}"
        elif encoder.tokenizer.options.split_han:
            kind = "split_han"
        else:
            return
    raise InputError(
        f"a model with {kind} cannot be exported to onnx; use the model folder itself, or "
        "`lxsr embed`"
    )


def with_spellings(tokenizer: Tokenizer, symbols: Sequence[str]) -> list[str]:
    """Append the spellings of pieces with letters that the text options replace.

    For example, the pieces of a model that reads traditional Chinese as simplified Chinese get
    traditional spellings. transformers.js needs them, because it ignores the step of tokenizer.json
    that replaces letters.

    Args:
        tokenizer: the tokenizer of the model.
        symbols: symbols in the order of their ids; see `extended_symbols`.
    """
    table = tokenizer.options.table
    letters_of: dict[str, list[str]] = defaultdict(list)
    for code, replacement in table.items():
        letters_of[replacement].append(chr(code))
    extended = dict.fromkeys(symbols)
    for symbol in symbols:
        choices = [[letter, *letters_of.get(letter, ())] for letter in symbol]
        if 1 < math.prod(map(len, choices)) <= MAX_SPELLINGS:
            extended.update(dict.fromkeys(map("".join, itertools.product(*choices))))
    return list(extended)


def rows_of_symbols(
    tokenizer: Tokenizer, symbols: Sequence[str], num_rows: int
) -> NDArray[np.int64]:
    """Return the row of the embedding table for each symbol [symbols].

    A spelling has the row of its piece, and a piece outside the dictionary that of the unknown
    piece.

    Args:
        tokenizer: the tokenizer of the model.
        symbols: symbols in the order of their ids; see `extended_symbols` and `with_spellings`.
        num_rows: number of rows of the embedding table.
    """
    row_of = {symbol: row for row, symbol in enumerate(symbols[:num_rows])}
    rows = np.arange(len(symbols))
    for index in range(num_rows, len(symbols)):
        piece = symbols[index].translate(tokenizer.options.table)
        rows[index] = row_of.get(piece, tokenizer.unknown)
    return rows


def fast_tokenizer(tokenizer: Tokenizer, symbols: Sequence[str]) -> Any:
    """Build a tokenizer for the tokenizers library that splits text like SentencePiece.

    A sentence without a known word keeps its pieces, because a BERT model cannot encode a batch of
    empty sentences.

    Args:
        tokenizer: the tokenizer of the model.
        symbols: symbols in the order of their ids; see `extended_symbols`.
    """
    from tokenizers import Tokenizer as FastTokenizer

    content = tokenizer_json(tokenizer, symbols, empty_unknown=False)
    return FastTokenizer.from_str(json.dumps(content))


def tokenizer_json(
    tokenizer: Tokenizer,
    symbols: Sequence[str],
    max_length: int | None = None,
    padding_idx: int | None = None,
    empty_unknown: bool = True,
    unknown: str = "",
    javascript: bool = False,
) -> dict[str, Any]:
    """Return the content of tokenizer.json; the tokenizers library is not needed.

    Args:
        tokenizer: the tokenizer of the model.
        symbols: symbols in the order of their ids; see `extended_symbols`.
        max_length: maximum number of pieces; longer sentences are truncated. None for no limit.
        padding_idx: id that pads the sentences of a batch; None for no padding.
        empty_unknown: whether a sentence without a known word has no pieces.
        unknown: symbol that replaces unknown letters, for libraries that exclude the unknown piece
            from the mean.
        javascript: whether to repeat the folding of letters in steps for transformers.js, which
            ignores compiled rules. They take time in Python, where they change nothing.

    Raises:
        InputError: if the SentencePiece model is neither BPE nor unigram.
    """
    file = read_sentencepiece(tokenizer.serialized_model())
    if file.kind not in (BPE, UNIGRAM):
        raise InputError(
            "the SentencePiece model is neither BPE nor unigram, so the model cannot be exported "
            "to other programs; use the model folder itself, or `lxsr embed`"
        )
    truncation = {
        "direction": "Right",
        "max_length": max_length,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    padding = {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": padding_idx,
        "pad_type_id": 0,
        "pad_token": PAD,
    }
    normalizers = _visible_text(tokenizer) + _normal_form(tokenizer, file, javascript)
    if empty_unknown and not file.byte_fallback:
        normalizers.append(_empty_unknown_text(tokenizer, symbols))
    if unknown and not file.byte_fallback:
        normalizers.append(_rename_unknown_letters(tokenizer, file, symbols, unknown))
    return {
        "version": "1.0",
        "truncation": None if max_length is None else truncation,
        "padding": None if padding_idx is None else padding,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": WORD_START,
            "prepend_scheme": "always",
            "split": True,
        },
        "post_processor": None,
        "decoder": None,
        "model": _segmentation(tokenizer, file, symbols, unknown),
    }


def _visible_text(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the first normalizer steps: drop invisible characters, replace equivalent letters."""
    options = tokenizer.options
    steps = [_replace({"Regex": pattern}, content) for pattern, content in options.steps]
    # In `read_as`, letters alternate with their replacements.
    letters = iter(options.read_as)
    return steps + _rules(dict(zip(letters, letters, strict=True)))


def _rules(letters: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a normalizer step that replaces letters, or no step if there are none to replace.

    SentencePiece compiles the replacements, because one step is faster than one per letter.
    """
    if not letters:
        return []
    lines = []
    for old, new in letters.items():
        codes = " ".join(f"{ord(letter):X}" for letter in old)
        lines.append(f"{codes}\t{ord(new):X}\n")
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.tsv"
        rules.write_text("".join(lines), encoding="ascii")
        SentencePieceTrainer.Train(
            sentence_iterator=iter("ab"),
            model_writer=model,
            model_type="char",
            vocab_size=6,
            normalization_rule_tsv=str(rules),
            minloglevel=2,
        )
    return [_precompiled(read_sentencepiece(model.getvalue()).charsmap)]


def _precompiled(charsmap: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}


def _normal_form(
    tokenizer: Tokenizer, file: SentencePieceFile, javascript: bool
) -> list[dict[str, Any]]:
    """Return the normalizer steps that convert visible text to SentencePiece's normal form."""
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    lowercase = {"type": "Lowercase"}
    is_lowercased = tokenizer.options.lowercase
    is_plain = tokenizer.options.is_plain
    steps = [_replace({"Regex": BLANKS}, " "), strip]
    if is_lowercased:
        steps += [_replace({"Regex": FINAL_SIGMA}, "ς"), lowercase]
        if not is_plain:
            steps.append(_replace({"Regex": DOT_AFTER_DOT}, ""))
    if file.charsmap:
        if javascript:
            # Its normal form NFKC would make a space and a mark of the accent.
            for text, replacement in matching_rules(tokenizer, {ACUTE_ACCENT: "'"}).items():
                steps.append(_replace({"String": text}, replacement))
        steps += _compositions(tokenizer, file) + _separated_marks(tokenizer)
        # The library would compose a letter and its first mark if no composed letter has all
        # marks, and would normalize some letters only without marks. A character between letter and
        # mark prevents both.
        steps += [
            _replace({"Regex": MARK_AFTER_COMPOSED}, NONCHARACTER),
            _precompiled(file.charsmap),
            *_syllables(tokenizer),
            _replace({"String": NONCHARACTER}, ""),
        ]
        if javascript:
            steps += _folded_letters(tokenizer)
        # The library normalizes single letters, so sequences are replaced separately.
        for text, replacement in matching_rules(tokenizer, folding.sequences()).items():
            steps.append(_replace({"String": text}, replacement))
        if is_lowercased and not is_plain:
            # Normalization may have turned styled capitals into plain ones.
            steps.append(lowercase)
    return [*steps, _replace({"Regex": " {2,}"}, " "), strip]


def _compositions(tokenizer: Tokenizer, file: SentencePieceFile) -> list[dict[str, Any]]:
    """Return steps for letters with marks that SentencePiece composes but the library does not."""
    steps = _rules(matching_rules(tokenizer, TWO_MARKS))
    pairs = matching_rules(tokenizer, VOICED | MARKED)
    if not file.byte_fallback:
        # Every step costs time, and letters without a piece are unknown in either form.
        pairs = _pairs_with_piece(pairs, file)
    has_half_width = bool(matching_rules(tokenizer, {"\uff76\uff9e": "\u30ac"}))
    if has_half_width and pairs:
        pairs = VOICING | pairs
    for text, letter in pairs.items():
        steps.append(_replace({"String": text}, letter))
    return steps


def _separated_marks(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the step that separates folded letters from marks and joiners after them.

    Otherwise the library would replace the letter together with the mark, which would be lost.
    """
    composed: list[tuple[int, int]] = []
    uncomposed: list[tuple[int, int]] = []
    for letter in matching_rules(tokenizer, folding.letters()):
        is_composed = len(unicodedata.normalize("NFC", letter + HAMZA_ABOVE)) == 1
        (composed if is_composed else uncomposed).append((ord(letter), ord(letter)))
    if not uncomposed:
        return []
    mark = rf"(?=[\p{{M}}{JOINERS}{VOWELS_AM}])"
    pattern = f"(?<=[{in_brackets(uncomposed)}]){mark}"
    if composed:
        pattern += f"|(?<=[{in_brackets(composed)}])(?!{HAMZA_ABOVE}){mark}"
    return [_replace({"Regex": pattern}, NONCHARACTER)]


def _folded_letters(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return steps that fold single letters, one for each replacement."""
    letters = dict(folding.letters())
    if not tokenizer.options.lowercase:
        for letter, replacement in folding.letters().items():
            letters.setdefault(letter.upper(), replacement.upper())
    letters_of: dict[str, list[str]] = defaultdict(list)
    for letter, replacement in matching_rules(tokenizer, letters).items():
        # The capital of some letters is two letters, such as SS.
        if len(letter) == 1:
            letters_of[replacement].append(letter)
    steps = []
    for replacement, group in letters_of.items():
        steps.append(_replace({"Regex": f"[{_brackets(group)}]"}, replacement))
    return steps


def _syllables(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return steps that compose Korean letters to syllables, if SentencePiece does.

    There are too many syllables for rules, so Unicode NFC composes them. `NONCHARACTER` prevents
    NFC from composing or reordering other letters, and must be removed afterwards.
    """
    if len(matching_rules(tokenizer, SYLLABLES)) < len(SYLLABLES):
        return []
    return [_replace({"Regex": NOT_COMPOSED}, NONCHARACTER), {"type": "NFC"}]


def _pairs_with_piece(pairs: Mapping[str, str], file: SentencePieceFile) -> dict[str, str]:
    """Return the (letter, replacement) pairs whose letter occurs in a piece, marked or unmarked."""
    letters_of_pieces = {letter for piece in file.pieces for letter in piece.text}
    relevant = {}
    for text, letter in pairs.items():
        without_mark = unicodedata.normalize("NFKC", text[0])
        if without_mark in letters_of_pieces or letter in letters_of_pieces:
            relevant[text] = letter
    return relevant


def matching_rules(tokenizer: Tokenizer, letters: Mapping[str, str]) -> dict[str, str]:
    """Return the replacements that the SentencePiece model also makes."""
    texts = tokenizer.normalized([f"0{text}" for text in letters])
    replacements = tokenizer.normalized([f"0{letter}" for letter in letters.values()])
    matching = {}
    for (text, letter), normal, expected in zip(letters.items(), texts, replacements, strict=True):
        if normal == expected:
            matching[text] = letter
    return matching


def _empty_unknown_text(tokenizer: Tokenizer, symbols: Sequence[str]) -> dict[str, Any]:
    """Return the normalizer that empties a text of unknown characters without a known word.

    `Tokenizer.encode_known` does the same.
    """
    known_pieces = set()
    for piece, number in zip(tokenizer.all_pieces(), tokenizer.piece_ids.tolist(), strict=True):
        if number != tokenizer.unknown and len(piece) == 1 and piece != WORD_START:
            known_pieces.add(piece)
    word_letters = []
    other_letters = [" "]
    for symbol in symbols:
        # A spelling is known if its piece is.
        if symbol.translate(tokenizer.options.table) not in known_pieces:
            continue
        if is_word(symbol):
            word_letters.append(symbol)
        else:
            other_letters.append(symbol)
    words = _brackets(word_letters)
    rest = _brackets(other_letters)
    return _replace({"Regex": f"^[{rest}]*[^{words}{rest}][^{words}]*$"}, "")


def _rename_unknown_letters(
    tokenizer: Tokenizer, file: SentencePieceFile, symbols: Sequence[str], unknown: str
) -> dict[str, Any]:
    """Return the step that replaces each run of letters without a piece by one symbol."""
    letters = {" "}
    for piece in file.pieces:
        if piece.type == NORMAL and len(piece.text) == 1 and piece.text != WORD_START:
            letters.add(piece.text)
    spellings = [
        symbol for symbol in symbols if symbol.translate(tokenizer.options.table) in letters
    ]
    letters.update(spellings)
    return _replace({"Regex": f"[^{_brackets(letters)}]+"}, unknown)


def _brackets(letters: Iterable[str]) -> str:
    """Format letters as a regular expression character class, with ranges."""
    codes = np.array(sorted(set(map(ord, letters))))
    ranges = np.split(codes, np.flatnonzero(np.diff(codes) > 1) + 1)
    return in_brackets((int(part[0]), int(part[-1])) for part in ranges)


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _segmentation(
    tokenizer: Tokenizer, file: SentencePieceFile, symbols: Sequence[str], unknown: str
) -> dict[str, Any]:
    """Return the settings of the BPE or unigram model over the given symbols."""
    scores = {piece.text: piece.score for piece in file.pieces if piece.type == NORMAL}
    for symbol in symbols:
        # A spelling has the score of its piece.
        piece = symbol.translate(tokenizer.options.table)
        if piece in scores:
            scores.setdefault(symbol, scores[piece])
    if unknown:
        scores[unknown] = min(scores.values()) - UNKNOWN_COST
    if file.kind == UNIGRAM:
        return {
            "type": "Unigram",
            "unk_id": list(symbols).index(UNK),
            "vocab": _unigram_vocabulary(file, symbols, scores),
            "byte_fallback": file.byte_fallback,
        }
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": UNK,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": file.byte_fallback,
        "ignore_merges": False,
        "vocab": {symbol: index for index, symbol in enumerate(symbols)},
        "merges": _merges(scores),
    }


def _unigram_vocabulary(
    file: SentencePieceFile, symbols: Sequence[str], scores: Mapping[str, float]
) -> list[tuple[str, float]]:
    """Return the symbols with their unigram scores."""
    bytes_of_file = {piece.text for piece in file.pieces if piece.type == BYTE}
    lowest_score = min(scores.values()) - NEVER_COST
    vocabulary = []
    for symbol in symbols:
        is_piece = symbol in scores or symbol in bytes_of_file
        # No text matches a symbol that begins with a space.
        name = symbol if is_piece else f" {symbol}"
        vocabulary.append((name, scores.get(name, lowest_score)))
    return vocabulary


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that BPE merges; the merge with the highest score comes first."""
    merges = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left = piece[:cut]
            right = piece[cut:]
            if left in scores and right in scores:
                merges.append((-score, min(scores[left], scores[right]), left, right))
    return [(left, right) for *_, left, right in sorted(merges)]
