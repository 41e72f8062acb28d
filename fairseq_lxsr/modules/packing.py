"""Packs sentences of various lengths into rows of only a few different widths.

This reduces padding, and results in matrix sizes that are fast to multiply.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Maximum number of pieces per batch on a CPU, chosen so that their states fit into the cache.
BATCH_PIECES = 2048
# Smallest row width. Attention is twice as fast for multiples of 32 as for a width such as 12.
NARROW = 64

# Batches, each with its sentence indices and the input arrays of the network.
Batches = Iterator[tuple[np.ndarray, tuple[np.ndarray, ...]]]


@dataclass(frozen=True)
class FlatPieces:
    """Concatenated word pieces of N sentences.

    The pieces of sentence i are ids[starts[i] : starts[i] + lengths[i]].

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
    """Rows of equal width, each containing one or more sentences.

    Attributes:
        width: number of pieces per row (W).
        count: number of rows.
        sentences: [n] sentence indices, ordered by row.
        row: [n] row index of each sentence, ascending.
        place: [n] start position of each sentence within its row.
    """

    width: int
    count: int
    sentences: np.ndarray
    row: np.ndarray
    place: np.ndarray

    def batches(self, rows: int, sentences: int) -> Iterator["PackedRows"]:
        """Split the rows into batches of at most `rows` rows and `sentences` sentences.

        A batch of a single row may contain more sentences.
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

    Rows that hold the same sentence lengths are filled together, which is fast. Empty sentences are
    skipped.
    The width of a row is the smallest `NARROW` x 2^k that holds its longest sentence.

    Args:
        lengths: [N] number of pieces of each sentence.

    Returns:
        The packed rows, grouped by width.
    """
    # Sort the longest sentences first.
    order = np.argsort(-lengths, kind="stable")
    # [longest + 1] number of unassigned sentences of each length
    left = np.bincount(lengths[lengths > 0], minlength=1)
    # For each length, the index in `order` of the next sentence with that length.
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
    """Choose sentences for one row, as pairs (length, number of sentences).

    The longest sentence that still fits is added until none fits.

    Args:
        left: [longest + 1] number of unassigned sentences of each length.
        width: number of pieces in the row.
    """
    pattern: list[tuple[int, int]] = []
    # Only lengths below this value still fit.
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
    """Concatenate the parts (sentences, rows and positions), and sort them by row."""
    sentences, row, place = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(row, kind="stable")
    return PackedRows(width, count, sentences[order], row[order], place[order])


def row_batches(
    pieces: FlatPieces, batch_size: int, padding: int, batch_pieces: int = BATCH_PIECES
) -> Batches:
    """Pack sentences into rows for `TransformerSentenceEncoder.forward_rows`.

    Args:
        pieces: word pieces of the sentences.
        batch_size: maximum number of sentences per batch.
        padding: id of padding.
        batch_pieces: maximum number of pieces per batch, including padding.

    Yields:
        Sentence indices of a batch, and the arguments of `forward_rows`.
    """
    for rows in pack(pieces.lengths):
        for batch in rows.batches(max(1, batch_pieces // rows.width), batch_size):
            yield batch.sentences, row_inputs(batch, pieces, padding)


def padded_batches(
    pieces: FlatPieces, batch_size: int, padding: int, batch_pieces: int = BATCH_PIECES
) -> Batches:
    """Create padded batches of sentences of similar length, longest first.

    Empty sentences are skipped. For the arguments, see `row_batches`.
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
    """Return the `forward_rows` arguments for the given rows."""
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
