"""Packs sentences of various lengths into rows of only a few widths.

This reduces padding, and leads to matrix sizes that are computed fast.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Maximum number of pieces per batch on a CPU. Their states fit into the processor cache, and larger
# batches are not faster.
BATCH_PIECES = 2048
# Smallest row width. Attention is twice as fast for widths that are multiples of 32 as, for
# example, for a width of 12.
NARROW = 64

# Batches, each with its sentence numbers and the input arrays of the network.
Batches = Iterator[tuple[np.ndarray, tuple[np.ndarray, ...]]]


@dataclass(frozen=True)
class FlatPieces:
    """The word pieces of N sentences; sentence i is ids[starts[i] : starts[i] + lengths[i]].

    Attributes:
        ids: [P] dictionary ids of all sentences.
        starts: [N] index of the first piece of each sentence.
        lengths: [N] number of pieces of each sentence.
    """

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class PackedRows:
    """Rows of equal width, each containing several consecutive sentences.

    Attributes:
        width: W, number of pieces of a row.
        count: number of rows.
        sentences: [n] numbers of the sentences, ordered by row.
        row: [n] row of each sentence, ascending.
        place: [n] position in its row at which each sentence begins.
    """

    width: int
    count: int
    sentences: np.ndarray
    row: np.ndarray
    place: np.ndarray

    def batches(self, rows: int, sentences: int) -> Iterator["PackedRows"]:
        """Split the rows into batches of at most `rows` rows and `sentences` sentences.

        A part of a single row may have more sentences.
        """
        ends = np.searchsorted(self.row, np.arange(self.count), side="right")
        start = 0
        first = 0
        while start < self.count:
            stop = min(
                start + rows,
                int(np.searchsorted(ends, first + sentences, side="right")),
                self.count,
            )
            stop = max(stop, start + 1)
            part = slice(first, int(ends[stop - 1]))
            yield PackedRows(
                self.width,
                stop - start,
                self.sentences[part],
                self.row[part] - start,
                self.place[part],
            )
            start = stop
            first = part.stop


def pack(lengths: np.ndarray) -> list[PackedRows]:
    """Pack sentences into rows by best-fit-decreasing bin packing.

    All sentences of a length are packed together, which is fast. Empty sentences are left out. The
    width of a row is the smallest `NARROW` x 2^k that its longest sentence fits into.

    Args:
        lengths: [N] number of pieces of each sentence.

    Returns:
        The rows of each width.
    """
    # Sort the longest sentences first.
    order = np.argsort(-lengths, kind="stable")
    # [longest + 1] number of unassigned sentences of each length
    left = np.bincount(lengths[lengths > 0], minlength=1)
    # For each length, the index in `order` of its next sentence.
    next_of_length = np.concatenate([left[::-1].cumsum()[::-1][1:], [0]])
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
    return [_joined(width, counts[width], row_parts) for width, row_parts in parts.items()]


def _fill(left: np.ndarray, width: int) -> list[tuple[int, int]]:
    """Choose the sentence lengths in a row, as pairs of a length and a number of sentences.

    The row is filled with the longest sentence that still fits, until none fits.

    Args:
        left: [longest + 1] number of sentences of each length that are in no row yet.
        width: number of pieces of the row.
    """
    pattern: list[tuple[int, int]] = []
    # Lengths below this one still fit.
    end = width + 1
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
    """Concatenate arrays of sentences, rows and positions, sorted by row."""
    sentences, row, place = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(row, kind="stable")
    return PackedRows(width, count, sentences[order], row[order], place[order])


def row_batches(
    pieces: FlatPieces, batch_size: int, padding: int, batch_pieces: int = BATCH_PIECES
) -> Batches:
    """Pack sentences into rows for `TransformerSentenceEncoder.forward_rows`.

    Args:
        pieces: the sentences.
        batch_size: maximum number of sentences of a batch.
        padding: id of padding.
        batch_pieces: maximum number of pieces of a batch, with padding.
    """
    for rows in pack(pieces.lengths):
        for batch in rows.batches(max(1, batch_pieces // rows.width), batch_size):
            yield batch.sentences, row_inputs(batch, pieces, padding)


def padded_batches(
    pieces: FlatPieces, batch_size: int, padding: int, batch_pieces: int = BATCH_PIECES
) -> Batches:
    """Create padded batches of sentences of similar length, longest first.

    Empty sentences are left out. The arguments are those of `row_batches`.
    """
    order = np.argsort(-pieces.lengths, kind="stable")[: np.count_nonzero(pieces.lengths)]
    while len(order):
        size = max(1, min(batch_size, batch_pieces // int(pieces.lengths[order[0]])))
        sentences = order[:size]
        order = order[size:]
        lengths = pieces.lengths[sentences, None]
        is_token = np.arange(lengths.max()) < lengths
        place = np.where(is_token, pieces.starts[sentences, None] + np.arange(is_token.shape[1]), 0)
        yield sentences, (np.where(is_token, pieces.ids[place], padding),)


def row_inputs(rows: PackedRows, sentences: FlatPieces, padding: int) -> tuple[np.ndarray, ...]:
    """Return the arguments of `forward_rows` for the given rows."""
    starts = sentences.starts[rows.sentences]
    lengths = sentences.lengths[rows.sentences]
    first = lengths.cumsum() - lengths
    position = np.arange(lengths.sum()) - np.repeat(first, lengths)
    pieces = np.repeat(rows.row * rows.width + rows.place, lengths) + position
    shape = rows.count, rows.width
    tokens = np.full(shape, padding, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    sentence = np.full(shape, -1)
    tokens.ravel()[pieces] = sentences.ids[np.repeat(starts, lengths) + position]
    positions.ravel()[pieces] = position
    sentence.ravel()[pieces] = np.repeat(np.arange(len(lengths)), lengths)
    return tokens, positions, sentence, pieces, first
