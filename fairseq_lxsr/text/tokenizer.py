"""Splits text into word pieces, in the same way for training data and for encoding."""

import codecs
import hashlib
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import chain, repeat
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
# The bytes of a plain dictionary except for its separators; the two other bytes need checks
_NO_SEPARATORS = bytes(set(range(256)) - set(b" \n\r\0"))
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
    """Normalization of text before SentencePiece; stored with the data and with the model.

    Attributes:
        lowercase: convert text to lower case.
        split_han: treat every Chinese character as a word.
        version: version of the text normalization. Version 1 is that of folders without a version;
            version 2 removes invisible characters, and its lower case leaves no unknown mark;
            version 3 also removes the vowel marks of Arabic.
        read_as: letters, each followed by its replacement, for example simplified Chinese
            characters for traditional ones.
    """

    lowercase: bool = False
    split_han: bool = False
    version: int = option("version of the text normalization", 1, at_least(1, TEXT_VERSION))
    read_as: str = ""

    def __post_init__(self):
        check_fields(self)
        is_valid = _READ_AS.fullmatch(self.read_as) and len(self.table) * 2 == len(self.read_as)
        if not is_valid:
            raise InputError(
                f"read_as {shown(self.read_as)}; expected pairs of letters beyond Latin, with "
                "different first letters"
            )

    @cached_property
    def table(self) -> dict[int, str]:
        """The replacements of `read_as`, for `str.translate`."""
        return str.maketrans(dict(zip(self.read_as[::2], self.read_as[1::2], strict=True)))

    @classmethod
    def load(cls, path: str | Path) -> "TextOptions":
        """Read the options from a text.json file.

        Raises:
            InputError: if the file is not valid.
        """
        try:
            return cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"{path}: not a {TEXT_FILE} file of `lxsr prepare` ({error})"
            ) from None

    def record(self) -> dict[str, Any]:
        """Return the options as JSON stores them.

        Newer options are left out if they have their defaults, as in older folders, whose
        fingerprints must not change.
        """
        record = asdict(self)
        for name, default in {"version": 1, "read_as": ""}.items():
            if record[name] == default:
                del record[name]
        return record

    def dumps(self) -> str:
        """Return the content of a text.json file."""
        return json.dumps(self.record(), indent=2) + "\n"


def normalise(text: str, options: TextOptions) -> str:
    """Return text as it is given to SentencePiece, with single blanks instead of white space.

    Control characters become blanks too. The other steps depend on the options. SentencePiece
    itself applies Unicode normalization (NFKC), which is part of its model.
    """
    if options.version > 2:
        text = without_marks(text)
    elif options.version > 1:
        text = visible(text)
    if options.read_as and not text.isascii():
        text = text.translate(options.table)
    if options.split_han:
        text = _HAN.sub(r" \g<0> ", text)
    # Only these texts have blanks to replace.
    if "  " in text or not text.isprintable():
        text = _BLANKS.sub(" ", text)
    text = text.strip()
    if not options.lowercase:
        return text
    return lower(text) if options.version > 1 else text.lower()


def normalise_all(texts: Sequence[str], options: TextOptions) -> list[str]:
    """Return what `normalise` returns for each text, faster than one call per text."""
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
    """Return whether text may have characters that text versions treat differently."""
    if text.isascii():
        return False
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return bool(_odd_codes()[codes].any())


@cache
def _odd_codes() -> np.ndarray:
    """Return whether each code point is in a block with such characters, bool [code points]."""
    codes = np.zeros(sys.maxunicode + 1, dtype=bool)
    for first, last in _ODD_BLOCKS:
        codes[first : last + 1] = True
    return codes


def is_word(piece: str) -> bool:
    """Return whether a piece has more than punctuation, blanks and control characters.

    The mark of the beginning of a word is not counted.
    """
    letters = piece.replace(WORD_START, "")
    return any(unicodedata.category(letter)[0] not in "PZC" for letter in letters)


def is_punctuation(piece: str) -> bool:
    """Return whether a piece has neither a letter nor a digit (of any script)."""
    return _WORD_CHARACTER.search(piece) is None


def read_dictionary(path: str | Path) -> list[str]:
    """Return the symbols of a fairseq dictionary file in the order of their ids.

    The special symbols come first; the file does not have them.

    Raises:
        InputError: naming the line that is not `symbol count`, or the symbol that occurs twice.
    """
    symbols = [*SPECIAL, *(_plain_symbols(path) or _checked_symbols(path))]
    if len(set(symbols)) != len(symbols):
        duplicate = next(symbol for symbol, count in Counter(symbols).items() if count > 1)
        raise InputError(
            f"{path}: {duplicate!r} occurs twice; create the dictionary again with "
            "fairseq-preprocess"
        )
    return symbols


def _plain_symbols(path: str | Path) -> list[str] | None:
    """Read a dictionary as a whole, which is much faster than line by line.

    Returns:
        The symbols; None if a line is invalid or has more than `symbol count`.
    """
    if not Path(path).is_file():
        return None
    data = Path(path).read_bytes()
    separators = data.translate(None, _NO_SEPARATORS)
    has_plain_lines = data.endswith(b"\n") and separators == b" \n" * data.count(b"\n")
    if not has_plain_lines or data.startswith(codecs.BOM_UTF8):
        return None
    try:
        fields = data.decode("utf-8").replace("\n", " ").split(" ")
    except UnicodeDecodeError:
        return None
    symbols = fields[:-1:2]
    counts = set(fields[1::2])
    return symbols if all(map(_is_count, counts)) else None


def _checked_symbols(path: str | Path) -> Iterator[str]:
    """Yield the symbols of a dictionary, and name the first invalid line."""
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.removesuffix(" #fairseq:overwrite").rsplit(" ", 1)
        if len(fields) != 2 or not _is_count(fields[1]):
            raise InputError(
                f"{path}, line {number}: {shown(line)}; expected `symbol count`, as in a fairseq "
                "dictionary"
            )
        yield fields[0]


def _is_count(text: str) -> bool:
    """Return whether text is a whole number of at most 18 characters, which fits into 64 bits."""
    return len(text) <= 18 and text.removeprefix("-").isdecimal()


def hash_symbols(symbols: Sequence[str]) -> str:
    """Return a hash of the symbols of a dictionary and of their order; counts are not hashed."""
    return hashlib.sha256("\n".join(symbols).encode()).hexdigest()


def words_model_of(symbols: Sequence[str]) -> bytes | None:
    """Return a SentencePiece model that splits text at blanks, for a dictionary of words.

    The words may be pieces of subword-nmt, with which the text is expected to be already split.

    Returns:
        The content of a model file; None if the symbols are pieces of SentencePiece, whose own
        model is needed.
    """
    if is_marked(symbols):
        return None
    return words_model(WORD_START + symbol for symbol in symbols if symbol not in SPECIAL)


def is_lowercased(symbols: Iterable[str]) -> bool:
    """Return whether a dictionary seems to be of lower-cased text.

    This is so if at most one in a hundred of its words has a capital.
    """
    cased_count = 0
    capital_count = 0
    for symbol in symbols:
        small = symbol.lower()
        if _NO_TEXT.fullmatch(symbol) or small == symbol.upper():
            continue
        cased_count += 1
        capital_count += symbol != small
    return cased_count > 0 and capital_count <= MAX_CASED_SHARE * cased_count


class Tokenizer:
    """A tokenizer from text to the ids of a fairseq dictionary, with the text options applied.

        tokenizer = Tokenizer("sentencepiece.model", TextOptions(), read_dictionary("dict.txt"))
        ids = tokenizer.encode(["The dog sleeps.", "Le chien dort."])
        pieces = tokenizer.pieces(["The dog sleeps."])

    If the symbols are words, or pieces of another program, the model must be that of
    `words_model_of`, and text is expected to be split into such words.

    Args:
        model: the SentencePiece model file.
        options: normalization of text before SentencePiece.
        symbols: the symbols of the dictionary in the order of their ids, see `read_dictionary`.
            They are needed for ids, but not for `pieces`.

    Raises:
        InputError: if the model file is missing or invalid, or does not belong to the dictionary.
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
        # The cache of words, if SentencePiece splits words independently
        self._words: WordPieces | None = None
        # The mark that the pieces of the model have, but not the words of the dictionary
        self._mark = ""
        if symbols is None:
            return
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
        """Return all pieces of the SentencePiece model, as the dictionary spells them."""
        pieces = self._processor.IdToPiece(list(range(len(self))))
        if self._mark:
            return [piece.removeprefix(self._mark) for piece in pieces]
        return pieces

    def serialized_model(self) -> bytes:
        """Return the content of the SentencePiece file."""
        return self._processor.serialized_model_proto()

    @property
    def piece_ids(self) -> np.ndarray:
        """Dictionary id of each piece of the SentencePiece model, int64 [pieces]."""
        return self._ids

    def normalized(self, texts: Sequence[str]) -> list[str]:
        """Apply the normalization of the SentencePiece model, which also marks word beginnings."""
        return self._processor.Normalize(list(texts))

    def _dictionary_ids(
        self, symbols: Sequence[str], pieces: Sequence[str], model: str | Path
    ) -> np.ndarray:
        """Return the dictionary id of each piece, int64 [pieces].

        Pieces that the dictionary lacks have the id of the unknown symbol.

        Raises:
            InputError: if many pieces are not in the dictionary, or many symbols are not pieces.
        """
        positions = dict(zip(symbols, range(len(symbols)), strict=True))
        unknown = positions[UNK]
        # Pieces that look like special symbols are text, and unknown.
        for symbol in SPECIAL:
            positions.pop(symbol, None)
        ids = np.fromiter(map(positions.get, pieces, repeat(unknown)), np.int64, len(pieces))
        advice = "expected the SentencePiece model that the training data was prepared with"
        if (ids == unknown).mean() > 0.5:
            raise InputError(
                f"{model}: only {(ids != unknown).sum():,} of the {len(ids):,} pieces are in the "
                f"dictionary of {len(symbols):,}; {advice}"
            )
        missing = _missing_symbols(symbols, ids)
        if len(missing) > 0.1 * len(symbols):
            raise InputError(
                f"{model}: lacks {len(missing):,} of the {len(symbols):,} entries of the "
                f"dictionary, for example {missing[0]!r:.60}; {advice}"
            )
        return ids

    def pieces(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the word pieces of each text, as strings."""
        return self._processor.EncodeAsPieces(normalise_all(texts, self.options))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the dictionary ids of each text, int64 [word pieces]; an empty text has none."""
        if not len(texts):
            return []
        ids, lengths = self.encode_flat(texts)
        return np.split(ids, lengths.cumsum()[:-1])

    def encode_flat(self, texts: Sequence[str]) -> FlatIds:
        """Return the dictionary ids of N texts as one array.

        Returns:
            The concatenated ids of the word pieces of all texts, int64 [P], and the number of word
            pieces of each text, int64 [N].
        """
        if self._mark:
            # In a text of words, SentencePiece's mark is a letter like any other, and unknown.
            texts = [" ".join(text.replace(self._mark, "\ufffd").split()) for text in texts]
        if self._words:
            return self._words.encode_flat(texts)
        return self._encode_texts(texts)

    def encode_known(self, texts: Sequence[str]) -> FlatIds:
        """Do the same as `encode_flat`, but treat texts without a known word as empty.

        Texts with unknown pieces and without a known word would all have nearly the same embedding,
        that of the unknown piece. Punctuation is not a word.
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
        """Do the same as `encode_flat`, by SentencePiece alone."""
        encode = self._processor.EncodeAsIds
        texts = normalise_all(texts, self.options)
        # Starting the threads of SentencePiece would take longer than encoding a short batch
        is_short = sum(map(len, texts)) < SINGLE_THREAD_CHARACTERS
        encoded = list(map(encode, texts)) if is_short else encode(texts)
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        flat = np.fromiter(chain.from_iterable(encoded), dtype=np.int64, count=int(lengths.sum()))
        return self._ids[flat], lengths


def _missing_symbols(symbols: Sequence[str], ids: np.ndarray) -> list[str]:
    """Return the symbols of a dictionary that are not pieces.

    Args:
        symbols: the symbols in the order of their ids.
        ids: the dictionary ids of the pieces, int64 [pieces].
    """
    is_missing = np.ones(len(symbols), dtype=bool)
    is_missing[ids] = False
    missing = [symbols[index] for index in np.flatnonzero(is_missing).tolist()]
    no_pieces = (*SPECIAL, MASK)
    return [
        symbol for symbol in missing if symbol not in no_pieces and not symbol.startswith(FILLER)
    ]
