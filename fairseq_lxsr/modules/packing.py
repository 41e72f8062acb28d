"""Sentences of many lengths in rows of few widths: next to no padding, and matrices of sizes that processors like."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

PIECES = 2048  # of a batch; more is not faster, the states of these lie in the processor's cache
NARROW = 64  # pieces; attention over rows of a multiple of 32 takes half the time of rows of, say, 12

# numbers of sentences, and what the network takes
Batches = Iterator[tuple[np.ndarray, tuple[np.ndarray, ...]]]


@dataclass(frozen=True)
class Rows:
    """Rows of one width, sentences one after the other in each.

    Args:
        width: W, pieces of a row.
        count: number of rows.
        sentences: [n] numbers of the sentences, those of a row next to each other.
        row: [n] the row each lies in, ascending.
        place: [n] where in its row each begins.
    """

    width: int
    count: int
    sentences: np.ndarray
    row: np.ndarray
    place: np.ndarray

    def batches(self, rows: int, sentences: int) -> Iterator["Rows"]:
        """Parts of at most so many rows and, where a row alone does not hold more, sentences."""
        ends = np.searchsorted(self.row, np.arange(self.count), side="right")
        start, first = 0, 0
        while start < self.count:
            stop = min(start + rows, int(np.searchsorted(ends, first + sentences, side="right")), self.count)
            stop = max(stop, start + 1)
            here = slice(first, int(ends[stop - 1]))
            yield Rows(self.width, stop - start, self.sentences[here], self.row[here] - start, self.place[here])
            start, first = stop, here.stop


def batches_by_length(lengths: np.ndarray, pieces: int, sentences: int) -> Iterator[np.ndarray]:
    """Numbers of sentences of similar length, longest first; empty ones are left out.

    Args:
        lengths: [N] pieces of each sentence.
        pieces: limit on a batch, padding included; a sentence longer than that is a batch of its own.
        sentences: another limit.
    """
    order = np.argsort(-lengths, kind="stable")
    order = order[: int((lengths > 0).sum())]
    start = 0
    while start < len(order):
        size = max(1, min(sentences, pieces // int(lengths[order[start]])))
        yield order[start : start + size]
        start += size


def pack(lengths: np.ndarray) -> list[Rows]:
    """Best-fit-decreasing bin packing over the lengths that occur, not over the sentences; empty ones are left out.

    A row is `NARROW` wide or the smallest power of two times it that its longest sentence needs; shorter ones fill it.

    Args:
        lengths: [N] pieces of each sentence.
    Returns: the widths that occur, widest first. The same lengths always give the same rows.
    """
    order = np.argsort(-lengths, kind="stable")  # longest first
    left = np.bincount(lengths[lengths > 0], minlength=1)  # [longest + 1] sentences of each length not yet in a row
    next_of_length = np.concatenate([left[::-1].cumsum()[::-1][1:], [0]])  # in `order`
    parts: dict[int, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
    counts: dict[int, int] = {}
    while left.any():
        longest = int(left.nonzero()[0][-1])
        width = NARROW << max(0, (longest - 1) // NARROW).bit_length()
        pattern = _fill(left, width)
        times = min(int(left[length]) // number for length, number in pattern)
        rows = counts.get(width, 0) + np.arange(times)
        place = 0
        for length, number in pattern:
            first = next_of_length[length]
            places = place + length * np.arange(number)
            sentences = order[first : first + times * number]
            parts.setdefault(width, []).append((sentences, np.repeat(rows, number), np.tile(places, times)))
            next_of_length[length] += times * number
            left[length] -= times * number
            place += number * length
        counts[width] = counts.get(width, 0) + times
    return [_joined(width, counts[width], found) for width, found in parts.items()]


def _fill(left: np.ndarray, width: int) -> list[tuple[int, int]]:
    """(length, number of sentences) of a row, always the longest that still fits."""
    pattern: list[tuple[int, int]] = []
    room = width
    while room:
        fitting = left[: room + 1].nonzero()[0]
        fitting = fitting[fitting < (pattern[-1][0] if pattern else len(left))]
        if not len(fitting):
            break
        length = int(fitting[-1])
        number = min(int(left[length]), room // length)
        pattern.append((length, number))
        room -= number * length
    return pattern


def _joined(width: int, count: int, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Rows:
    sentences, row, place = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(row, kind="stable")
    return Rows(width, count, sentences[order], row[order], place[order])


def row_batches(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, batch_size: int, padding: int) -> Batches:
    """Sentences packed into rows, as `TransformerSentenceEncoder.forward_rows` takes them."""
    for rows in pack(lengths):
        for batch in rows.batches(max(1, PIECES // rows.width), batch_size):
            here = batch.sentences
            yield here, row_inputs(batch, ids, starts[here], lengths[here], padding)


def padded_batches(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, batch_size: int, padding: int) -> Batches:
    """Sentences of similar length, padded to the longest."""
    for here in batches_by_length(lengths, PIECES, batch_size):
        is_token = np.arange(lengths[here].max()) < lengths[here, None]
        place = np.where(is_token, starts[here, None] + np.arange(is_token.shape[1]), 0)
        yield here, (np.where(is_token, ids[place], padding),)


def row_inputs(
    rows: Rows, ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, padding: int
) -> tuple[np.ndarray, ...]:
    """What `forward_rows` takes, for the sentences ids[start : start + length]."""
    first = lengths.cumsum() - lengths
    position = np.arange(lengths.sum()) - np.repeat(first, lengths)
    pieces = np.repeat(rows.row * rows.width + rows.place, lengths) + position
    shape = rows.count, rows.width
    tokens, positions = np.full(shape, padding, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    sentence = np.full(shape, -1)
    tokens.ravel()[pieces] = ids[np.repeat(starts, lengths) + position]
    positions.ravel()[pieces] = position
    sentence.ravel()[pieces] = np.repeat(np.arange(len(lengths)), lengths)
    return tokens, positions, sentence, pieces, first
