"""Reads and writes SentencePiece model files (protocol buffers) without protobuf.

Field numbers are from sentencepiece_model.proto; fields that this package does not need are
skipped.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

# Piece types.
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
BYTE = 6
# Model types.
UNIGRAM = 1
BPE = 2
WORD = 3
# Wire types of the protocol buffer format.
VARINT = 0
FIXED64 = 1
LENGTH_DELIMITED = 2
FIXED32 = 5
# Field number of a piece, and the field key as stored in the file.
PIECE = 1
PIECE_KEY = PIECE << 3 | LENGTH_DELIMITED


@dataclass(frozen=True)
class Piece:
    """A vocabulary entry: its text, score and type."""

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class SentencePieceFile:
    """The fields of a SentencePiece model that this package needs.

    Attributes:
        data: content of the file.
        kind: `UNIGRAM`, `BPE`, `WORD` or the number of another model type.
        rule: name of the normalization rule.
        charsmap: compiled normalization rule; empty if there is none.
        plain: whether spaces are handled in the default way: a mark precedes each word, and
            leading, trailing and repeated spaces are removed.
    """

    data: bytes
    kind: int
    byte_fallback: bool
    rule: bytes
    charsmap: bytes
    plain: bool

    @cached_property
    def pieces(self) -> list[Piece]:
        """The vocabulary in id order, parsed on first use."""
        return [_piece(value) for number, value in _fields(self.data) if number == PIECE]


def read_sentencepiece(data: bytes) -> SentencePieceFile:
    """Parse a SentencePiece model file that SentencePiece has already loaded successfully."""
    messages = list(_fields_without_pieces(data))
    trainer = _submessage(messages, 2)
    normalizer = _submessage(messages, 3)
    # Fields 3 to 5 are add_dummy_prefix, remove_extra_whitespaces and escape_whitespaces, all 1 by
    # default; the default model type is unigram. Field 24 is treat_whitespace_as_suffix.
    blanks_removed = all(normalizer.get(number, 1) for number in (3, 4, 5))
    return SentencePieceFile(
        data=data,
        kind=trainer.get(3, UNIGRAM),
        byte_fallback=bool(trainer.get(35, 0)),
        rule=bytes(normalizer.get(1, b"")),
        charsmap=bytes(normalizer.get(2, b"")),
        plain=blanks_removed and not trainer.get(24, 0),
    )


def _submessage(messages: Iterable[tuple[int, Any]], wanted_number: int) -> dict[int, Any]:
    """Return the fields of the submessage with this number, merging repeated submessages."""
    fields: dict[int, Any] = {}
    for number, value in messages:
        if number == wanted_number:
            fields.update(_fields(value))
    return fields


def with_pieces(data: bytes, pieces: Iterable[Piece]) -> bytes:
    """Append pieces to a serialized model.

    The old bytes come first, so old pieces keep their ids. SentencePiece rejects the file if a
    piece occurs twice.
    """
    return data + b"".join(_field(1, _message(piece)) for piece in pieces)


def with_rule_name(data: bytes, name: bytes) -> bytes:
    """Rename the normalization rule of a serialized model, without changing the rule.

    The name is appended in a second message with normalization settings. Its fields override the
    same fields of the first message.
    """
    return data + _field(3, _field(1, name))


def words_model(words: Iterable[str]) -> bytes:
    """Return a serialized model that only splits text at spaces.

    Args:
        words: words of the model, each with SentencePiece's word-start mark.
    """
    pieces = (Piece(word, -number, NORMAL) for number, word in enumerate(words))
    return model_of_pieces(pieces, WORD, b"")


def model_of_pieces(pieces: Iterable[Piece], kind: int, charsmap: bytes) -> bytes:
    """Build a serialized SentencePiece model from pieces.

    Args:
        pieces: pieces of the model; the symbols `<unk>`, `<s>` and `</s>` are added before them.
        kind: `BPE`, `UNIGRAM` or `WORD`.
        charsmap: compiled normalization rule; empty for none.
    """
    special = (Piece("<unk>", 0, UNKNOWN), Piece("<s>", 0, CONTROL), Piece("</s>", 0, CONTROL))
    # Field 35 is whether unknown characters become bytes.
    numbers = {3: kind, 35: 0}
    trainer = b"".join(
        _to_varint(key << 3 | VARINT) + _to_varint(value) for key, value in numbers.items()
    )
    rule = _field(1, b"user_defined" if charsmap else b"identity") + _field(2, charsmap)
    return with_pieces(b"", (*special, *pieces)) + _field(2, trainer) + _field(3, rule)


def _message(piece: Piece) -> bytes:
    """Encode a piece."""
    text = _field(1, piece.text.encode())
    score = _to_varint(2 << 3 | FIXED32) + struct.pack("<f", piece.score)
    type_ = _to_varint(3 << 3 | VARINT) + _to_varint(piece.type)
    return text + score + type_


def _field(number: int, value: bytes) -> bytes:
    """Encode a length-delimited field: text, bytes or a message."""
    return _to_varint(number << 3 | LENGTH_DELIMITED) + _to_varint(len(value)) + value


def _to_varint(value: int) -> bytes:
    """Encode a number as a varint: 7 bits per byte, lowest bits first."""
    head = b""
    while value > 127:
        head += bytes([value & 127 | 128])
        value >>= 7
    return head + bytes([value])


def _piece(data: bytes) -> Piece:
    """Decode a piece."""
    fields = dict(_fields(data))
    (score,) = struct.unpack("<f", fields.get(2, bytes(4)))
    return Piece(bytes(fields.get(1, b"")).decode(), score, fields.get(3, NORMAL))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field in a message; values are int or bytes."""
    place = 0
    while place < len(data):
        number, value, place = _field_at(data, place)
        yield number, value


def _fields_without_pieces(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field in a model file, except for the pieces.

    Decoding all pieces would take a quarter of the model's loading time.
    """
    place = 0
    size = len(data)
    while place < size:
        # The length of a short piece is stored in a single byte.
        if data[place] == PIECE_KEY and data[place + 1] < 128:
            place += 2 + data[place + 1]
            continue
        number, value, place = _field_at(data, place)
        if number != PIECE:
            yield number, value


def _field_at(data: bytes, place: int) -> tuple[int, Any, int]:
    """Decode the field at an offset; return its number, its value and the next offset."""
    key, place = _varint(data, place)
    if key & 7 == VARINT:
        value, place = _varint(data, place)
        return key >> 3, value, place
    length = {FIXED64: 8, FIXED32: 4}.get(key & 7)
    if length is None:
        length, place = _varint(data, place)
    return key >> 3, data[place : place + length], place + length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Decode a varint (7 bits per byte, lowest bits first); return it and the next offset."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place += 1
        shift += 7
        if byte < 128:
            return value, place
