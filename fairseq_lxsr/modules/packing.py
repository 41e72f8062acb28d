"""Packs sentences of many lengths into rows of few widths: little padding, and matrix sizes that
compute fast.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BATCH_PIECES = 2048  # pieces of a batch; the states of so many fit into the processor's cache, and more are not faster
NARROW = 64  # pieces; attention over rows of a multiple of 32 takes half the time of rows of, for example, 12

# numbers of the sentences, and the arrays that the network takes
Batches = Iterator[tuple[np.ndarray, tuple[np.ndarray, ...]]]


@dataclass(frozen=True)
class FlatPieces:
    """Sentences as ids of pieces; sentence i is ids[starts[i] : starts[i] + lengths[i]]."""

    ids: np.ndarray  # [P] of all sentences
    starts: np.ndarray  # [N] index of the first piece of each sentence
    lengths: np.ndarray  # [N] number of pieces of each sentence


@dataclass(frozen=True)
class PackedRows:
    """Rows of one width, each with several sentences one after the other."""

    width: int  # W, pieces of a row
    count: int  # number of rows
    sentences: np.ndarray  # [n] numbers of the sentences; those of a row are adjacent
    row: np.ndarray  # [n] row of each sentence, ascending
    place: np.ndarray  # [n] position in the row at which each sentence begins

    def batches(self, rows: int, sentences: int) -> Iterator["PackedRows"]:
        """Split into parts of at most `rows` rows and `sentences` sentences; a single row may hold
        more sentences.
        """
        ends = np.searchsorted(self.row, np.arange(self.count), side="right")
        start, first = 0, 0
        while start < self.count:
            stop = min(
                start + rows,
                int(np.searchsorted(ends, first + sentences, side="right")),
                self.count,
            )
            stop = max(stop, start + 1)
            here = slice(first, int(ends[stop - 1]))
            yield PackedRows(
                self.width,
                stop - start,
                self.sentences[here],
                self.row[here] - start,
                self.place[here],
            )
            start, first = stop, here.stop


def pack(lengths: np.ndarray) -> list[PackedRows]:
    """Pack by best-fit-decreasing bin packing over the lengths [N] that occur, not over the
    sentences.

    Empty sentences are left out. The width of a row is the smallest `NARROW` x 2^k that holds its
    longest sentence.
    """
    order = np.argsort(-lengths, kind="stable")  # longest first
    # [longest + 1] sentences of each length not yet in a row
    left = np.bincount(lengths[lengths > 0], minlength=1)
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
            parts.setdefault(width, []).append(
                (sentences, np.repeat(rows, number), np.tile(places, times))
            )
            next_of_length[length] += times * number
            left[length] -= times * number
            place += number * length
        counts[width] = counts.get(width, 0) + times
    return [_joined(width, counts[width], found) for width, found in parts.items()]


def _fill(left: np.ndarray, width: int) -> list[tuple[int, int]]:
    """Fill a row, always with the longest sentence that still fits, as pairs (length, number of
    sentences).
    """
    pattern: list[tuple[int, int]] = []
    end = width + 1  # of the lengths that still fit
    while len(fitting := left[:end].nonzero()[0]):
        length = int(fitting[-1])
        number = min(int(left[length]), width // length)
        pattern.append((length, number))
        width -= number * length
        end = min(width + 1, length)
    return pattern


def _joined(
    width: int, count: int, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> PackedRows:
    sentences, row, place = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(row, kind="stable")
    return PackedRows(width, count, sentences[order], row[order], place[order])


def row_batches(pieces: FlatPieces, batch_size: int, padding: int) -> Batches:
    """Pack sentences into rows for `TransformerSentenceEncoder.forward_rows`."""
    for rows in pack(pieces.lengths):
        for batch in rows.batches(max(1, BATCH_PIECES // rows.width), batch_size):
            yield batch.sentences, row_inputs(batch, pieces, padding)


def padded_batches(pieces: FlatPieces, batch_size: int, padding: int) -> Batches:
    """Make batches of sentences of similar length, longest first, padded to the longest; empty ones
    are left out.
    """
    order = np.argsort(-pieces.lengths, kind="stable")[: np.count_nonzero(pieces.lengths)]
    while len(order):
        size = max(1, min(batch_size, BATCH_PIECES // int(pieces.lengths[order[0]])))
        here, order = order[:size], order[size:]
        lengths = pieces.lengths[here, None]
        is_token = np.arange(lengths.max()) < lengths
        place = np.where(is_token, pieces.starts[here, None] + np.arange(is_token.shape[1]), 0)
        yield here, (np.where(is_token, pieces.ids[place], padding),)


def row_inputs(rows: PackedRows, sentences: FlatPieces, padding: int) -> tuple[np.ndarray, ...]:
    """Build the arrays that `forward_rows` takes for the sentences of the rows."""
    starts, lengths = sentences.starts[rows.sentences], sentences.lengths[rows.sentences]
    first = lengths.cumsum() - lengths
    position = np.arange(lengths.sum()) - np.repeat(first, lengths)
    pieces = np.repeat(rows.row * rows.width + rows.place, lengths) + position
    shape = rows.count, rows.width
    tokens, positions = np.full(shape, padding, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    sentence = np.full(shape, -1)
    tokens.ravel()[pieces] = sentences.ids[np.repeat(starts, lengths) + position]
    positions.ravel()[pieces] = position
    sentence.ravel()[pieces] = np.repeat(np.arange(len(lengths)), lengths)
    return tokens, positions, sentence, pieces, first
