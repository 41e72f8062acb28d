"""Splits text into pieces, in the same way for preparing training data and for encoding."""

import hashlib
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from fairseq_lxsr.characters import ARABIC_MARKS, DEFAULT_IGNORABLE, visible, without_marks
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.files.lines import BLANKS, read_lines
from fairseq_lxsr.options import at_least, check_fields, option
from fairseq_lxsr.text.case import STYLED_BLOCKS, lower
from fairseq_lxsr.text.sentencepiece_model import WORD, read_sentencepiece, words_model
from fairseq_lxsr.text.words import (
    WORD_START,
    FlatIds,
    WordPieces,
    is_marked,
    splits_words_independently,
)

# The first symbols of fairseq's dictionaries, and <mask>, which comes last
BOS = "<s>"
PAD = "<pad>"
EOS = "</s>"
UNK = "<unk>"
MASK = "<mask>"
SPECIAL = (BOS, PAD, EOS, UNK)

DICTIONARY_FILE = "dict.txt"
SENTENCEPIECE_FILE = "sentencepiece.model"
TEXT_FILE = "text.json"
# SentencePiece refuses lone surrogates
_BLANKS = re.compile(BLANKS.replace("[", r"[\ud800-\udfff", 1))
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
# Prefix of the entries that fairseq adds to reach a multiple of eight
FILLER = "madeupword"
# Special symbols, bytes and fillers
_NO_TEXT = re.compile(rf"<[^<>]+>|{FILLER}\d+")
# At most this share of the words of a lower-cased dictionary has capitals
MAX_CASED_SHARE = 0.01
# Pairs of letters that are not Latin
_READ_AS = re.compile(r"(?:[^\x00-\u024f\s]{2})*")
_WORD_CHARACTER = re.compile(r"[^\W_]")
# Version of the text normalization for new data
TEXT_VERSION = 3
# Number of texts that are searched together for characters that depend on the text version
TEXTS_PER_SEARCH = 64
# Batches with fewer characters are encoded in one thread
SINGLE_THREAD_CHARACTERS = 1000
# Blocks with characters that later text versions read differently: also the blank Braille cell, İ
# and the combining dot above
_ODD_BLOCKS = (
    *DEFAULT_IGNORABLE,
    *STYLED_BLOCKS,
    *ARABIC_MARKS,
    (0xFC5B, 0xFD3D),
    (0x2800, 0x2800),
    (0x130, 0x130),
    (0x307, 0x307),
)


@dataclass(frozen=True)
class TextOptions:
    """Treatment of text before SentencePiece; stored with the data and the model."""

    lowercase: bool = False
    split_han: bool = False  # every Chinese character becomes a word
    # 1: as before there was a number; 2: without characters that show nothing, and lower case
    # leaves no unknown mark; 3: Arabic without vowel marks
    version: int = option("of the reading of text", 1, at_least(1, TEXT_VERSION))
    read_as: str = ""  # characters, each followed by the one that it is read as: simplified Chinese for traditional

    def __post_init__(self):
        check_fields(self)
        if not _READ_AS.fullmatch(self.read_as) or len(self.table) * 2 != len(self.read_as):
            raise InputError(
                f"read_as {shown(self.read_as)}; expected pairs of letters beyond Latin, none twice"
            )

    @cached_property
    def table(self) -> dict[int, str]:
        """Return `read_as` for `str.translate`."""
        return str.maketrans(dict(zip(self.read_as[::2], self.read_as[1::2], strict=True)))

    @classmethod
    def load(cls, path: str | Path) -> "TextOptions":
        try:
            return cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"{path}: not a {TEXT_FILE} as `lxsr prepare` writes it ({error})"
            ) from None

    def record(self) -> dict[str, Any]:
        """Return what is stored; without what an older folder does not say, so that its fingerprint
        stays.
        """
        stored = asdict(self)
        later = {"version": 1, "read_as": ""}
        return {
            name: value
            for name, value in stored.items()
            if name not in later or value != later[name]
        }

    def dumps(self) -> str:
        return json.dumps(self.record(), indent=2) + "\n"


def normalise(text: str, options: TextOptions) -> str:
    """Replace white space and control characters by single blanks; lower-case and split Chinese as
    the options say.

    Since version 2 characters that show nothing are left out, since version 3 Arabic vowel marks.
    SentencePiece itself applies Unicode normalization (NFKC), which is part of its model.
    """
    if options.version > 1:
        text = without_marks(text) if options.version > 2 else visible(text)
    if options.read_as and not text.isascii():
        text = text.translate(options.table)
    if options.split_han:
        text = _HAN.sub(r" \g<0> ", text)
    if "  " in text or not text.isprintable():  # no other text has blanks to replace
        text = _BLANKS.sub(" ", text)
    text = text.strip()
    if not options.lowercase:
        return text
    return lower(text) if options.version > 1 else text.lower()


def normalise_all(texts: Sequence[str], options: TextOptions) -> list[str]:
    """Return what `normalise` returns for each text, faster than one by one."""
    plain_options = _first_version(options)
    normalised = []
    for start in range(0, len(texts), TEXTS_PER_SEARCH):
        part = texts[start : start + TEXTS_PER_SEARCH]
        # Texts without odd characters are the same in all versions, and version 1 is the fastest
        is_odd = options.version > 1 and _is_odd("".join(part))
        part_options = options if is_odd else plain_options
        normalised += [normalise(text, part_options) for text in part]
    return normalised


# The fields are checked whenever options are created, which takes time
@cache
def _first_version(options: TextOptions) -> TextOptions:
    return replace(options, version=1)


def _is_odd(text: str) -> bool:
    """Return whether a text may have characters that the versions of `TextOptions` read
    differently.
    """
    if text.isascii():
        return False
    return bool(
        _odd_codes()[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)].any()
    )


@cache
def _odd_codes() -> np.ndarray:
    """Return which code points are in a block with such characters."""
    codes = np.zeros(sys.maxunicode + 1, dtype=bool)
    for first, last in _ODD_BLOCKS:
        codes[first : last + 1] = True
    return codes


def is_word(piece: str) -> bool:
    """Return whether a piece has more than marks of punctuation and of the beginning of a word."""
    return any(
        unicodedata.category(letter)[0] not in "PZC" for letter in piece if letter != WORD_START
    )


def is_punctuation(piece: str) -> bool:
    """Return whether a piece has neither a letter nor a digit (of any script)."""
    return _WORD_CHARACTER.search(piece) is None


def read_dictionary(path: str | Path) -> list[str]:
    """Read the symbols of a fairseq dictionary file in the order of their ids, special symbols
    first.
    """
    symbols = list(SPECIAL)
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.removesuffix(" #fairseq:overwrite").rsplit(" ", 1)
        if len(fields) != 2 or len(fields[1]) > 18 or not fields[1].removeprefix("-").isdecimal():
            raise InputError(
                f"{path}, line {number}: {shown(line)}; expected `symbol count`, a fairseq dictionary"
            )
        symbols.append(fields[0])
    if len(set(symbols)) != len(symbols):
        twice = next(
            symbol for position, symbol in enumerate(symbols) if symbol in symbols[:position]
        )
        raise InputError(
            f"{path}: {twice!r} occurs twice; make the dictionary again with fairseq-preprocess"
        )
    return symbols


def hash_symbols(symbols: Sequence[str]) -> str:
    """Hash a dictionary: the symbols and their order count, their frequencies do not."""
    return hashlib.sha256("\n".join(symbols).encode()).hexdigest()


def words_model_of(symbols: Sequence[str]) -> bytes | None:
    """Make the SentencePiece model of a dictionary of words, or of pieces as subword-nmt writes
    them.

    It splits text at blanks; None where the pieces are SentencePiece's own, whose model is needed.
    """
    if is_marked(symbols):
        return None
    return words_model(WORD_START + symbol for symbol in symbols if symbol not in SPECIAL)


def is_lowercased(symbols: Iterable[str]) -> bool:
    """Return whether a dictionary is that of lower-cased text: at most one in a hundred of its
    words has a capital.
    """
    pieces = [symbol for symbol in symbols if not _NO_TEXT.fullmatch(symbol)]
    cased = [piece for piece in pieces if piece.lower() != piece.upper()]
    return bool(cased) and sum(piece != piece.lower() for piece in cased) <= MAX_CASED_SHARE * len(
        cased
    )


class Tokenizer:
    """Applies the text options and SentencePiece; ids are those of a fairseq dictionary.

    `symbols` are those of the dictionary in the order of ids (see `read_dictionary`); only `encode`
    needs them. Where they are words or pieces of another program, the model is that of `words_model_of`,
    and text is expected in such words.
    """

    def __init__(
        self, model: str | Path, options: TextOptions, symbols: Sequence[str] | None = None
    ):
        self.options = options
        if not Path(model).is_file():
            raise InputError(f"{model}: no such file; expected a SentencePiece model")
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(Path(model).read_bytes())
        except RuntimeError:
            raise InputError(
                f"{model}: not a SentencePiece model; expected the .model file of spm_train"
            ) from None
        self.symbols = list(symbols or ())
        self._words, self._mark = None, ""
        if symbols is not None:
            if not is_marked(symbols) and read_sentencepiece(self.serialized_model()).kind == WORD:
                self._mark = WORD_START
            pieces = self.all_pieces()
            self._ids = self._dictionary_ids(symbols, pieces, model)
            if splits_words_independently(self.serialized_model(), pieces):
                self._words = WordPieces(self._encode_texts)

    def __len__(self) -> int:
        return self._processor.GetPieceSize()

    @property
    def unknown(self) -> int:
        """Dictionary id of the unknown symbol."""
        return self.symbols.index(UNK)

    def all_pieces(self) -> list[str]:
        """Return every piece of the SentencePiece model, as the dictionary spells it."""
        return [
            self._processor.IdToPiece(index).removeprefix(self._mark) for index in range(len(self))
        ]

    def serialized_model(self) -> bytes:
        """Return the content of the SentencePiece file."""
        return self._processor.serialized_model_proto()

    @property
    def piece_ids(self) -> np.ndarray:
        """Dictionary id of every piece of the SentencePiece model [pieces]."""
        return self._ids

    def normalized(self, texts: Sequence[str]) -> list[str]:
        """Apply the Unicode normalization of the SentencePiece model, which also marks the
        beginnings of words.
        """
        return self._processor.Normalize(list(texts))

    def _dictionary_ids(
        self, symbols: Sequence[str], pieces: Sequence[str], model: str | Path
    ) -> np.ndarray:
        position = {symbol: index for index, symbol in enumerate(symbols)}
        unknown = position[UNK]
        ids = np.array(
            [unknown if piece in SPECIAL else position.get(piece, unknown) for piece in pieces]
        )
        if (ids == unknown).mean() > 0.5:
            raise InputError(
                f"{model}: only {(ids != unknown).sum():,} of its {len(ids):,} pieces are in the dictionary of "
                f"{len(symbols):,}; expected the SentencePiece model that the training data was made with"
            )
        # fairseq-preprocess also adds letters that SentencePiece does not know, and filler words
        own = {*pieces, *SPECIAL, MASK}
        lacking = [
            symbol for symbol in symbols if symbol not in own and not symbol.startswith(FILLER)
        ]
        if len(lacking) > 0.1 * len(symbols):
            raise InputError(
                f"{model}: lacks {len(lacking):,} of the {len(symbols):,} entries of the dictionary, for example "
                f"{lacking[0]!r:.60}; expected the SentencePiece model that the training data was made with"
            )
        return ids

    def pieces(self, texts: Sequence[str]) -> list[list[str]]:
        """Split texts into pieces, as text for fairseq-preprocess."""
        return self._processor.EncodeAsPieces(normalise_all(texts, self.options))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the dictionary ids of the pieces of each text; an empty text gives an empty
        array.
        """
        ids, lengths = self.encode_flat(texts)
        return np.split(ids, lengths.cumsum()[:-1]) if len(texts) else []

    def encode_flat(self, texts: Sequence[str]) -> FlatIds:
        """Return concatenated ids of all texts, int64 [pieces of all], and the number of pieces of
        each text [N].
        """
        if self._mark:  # in words, the mark of a beginning is a letter as any other, and unknown
            texts = [" ".join(text.replace(self._mark, "\ufffd").split()) for text in texts]
        return self._words.encode_flat(texts) if self._words else self._encode_texts(texts)

    def encode_known(self, texts: Sequence[str]) -> FlatIds:
        """Return what `encode_flat` returns, but make texts without a known word empty.

        A text that has an unknown piece and no known word would have nearly the embedding of the
        unknown piece, as all such texts. Punctuation is not a word.
        """
        ids, lengths = self.encode_flat(texts)
        is_unknown = ids == self.unknown
        if not is_unknown.any():
            return ids, lengths
        # For each piece, the index of its text
        text_indices = np.repeat(np.arange(len(lengths)), lengths)
        is_dropped = np.bincount(text_indices[is_unknown], minlength=len(lengths)) > 0

        # Of the texts with an unknown piece, keep those with a known word
        in_question = is_dropped[text_indices]
        unique_ids, positions = np.unique(ids[in_question], return_inverse=True)
        is_known_word = np.array([self._is_known_word(index) for index in unique_ids.tolist()])
        is_dropped[text_indices[in_question][is_known_word[positions]]] = False
        return ids[~is_dropped[text_indices]], np.where(is_dropped, 0, lengths)

    def _is_known_word(self, index: int) -> bool:
        symbol = self.symbols[index]
        return symbol not in SPECIAL and is_word(symbol)

    def _encode_texts(self, texts: Sequence[str]) -> FlatIds:
        """Return what `encode_flat` returns, computed by SentencePiece alone."""
        encode = self._processor.EncodeAsIds
        texts = normalise_all(texts, self.options)
        # Starting the threads of SentencePiece would take longer than encoding a short batch
        is_short = sum(map(len, texts)) < SINGLE_THREAD_CHARACTERS
        encoded = [*map(encode, texts)] if is_short else encode(texts)
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        flat = np.fromiter(chain.from_iterable(encoded), dtype=np.int64, count=int(lengths.sum()))
        return self._ids[flat], lengths
