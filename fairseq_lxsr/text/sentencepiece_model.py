"""Reads a SentencePiece model file, which is a protocol buffer, and adds pieces to it, without the
library protobuf.

Its fields have the numbers of sentencepiece_model.proto; fields that nobody here needs are skipped.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # types of pieces
UNIGRAM, BPE, WORD = 1, 2, 3  # kinds of models
VARINT, FIXED64, TEXT, FIXED32 = 0, 1, 2, 5  # how the wire format stores a value


@dataclass(frozen=True)
class Piece:
    """One piece of the vocabulary: its text, its score, and its type."""

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class SentencePieceFile:
    """What is needed of a SentencePiece model; its vocabulary is read when it is asked for."""

    messages: list[bytes]  # the pieces as they are stored, in the order of their numbers
    kind: int  # `UNIGRAM`, `BPE` or the number of another kind
    byte_fallback: bool  # whether unknown letters become bytes
    rule: bytes  # name of the normalization
    charsmap: bytes  # the precompiled normalization; empty where there is none
    plain: bool  # whether blanks are treated as by default: a mark before each word, none doubled, none after

    @cached_property
    def pieces(self) -> list[Piece]:
        """The vocabulary in the order of its numbers."""
        return [_piece(message) for message in self.messages]


def read_sentencepiece(data: bytes) -> SentencePieceFile:
    """Read the content of a file that SentencePiece itself has already accepted."""
    messages = list(_fields(data))
    trainer, normalizer = (
        dict(field for number, value in messages if number == wanted for field in _fields(value))
        for wanted in (2, 3)
    )
    # the defaults of the format: unigram, and all treatment of blanks on
    blanks = all(normalizer.get(number, 1) for number in (3, 4, 5)) and not trainer.get(24, 0)
    return SentencePieceFile(
        [value for number, value in messages if number == 1],
        trainer.get(3, UNIGRAM),
        bool(trainer.get(35, 0)),
        bytes(normalizer.get(1, b"")),
        bytes(normalizer.get(2, b"")),
        blanks,
    )


def with_pieces(data: bytes, pieces: Iterable[Piece]) -> bytes:
    """Append pieces to the content of a model file: the old bytes come first, so old pieces keep
    their numbers.

    SentencePiece refuses a piece whose text is there already.
    """
    return data + b"".join(_field(1, _message(piece)) for piece in pieces)


def words_model(words: Iterable[str]) -> bytes:
    """Write a model that only splits text at blanks; each of the words begins with SentencePiece's
    mark.
    """
    return model_of_pieces(
        (Piece(word, -number, NORMAL) for number, word in enumerate(words)), WORD, b"", False
    )


def model_of_pieces(
    pieces: Iterable[Piece], kind: int, charsmap: bytes, byte_fallback: bool
) -> bytes:
    """Write a SentencePiece model of these pieces, which reads text as `charsmap` says; `kind`:
    `BPE` or `UNIGRAM`.
    """
    special = (Piece("<unk>", 0, UNKNOWN), Piece("<s>", 0, CONTROL), Piece("</s>", 0, CONTROL))
    numbers = {3: kind, 35: int(byte_fallback)}
    trainer = b"".join(
        _to_varint(key << 3 | VARINT) + _to_varint(value) for key, value in numbers.items()
    )
    rule = _field(1, b"user_defined" if charsmap else b"identity") + _field(2, charsmap)
    return with_pieces(b"", (*special, *pieces)) + _field(2, trainer) + _field(3, rule)


def _message(piece: Piece) -> bytes:
    score = _to_varint(2 << 3 | FIXED32) + struct.pack("<f", piece.score)
    return (
        _field(1, piece.text.encode())
        + score
        + _to_varint(3 << 3 | VARINT)
        + _to_varint(piece.type)
    )


def _field(number: int, value: bytes) -> bytes:
    return _to_varint(number << 3 | TEXT) + _to_varint(len(value)) + value


def _to_varint(value: int) -> bytes:
    """Write a number of 7 bits a byte, lowest first."""
    head = b""
    while value > 127:
        head, value = head + bytes([value & 127 | 128]), value >> 7
    return head + bytes([value])


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    (score,) = struct.unpack("<f", fields.get(2, bytes(4)))
    return Piece(bytes(fields.get(1, b"")).decode(), score, fields.get(3, NORMAL))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message; numbers are int, all else bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        if key & 7 == VARINT:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        length = {FIXED64: 8, FIXED32: 4}.get(key & 7)
        if length is None:
            length, place = _varint(data, place)
        yield key >> 3, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Read a number of 7 bits a byte, lowest first; return it and the place after it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
