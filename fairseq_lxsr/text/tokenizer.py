"""Splits text into word pieces, in the same way for training and for encoding."""

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

from fairseq_lxsr.characters import (
    ARABIC_MARKS,
    DEFAULT_IGNORABLE,
    ZERO_WIDTH_SPACE,
    without_marks,
)
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.files.lines import BLANKS, read_lines
from fairseq_lxsr.files.open import read_file
from fairseq_lxsr.options import check_fields
from fairseq_lxsr.text.case import STYLED_BLOCKS, lower
from fairseq_lxsr.text.reading import (
    Steps,
    has_word_signs,
    is_mixed,
    read_texts,
    read_word,
    reading_steps,
)
from fairseq_lxsr.text.sentencepiece_model import WORD, read_sentencepiece, words_model
from fairseq_lxsr.text.words import (
    WORD_START,
    FlatIds,
    WordPieces,
    is_marked,
    splits_words_independently,
)

# Special symbols of fairseq dictionaries; <mask> comes last, the others come first.
BOS = "<s>"
PAD = "<pad>"
EOS = "</s>"
UNK = "<unk>"
MASK = "<mask>"
SPECIAL = (BOS, PAD, EOS, UNK)

DICTIONARY_FILE = "dict.txt"
SENTENCEPIECE_FILE = "sentencepiece.model"
TEXT_FILE = "text.json"
# SentencePiece rejects lone surrogates, so they are treated as spaces.
_BLANKS = re.compile(BLANKS.replace("[", r"[\ud800-\udfff", 1))
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
# Prefix of the entries that fairseq adds to pad the dictionary to a multiple of eight.
FILLER = "madeupword"
# Symbols that are not text: special symbols, bytes and fillers.
_NO_TEXT = re.compile(rf"<[^<>]+>|{FILLER}\d+")
# A dictionary counts as lowercased if at most this fraction of its words that have case contains
# capitals.
MAX_CASED_SHARE = 0.01
# All bytes except for the separators, and for \r and \0. A dictionary with one of the latter two is
# read line by line.
_NO_SEPARATORS = bytes(set(range(256)) - set(b" \n\r\0"))
# Matches pairs of non-Latin letters.
_READ_AS = re.compile(r"(?:[^\x00-\u024f\s]{2})*")
_WORD_CHARACTER = re.compile(r"[^\W_]")
# Text normalization version of the data folders that this package writes.
TEXT_VERSION = 4
# Version of data folders that only fairseq-preprocess wrote: no characters are removed.
PLAIN_VERSION = 1
# Number of texts to search at once for characters that need the slow normalization.
TEXTS_PER_SEARCH = 512
# Number of texts to normalize together. If one contains a control character, all of them are
# normalized one by one, which is slow.
TEXTS_PER_JOIN = 64
# Batches with fewer characters are encoded in a single thread.
SINGLE_THREAD_CHARACTERS = 1000
# Unicode blocks with characters whose normalization depends on the version.
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
    """Text normalization options, applied before SentencePiece and stored with data and model.

    Attributes:
        lowercase: convert text to lower case.
        split_han: treat every Chinese character as a separate word.
        version: text normalization version. TEXT_VERSION reads away mark-up and Latin look-alikes
            (see `reading`), removes invisible characters and Arabic vowel marks, and lowercases
            without leaving capitals or adding marks. PLAIN_VERSION does nothing of this; it is the
            version of folders without one.
        read_as: letters, each followed by its replacement, such as traditional Chinese characters
            and their simplified forms.
    """

    lowercase: bool = False
    split_han: bool = False
    version: int = PLAIN_VERSION
    read_as: str = ""

    def __post_init__(self):
        check_fields(self)
        if self.version not in (PLAIN_VERSION, TEXT_VERSION):
            raise InputError(
                f"text version {shown(self.version)} is not supported; expected {TEXT_VERSION}: "
                "prepare the data again"
            )
        is_valid = _READ_AS.fullmatch(self.read_as) and len(self.table) * 2 == len(self.read_as)
        if not is_valid:
            raise InputError(
                f"read_as {shown(self.read_as)} is invalid; expected pairs of non-Latin letters "
                "with distinct first letters"
            )

    @cached_property
    def table(self) -> dict[int, str]:
        """The `read_as` replacements as a table for `str.translate`."""
        return str.maketrans(dict(zip(self.read_as[::2], self.read_as[1::2], strict=True)))

    @property
    def is_plain(self) -> bool:
        """Whether no rules of `reading` apply, as in data that only fairseq-preprocess wrote."""
        return self.version == PLAIN_VERSION

    @property
    def steps(self) -> Steps:
        """Regular expressions that are applied to text first, with their replacements."""
        return () if self.is_plain else reading_steps(self.lowercase)

    @classmethod
    def load(cls, path: str | Path) -> "TextOptions":
        """Read the options from a text.json file.

        Raises:
            InputError: if the file is missing or invalid.
        """
        try:
            return cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"{path}: not a {TEXT_FILE} file from `lxsr prepare` ({error})"
            ) from None

    def record(self) -> dict[str, Any]:
        """Return the options as a JSON-compatible dictionary.

        The last two options are omitted if they have their default values.
        """
        record = asdict(self)
        for name, default in {"version": PLAIN_VERSION, "read_as": ""}.items():
            if record[name] == default:
                del record[name]
        return record

    def dumps(self) -> str:
        """Serialize the options for a text.json file."""
        return json.dumps(self.record(), indent=2) + "\n"


def normalise(text: str, options: TextOptions) -> str:
    """Normalize text for SentencePiece, and replace each run of whitespace with one space.

    Control characters become spaces too; the other steps depend on the options. Unicode
    normalization (NFKC) is part of the SentencePiece model.
    """
    if not options.is_plain:
        (text,) = read_texts([text])
    return _normalise_words(text, options)


def _normalise_words(text: str, options: TextOptions) -> str:
    """Like `normalise`, but without the rules that look at several words."""
    if not options.is_plain:
        text = without_marks(text.replace(ZERO_WIDTH_SPACE, ""))
        text = read_word(text, options.lowercase)
    if options.read_as and not text.isascii():
        text = text.translate(options.table)
    if options.split_han:
        text = _HAN.sub(r" \g<0> ", text)
    # Printable text without double spaces has no whitespace to replace.
    if "  " in text or not text.isprintable():
        text = _BLANKS.sub(" ", text)
    text = text.strip()
    if not options.lowercase:
        return text
    return text.lower() if options.is_plain else lower(text)


def normalise_all(texts: Sequence[str], options: TextOptions) -> list[str]:
    """Normalize each text, faster than calling `normalise` for each."""
    if not options.is_plain:
        texts = read_texts(texts)
    return _normalise_all_words(texts, options)


def _normalise_all_words(texts: Sequence[str], options: TextOptions) -> list[str]:
    """Like `normalise_all`, but without the rules that look at several words."""
    # Both versions normalize texts without special characters in the same way, and the plain
    # version is faster.
    plain_options = _plain_options(options)
    normalised = []
    for start in range(0, len(texts), TEXTS_PER_SEARCH):
        part = list(texts[start : start + TEXTS_PER_SEARCH])
        special_texts = {}
        for index in _indices_of_special(part, options):
            special_texts[index] = _normalise_words(part[index], options)
            part[index] = ""
        for first in range(0, len(part), TEXTS_PER_JOIN):
            normalised += _normalise_plain(part[first : first + TEXTS_PER_JOIN], plain_options)
        for index, text in special_texts.items():
            normalised[start + index] = text
    return normalised


def _normalise_plain(texts: Sequence[str], options: TextOptions) -> list[str]:
    """Normalize texts without special characters with the plain version of the options."""
    joined = "".join(texts)
    if options.split_han or "  " in joined or not joined.isprintable():
        return [_normalise_words(text, options) for text in texts]
    # Only case and spaces at the ends change, so the texts can be joined with newlines and
    # normalized together.
    lines = "\n".join(texts)
    if options.lowercase:
        lines = lines.lower()
    return lines.replace(" \n", "\n").replace("\n ", "\n").strip(" ").split("\n")


# Cached because creating options validates the fields, which takes time.
@cache
def _plain_options(options: TextOptions) -> TextOptions:
    return replace(options, version=PLAIN_VERSION)


def _indices_of_special(texts: Sequence[str], options: TextOptions) -> list[int]:
    """Return the indices of the texts that the plain version may read differently."""
    joined = "".join(texts)
    indices: set[int] = set()
    if not options.is_plain and has_word_signs(joined):
        indices.update(index for index, text in enumerate(texts) if has_word_signs(text))
    if joined.isascii():
        return sorted(indices)
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
    is_special = _special_codes(options)[codes]
    if not options.is_plain:
        is_special |= is_mixed(codes)
    places = np.flatnonzero(is_special)
    ends = np.fromiter(map(len, texts), np.int64, len(texts)).cumsum()
    indices.update(np.searchsorted(ends, places, side="right").tolist())
    return sorted(indices)


@cache
def _special_codes(options: TextOptions) -> np.ndarray:
    """Return a mask of the code points that the options replace or remove.

    Lowercasing and the removal of spaces do not count.
    """
    codes = np.zeros(sys.maxunicode + 1, dtype=bool)
    codes[list(options.table)] = True
    if not options.is_plain:
        for first, last in _ODD_BLOCKS:
            codes[first : last + 1] = True
    return codes


def is_word(piece: str) -> bool:
    """Return whether a piece contains anything but punctuation, spaces and control characters.

    The word-start mark is ignored.
    """
    letters = piece.replace(WORD_START, "")
    return any(unicodedata.category(letter)[0] not in "PZC" for letter in letters)


def is_punctuation(piece: str) -> bool:
    """Return whether a piece contains no letters or digits of any script."""
    return _WORD_CHARACTER.search(piece) is None


def read_dictionary(path: str | Path) -> list[str]:
    """Return the symbols of a fairseq dictionary file, in id order.

    The special symbols, which the file does not contain, come first.

    Raises:
        InputError: if a line is not `symbol count`, or a symbol occurs twice.
    """
    symbols = [*SPECIAL, *(_plain_symbols(path) or _checked_symbols(path))]
    if len(set(symbols)) != len(symbols):
        duplicate = next(symbol for symbol, count in Counter(symbols).items() if count > 1)
        raise InputError(
            f"{path}: {duplicate!r} occurs twice; recreate the dictionary with fairseq-preprocess"
        )
    return symbols


def _plain_symbols(path: str | Path) -> list[str] | None:
    """Read a whole dictionary at once, which is much faster than line by line.

    Returns:
        The symbols, or None if the file is missing or a line is not exactly `symbol count`.
    """
    if not Path(path).is_file():
        return None
    data = read_file(path)
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
    """Yield the symbols of a dictionary; raise `InputError` at the first invalid line."""
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.removesuffix(" #fairseq:overwrite").rsplit(" ", 1)
        if len(fields) != 2 or not _is_count(fields[1]):
            raise InputError(
                f"{path}, line {number}: {shown(line)}; expected `symbol count`, the format of "
                "fairseq dictionaries"
            )
        yield fields[0]


def _is_count(text: str) -> bool:
    """Return whether text is an integer of at most 18 digits, which fits into 64 bits."""
    return len(text) <= 18 and text.removeprefix("-").isdecimal()


def hash_symbols(symbols: Sequence[str]) -> str:
    """Return a hash of a dictionary's symbols and their order, ignoring the counts."""
    return hashlib.sha256("\n".join(symbols).encode()).hexdigest()


def words_model_of(symbols: Sequence[str]) -> bytes | None:
    """Return a serialized SentencePiece model that splits text at spaces, for a word dictionary.

    If the words are subword-nmt pieces, text must already be split into such pieces.

    Returns:
        Content of the model file, or None if the symbols are SentencePiece pieces, which need their
        own model.
    """
    if is_marked(symbols):
        return None
    return words_model(WORD_START + symbol for symbol in symbols if symbol not in SPECIAL)


def is_lowercased(symbols: Iterable[str]) -> bool:
    """Return whether a dictionary seems to come from lowercased text.

    It does if at most 1 % of the words that have case contain a capital letter; if no word has
    case, it does not.
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
    """Converts normalized text to fairseq dictionary ids.

        tokenizer = Tokenizer("sentencepiece.model", TextOptions(), read_dictionary("dict.txt"))
        ids = tokenizer.encode(["The dog sleeps.", "Le chien dort."])
        pieces = tokenizer.pieces(["The dog sleeps."])

    If the symbols are words, or pieces from another program, the model must come from
    `words_model_of`, and text must already be split into such words.

    Args:
        model: path of the SentencePiece model file.
        options: normalization to apply before SentencePiece.
        symbols: dictionary symbols in id order (see `read_dictionary`). Only `pieces` works without
            them.

    Raises:
        InputError: if the model file is missing, invalid, or does not match the dictionary.
    """

    def __init__(
        self, model: str | Path, options: TextOptions, symbols: Sequence[str] | None = None
    ):
        self.options = options
        if not Path(model).is_file():
            raise InputError(f"{model}: no such file; expected a SentencePiece model")
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(read_file(model))
        except RuntimeError:
            raise InputError(
                f"{model}: not a SentencePiece model; expected a .model file from spm_train"
            ) from None
        self.symbols = list(symbols or ())
        # Cache of word pieces, if SentencePiece splits words independently.
        self._words: WordPieces | None = None
        # The word-start mark, if the pieces of a word model start with it but the dictionary
        # symbols do not; otherwise empty.
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
        """Return the serialized SentencePiece model."""
        return self._processor.serialized_model_proto()

    @property
    def piece_ids(self) -> np.ndarray:
        """Dictionary id of each piece of the SentencePiece model, int64 [pieces]."""
        return self._ids

    def normalized(self, texts: Sequence[str]) -> list[str]:
        """Apply the SentencePiece model's normalization, which also marks word starts."""
        return self._processor.Normalize(list(texts))

    def _dictionary_ids(
        self, symbols: Sequence[str], pieces: Sequence[str], model: str | Path
    ) -> np.ndarray:
        """Return the dictionary id of each piece, int64 [pieces].

        Pieces that are not in the dictionary are mapped to the unknown symbol.

        Raises:
            InputError: if many pieces are not in the dictionary, or many symbols are not pieces.
        """
        ids = _ids_in_order(symbols, pieces)
        if ids is None:
            ids = _ids_in_any_order(symbols, pieces)
        unknown = symbols.index(UNK)
        advice = "use the SentencePiece model that prepared the training data"
        if (ids == unknown).mean() > 0.5:
            raise InputError(
                f"{model}: only {(ids != unknown).sum():,} of the {len(ids):,} pieces are in the "
                f"dictionary of {len(symbols):,}; {advice}"
            )
        missing = _missing_symbols(symbols, ids)
        if len(missing) > 0.1 * len(symbols):
            raise InputError(
                f"{model}: {len(missing):,} of the {len(symbols):,} dictionary entries are not in "
                f"the model, for example {missing[0]!r:.60}; {advice}"
            )
        return ids

    def pieces(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the word pieces of each text, as strings."""
        return self._processor.EncodeAsPieces(normalise_all(texts, self.options))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the dictionary ids of each text, int64 [word pieces]. An empty text has no ids."""
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
            # In a word model, a word-start mark in the text is an ordinary, unknown letter.
            texts = [" ".join(text.replace(self._mark, "\ufffd").split()) for text in texts]
        if not self.options.is_plain:
            texts = read_texts(texts)
        if self._words:
            return self._words.encode_flat(texts)
        return self._encode_texts(texts)

    def encode_known(self, texts: Sequence[str]) -> FlatIds:
        """Like `encode_flat`, but texts without a known word are treated as empty.

        Otherwise all texts with unknown pieces and no known word would have almost the same
        embedding, that of the unknown piece. Punctuation does not count as a word.
        """
        ids, lengths = self.encode_flat(texts)
        is_unknown = ids == self.unknown
        if not is_unknown.any():
            return ids, lengths
        # For each piece, the index of its text.
        text_indices = np.repeat(np.arange(len(lengths)), lengths)
        is_dropped = np.bincount(text_indices[is_unknown], minlength=len(lengths)) > 0

        # Keep texts with an unknown piece if they also have a known word.
        in_question = is_dropped[text_indices]
        unique_ids, positions = np.unique(ids[in_question], return_inverse=True)
        is_known_word = np.array([self._is_known_word(index) for index in unique_ids.tolist()])
        is_dropped[text_indices[in_question][is_known_word[positions]]] = False
        return ids[~is_dropped[text_indices]], np.where(is_dropped, 0, lengths)

    def _is_known_word(self, index: int) -> bool:
        symbol = self.symbols[index]
        return symbol not in SPECIAL and is_word(symbol)

    def _encode_texts(self, texts: Sequence[str]) -> FlatIds:
        """Like `encode_flat`, but without the cache and the rules that look at several words."""
        encode = self._processor.EncodeAsIds
        texts = _normalise_all_words(texts, self.options)
        # For a short batch, starting SentencePiece's threads would take longer than encoding.
        is_short = sum(map(len, texts)) < SINGLE_THREAD_CHARACTERS
        encoded = list(map(encode, texts)) if is_short else encode(texts)
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        flat = np.fromiter(chain.from_iterable(encoded), dtype=np.int64, count=int(lengths.sum()))
        return self._ids[flat], lengths


def _ids_in_order(symbols: Sequence[str], pieces: Sequence[str]) -> np.ndarray | None:
    """Return the dictionary id of each piece, if the last pieces are the symbols in the same order.

    `lxsr prepare` writes such dictionaries. Comparing two lists is much faster than searching.

    Args:
        symbols: dictionary symbols in id order, the special symbols first.
        pieces: all pieces of the model, which are distinct.

    Returns:
        The ids, int64 [pieces]; None if the symbols or their order differ.
    """
    words = symbols[len(SPECIAL) :]
    first = len(pieces) - len(words)
    if first < 0 or tuple(symbols[: len(SPECIAL)]) != SPECIAL or pieces[first:] != words:
        return None
    ids = np.arange(len(pieces)) - first + len(SPECIAL)
    # The other pieces are control symbols of SentencePiece.
    ids[:first] = symbols.index(UNK)
    return ids


def _ids_in_any_order(symbols: Sequence[str], pieces: Sequence[str]) -> np.ndarray:
    """Return the dictionary id of each piece, int64 [pieces]; for unknown pieces, the id of UNK."""
    positions = dict(zip(symbols, range(len(symbols)), strict=True))
    unknown = positions[UNK]
    # Pieces that look like special symbols are ordinary text, so map them to unknown.
    for symbol in SPECIAL:
        positions.pop(symbol, None)
    return np.fromiter(map(positions.get, pieces, repeat(unknown)), np.int64, len(pieces))


def _missing_symbols(symbols: Sequence[str], ids: np.ndarray) -> list[str]:
    """Return the dictionary symbols that are not pieces of the model.

    Args:
        symbols: dictionary symbols in id order.
        ids: dictionary ids of the model's pieces, int64 [pieces].
    """
    is_missing = np.ones(len(symbols), dtype=bool)
    is_missing[ids] = False
    missing = [symbols[index] for index in np.flatnonzero(is_missing).tolist()]
    no_pieces = (*SPECIAL, MASK)
    return [
        symbol for symbol in missing if symbol not in no_pieces and not symbol.startswith(FILLER)
    ]
