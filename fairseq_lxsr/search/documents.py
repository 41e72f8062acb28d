"""Documents of an index before they are written: their texts, line numbers and ids."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError, check_strings, shown
from fairseq_lxsr.files.lines import is_blank, single_line
from fairseq_lxsr.search.resumable import ENCODE_ROWS
from fairseq_lxsr.search.segment_vectors import Mask

# An id must not contain a control character, because tables have one hit per line.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# Ids of documents, a function that returns whether a document with an id may be found, or a mask.
Where = Collection[str | int] | Callable[[str], bool] | Mask
# A validated condition, with ids converted to text.
Condition = frozenset[str] | Callable[[str], bool] | Mask


class IdError(InputError):
    """An error in a list of ids. The message contains the one-based position of the id."""


@dataclass(frozen=True)
class Block:
    """Documents that are embedded and written together.

    Attributes:
        sentences: texts, each a single line.
        lines: zero-based line index of each sentence in the corpus.
        places: zero-based index of each sentence in the input, for messages.
        ids: id of each sentence; None if the ids are the line numbers.
        next_line: zero-based index of the corpus line after the block.
    """

    sentences: list[str]
    lines: list[int]
    places: list[int]
    ids: list[str] | None
    next_line: int


def blocks(
    sentences: Iterable[str],
    ids: Iterable[str | int] | None,
    first_line: int,
    block_rows: int = ENCODE_ROWS,
    first_place: int = 0,
) -> Iterator[Block]:
    """Split documents into blocks, without empty documents.

    Empty lines count towards the size of a block. So if a part of a corpus starts at the first line
    of a block, its blocks and embeddings are the same as in the whole corpus.

    Args:
        sentences: texts of the documents.
        ids: ids of the documents; None to use line numbers.
        first_line: zero-based line index of the first document in the corpus.
        block_rows: number of documents per block.
        first_place: zero-based index of the first document in the input, for messages.

    Raises:
        InputError: if there is not one id for each sentence, if an id is invalid or appears twice,
            or if a sentence is not a string.
    """
    remaining = iter(sentences)
    remaining_ids = None if ids is None else checked_ids(ids)
    start = 0
    while texts := list(islice(remaining, block_rows)):
        check_strings("sentences", texts, start)
        names = None
        if remaining_ids is not None:
            names = list(islice(remaining_ids, len(texts)))
            if len(names) < len(texts):
                raise IdError(
                    f"{start + len(names):,} ids for more sentences; expected one id for each "
                    "sentence"
                )
        yield _block(texts, names, start, first_line, first_place)
        start += len(texts)
    if remaining_ids is not None and next(remaining_ids, None) is not None:
        raise IdError(f"more ids than the {start:,} sentences; expected one id for each sentence")


def _block(
    texts: list[str], names: list[str] | None, start: int, first_line: int, first_place: int
) -> Block:
    """Return the block that starts at index `start` of the input."""
    numbers = []
    sentences = []
    for number, text in enumerate(texts):
        if not is_blank(text):
            numbers.append(number)
            sentences.append(single_line(text))
    ids = None
    if names is not None:
        ids = [names[number] for number in numbers]
    return Block(
        sentences,
        [first_line + start + number for number in numbers],
        [first_place + start + number for number in numbers],
        ids,
        first_line + start + len(texts),
    )


def checked_ids(ids: Iterable[str | int]) -> Iterator[str]:
    """Yield ids as text, after checking that each is valid and appears only once.

    Raises:
        InputError: for an invalid id; the message contains its one-based position.
    """
    first_numbers: dict[str, int] = {}
    for number, value in enumerate(ids, start=1):
        name = id_text(value, f"id {number:,}")
        first = first_numbers.setdefault(name, number)
        if first != number:
            raise IdError(
                f"id {number:,}: {shown(name)} repeats id {first:,}; each id must appear once"
            )
        yield name


def id_text(value: Any, place: str) -> str:
    """Return an id as text; integers are converted.

    Raises:
        InputError: if the id is invalid; the message begins with `place`.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip() or CONTROL.search(value):
        raise IdError(
            f"{place}: {shown(value)} is invalid; expected an integer, or text without tabs, "
            "newlines and other control characters"
        )
    return value


def checked_where(where: Where, name: str = "where") -> Condition:
    """Validate the condition of a search, and return ids as a set of text.

    Args:
        where: the condition.
        name: name of the condition for messages.

    Raises:
        InputError: if `where` is a single string, or neither a collection nor a function.
    """
    if callable(where):
        return where
    if isinstance(where, np.ndarray) and where.dtype == bool:
        return where
    if isinstance(where, str | bytes) or not isinstance(where, Iterable):
        raise InputError(
            f"{name} is {shown(where)}; expected a collection of ids, or a function of an id"
        )
    return frozenset(id_text(value, name) for value in where)
