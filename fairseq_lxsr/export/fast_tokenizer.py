"""What exports for other programs share: a Hugging Face tokenizer, and how their vectors are
compared with ours.
"""

import base64
import io
import json
import tempfile
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sentencepiece import SentencePieceTrainer

from fairseq_lxsr.characters import in_brackets, steps_of
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import DEFAULT_ARCHITECTURE
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import BLANKS
from fairseq_lxsr.text.case import DOT, DOTTED, MARKS
from fairseq_lxsr.text.sentencepiece_model import (
    BPE,
    BYTE,
    NORMAL,
    UNIGRAM,
    SentencePieceFile,
    read_sentencepiece,
)
from fairseq_lxsr.text.tokenizer import MASK, PAD, UNK, Tokenizer, is_word
from fairseq_lxsr.text.words import WORD_START

EXPORTED_BY = {"exported_by": "fairseq-lxsr"}  # in the JSON of exported folders
EXPORT_SIGN = '"exported_by": "fairseq-lxsr"'  # only a folder that has it is replaced
LARGEST_DIFFERENCE = 1e-4  # of a coordinate of a vector, float32
MARKS_APART = "\ufdd0"  # no character
UNKNOWN_COST = 10.0  # what SentencePiece takes off the least score for an unknown letter
# texts on which the two tokenizers are compared, in addition to text of the user
SAMPLE = (
    "The quick brown fox jumps over the lazy dog.",
    "  Où   est la bibliothèque ?  Ça coûte 12,50 €… «\u00a0ici\u00a0» ",
    "Straße, \uff26\uff35\uff2c\uff2c\uff0d\uff37 ﬁne ½ №5 e\u0301te\u0301 — naïve",
    "printf('%s', a_b) ; x == y && ~/.config/file-name.txt http://a.b/c?d=e",
    "Привет, мир! 你好\uff0c世界。 こんにちは 안녕하세요 مرحبا",
    "aaaaaaaa bbbb abababab 1234567890 1,000,000.00",
    "ΔΡΟΜΟΣ Σ ΣΑΣ Λ.Σ. ΔΡΟ\u0301Σ λΣ\u0301λ 中Σ σας it\x92s here e\u0302\u0301 a\u0323\u0302 محم\u0651\u064eد",
    "hy\u00adphen \u2060wo\u200brd می\u200cشود ภาษา\u200bไทย İSTANBUL i\u0328\u0307 №5 \U0001d400 ❤\ufe0f",
    "สวัสดีครับ 🚀!",
    "the <mask> of <pad> and <unk> in <s> </s>",
    "\uff76\uff9e\uff72\uff84\uff9e\uff8c\uff9e\uff6f\uff78 \uff8a\uff9f\uff98 か\u3099っこう ハ\u309aン",
)
# Python lower-cases to ς after a cased letter and before none, ignoring marks and dots between
_CASED = r"[\p{Lu}\p{Ll}\p{Lt}]"
FINAL_SIGMA = rf"(?<={_CASED}|{_CASED}[.':\u2019\p{{M}}])Σ(?![.':\u2019\p{{M}}]*{_CASED})"
# after two marks at most
DOT_AFTER_DOT = f"(?<={DOTTED}|{DOTTED}{MARKS}|{DOTTED}{MARKS}{MARKS}){DOT}"
# Latin letters with two marks, as Vietnamese has: the library composes one mark, SentencePiece
# composes both
TWO_MARKS = {
    text: letter
    for letter in map(chr, (*range(0xC0, 0x250), *range(0x1E00, 0x1F00)))
    if len(text := unicodedata.normalize("NFD", letter)) == 3
}
# letters of which the library composes none, six bytes with the mark: kana, whose marks of half
# width become these first, and a few of Greek and Devanagari
KANA = range(0x3041, 0x30FF)
VOICING = {"\uff9e": "\u3099", "\uff9f": "\u309a"}
VOICED = {
    text: letter
    for kana in map(chr, (*KANA, *range(0xFF66, 0xFF9E)))
    for text in (kana + mark for mark in VOICING.values())
    if len(letter := unicodedata.normalize("NFKC", text)) == 1
}
MARKED = {
    unicodedata.normalize("NFD", letter): letter for letter in "\u0390\u03b0\u0929\u0931\u0934"
}


def check_exportable(encoder: SentenceEncoder, form: str) -> None:
    """Check that another program can run this encoder."""
    kind = encoder.config["architecture"]
    if kind == DEFAULT_ARCHITECTURE:
        pooling, split_han = encoder.size.pooling, encoder.tokenizer.options.split_han
        if pooling == "mean" and not split_han:
            return
        kind = f"pooling {pooling}" if pooling != "mean" else "split_han"
    raise InputError(
        f"a model of {kind} cannot be written for {form}; use the model folder itself, or `lxsr embed`"
    )


def extended_symbols(tokenizer: Tokenizer, rows: int) -> list[str]:
    """List the symbols of the embedding rows, followed by the pieces without a row, which are read
    as unknown.
    """
    symbols = tokenizer.symbols
    if len(symbols) < rows:
        symbols = [*symbols, MASK]  # training adds it to the dictionary
    known = set(symbols)
    return [*symbols, *(piece for piece in tokenizer.all_pieces() if piece not in known)]


def fast_tokenizer(tokenizer: Tokenizer, symbols: Sequence[str]) -> Any:
    """Build a tokenizer of the library tokenizers, with the same pieces as SentencePiece; see
    `extended_symbols`.

    A text without a known word keeps its pieces, because a BERT cannot encode a batch without any.
    """
    from tokenizers import Tokenizer as FastTokenizer

    return FastTokenizer.from_str(json.dumps(tokenizer_json(tokenizer, symbols, emptied=False)))


def tokenizer_json(
    tokenizer: Tokenizer,
    symbols: Sequence[str],
    longest: int | None = None,
    padding_idx: int | None = None,
    emptied: bool = True,
    unknown: str = "",
) -> dict[str, Any]:
    """Describe the tokenizer as tokenizer.json of the library tokenizers does; the library itself
    is not needed.

    `symbols`: see `extended_symbols`. A sentence is cut after `longest` pieces, where that is
    given, and those of a batch are padded with `padding_idx`. A text without a known word has no
    pieces where `emptied`. Unknown letters are read as the symbol `unknown`, for libraries that
    leave the unknown piece out of a mean.
    """
    file = read_sentencepiece(tokenizer.serialized_model())
    if file.kind not in (BPE, UNIGRAM):
        raise InputError(
            "a model of text in words, whose SentencePiece model is neither BPE nor unigram, cannot be written for "
            "other programs; use the model folder itself, or `lxsr embed`"
        )
    cut = {"direction": "Right", "max_length": longest, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": padding_idx,
        "pad_type_id": 0,
        "pad_token": PAD,
    }
    return {
        "version": "1.0",
        "truncation": None if longest is None else cut,
        "padding": None if padding_idx is None else padding,
        "added_tokens": [],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                *(
                    _replace({"Regex": pattern}, by)
                    for pattern, by in steps_of(tokenizer.options.version)
                ),
                *_rules(dict(zip(*2 * [iter(tokenizer.options.read_as)], strict=True))),
                *_normalizers(tokenizer, file),
                *(_emptied(tokenizer, file) if emptied else ()),
                *(_renamed(file, unknown) if unknown else ()),
            ],
        },
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": WORD_START,
            "prepend_scheme": "always",
            "split": True,
        },
        "post_processor": None,
        "decoder": None,
        "model": _algorithm(file, symbols, unknown),
    }


def _rules(letters: Mapping[str, str]) -> list[dict[str, Any]]:
    """Describe which letters are read as others; thousands of rules are one step, which
    SentencePiece compiles.
    """
    if not letters:
        return []
    with tempfile.TemporaryDirectory() as folder:
        rules, model = Path(folder) / "rules.tsv", io.BytesIO()
        codes = (" ".join(f"{ord(letter):X}" for letter in old) for old in letters)
        lines = (f"{old}\t{ord(new):X}\n" for old, new in zip(codes, letters.values(), strict=True))
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


def _normalizers(tokenizer: Tokenizer, file: SentencePieceFile) -> list[dict[str, Any]]:
    """Describe the steps from visible text to SentencePiece's normal form."""
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    lowercase, newer = tokenizer.options.lowercase, tokenizer.options.version > 1
    steps = [_replace({"Regex": BLANKS}, " "), strip]
    if lowercase:
        steps += [_replace({"Regex": FINAL_SIGMA}, "ς"), {"type": "Lowercase"}]
        steps += [_replace({"Regex": DOT_AFTER_DOT}, "")] if newer else []
    if file.charsmap:
        steps += _composed(tokenizer, file)
        # the library reads a letter and its marks as the letter with one mark, where it knows no
        # letter with all, and a letter that is another in Unicode's form NFKC without marks
        steps.append(
            _replace(
                {"Regex": "(?<=[\\p{M}Ĳĳٵ-ٸ\ufb00-\ufefc\uff00-\uffef])(?=\\p{M})"}, MARKS_APART
            )
        )
        steps += [_precompiled(file.charsmap), _replace({"String": MARKS_APART}, "")]
        # letters in disguise are plain ones now
        steps += [{"type": "Lowercase"}] if lowercase and newer else []
    return [*steps, _replace({"Regex": " {2,}"}, " "), strip]


def _composed(tokenizer: Tokenizer, file: SentencePieceFile) -> list[dict[str, Any]]:
    """Describe which letters and marks become one letter that the library would leave apart; models
    differ in them.
    """
    steps = _rules(_done_by(tokenizer, TWO_MARKS))
    # each step costs time, and where no piece has these letters they are unknown in either form
    known = {letter for piece in file.pieces for letter in piece.text}
    half_width = _done_by(tokenizer, {"\uff76\uff9e": "\u30ac"})
    pairs = _done_by(tokenizer, VOICED | MARKED)
    if not file.byte_fallback:
        forms = {
            text: {unicodedata.normalize("NFKC", text[0]), letter} for text, letter in pairs.items()
        }
        pairs = {text: letter for text, letter in pairs.items() if known & forms[text]}
    pairs = VOICING | pairs if half_width and pairs else pairs
    return [*steps, *(_replace({"String": text}, letter) for text, letter in pairs.items())]


def _done_by(tokenizer: Tokenizer, letters: Mapping[str, str]) -> dict[str, str]:
    """Return those of these texts that the SentencePiece model reads as these letters."""
    read, meant = (
        tokenizer.normalized([f"0{text}" for text in texts])
        for texts in (letters, letters.values())
    )
    pairs = zip(letters.items(), read, meant, strict=True)
    return {text: letter for (text, letter), one, other in pairs if one == other}


def _emptied(tokenizer: Tokenizer, file: SentencePieceFile) -> list[dict[str, Any]]:
    """Describe the step that empties a text with an unknown letter and no known word, as
    `Tokenizer.encode_known`.
    """
    if file.byte_fallback:
        return []  # nothing is unknown
    pieces = zip(tokenizer.all_pieces(), tokenizer.piece_ids.tolist(), strict=True)
    known = {
        piece for piece, number in pieces if number != tokenizer.unknown and len(piece) == 1
    } - {WORD_START}
    in_words = _brackets(letter for letter in known if is_word(letter))
    others = _brackets({" ", *(letter for letter in known if not is_word(letter))})
    return [_replace({"Regex": f"^[{others}]*[^{in_words}{others}][^{in_words}]*$"}, "")]


def _renamed(file: SentencePieceFile, unknown: str) -> list[dict[str, Any]]:
    """Describe the step that writes one symbol in place of adjacent letters that are no piece."""
    if file.byte_fallback:
        return []
    known = {piece.text for piece in file.pieces if piece.type == NORMAL and len(piece.text) == 1}
    return [_replace({"Regex": f"[^{_brackets(known - {WORD_START} | {' '})}]+"}, unknown)]


def _brackets(letters: Iterable[str]) -> str:
    """Write letters as the content of a regular expression's brackets; adjacent ones are a
    range.
    """
    codes = np.array(sorted(map(ord, letters)))
    parts = np.split(codes, np.flatnonzero(np.diff(codes) > 1) + 1)
    return in_brackets((int(part[0]), int(part[-1])) for part in parts)


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _algorithm(file: SentencePieceFile, symbols: Sequence[str], unknown: str) -> dict[str, Any]:
    """Describe BPE or unigram over our symbols; symbols that SentencePiece never gives score too
    low to be chosen.
    """
    scores = {piece.text: piece.score for piece in file.pieces if piece.type == NORMAL}
    if unknown:
        scores[unknown] = min(scores.values()) - UNKNOWN_COST
    if file.kind == UNIGRAM:
        of_bytes = {piece.text for piece in file.pieces if piece.type == BYTE}
        never = min(scores.values()) - 1e4
        # no text can equal a symbol with a blank before it
        names = (
            symbol if symbol in scores or symbol in of_bytes else f" {symbol}" for symbol in symbols
        )
        return {
            "type": "Unigram",
            "unk_id": list(symbols).index(UNK),
            "vocab": [(name, scores.get(name, never)) for name in names],
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


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that BPE joins, in the order of their scores."""
    merges = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                merges.append((-score, min(scores[left], scores[right]), left, right))
    return [(left, right) for *_, left, right in sorted(merges)]
