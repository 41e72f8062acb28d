"""Word pieces of the windows of passages, which an index stores so that a search reads no text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# Splits N texts into word pieces: the dictionary ids of all pieces, and the number of pieces of
# each text; see `SentenceEncoder.split`.
SplitPieces = Callable[[Sequence[str]], tuple[IntArray, IntArray]]


@dataclass(frozen=True)
class PieceEmbedder:
    """Embeds text, and splits it into the word pieces of the same model.

        embed = PieceEmbedder(encoder.embed, encoder.encoder.split, encoder.fingerprint)
        CorpusIndex.build("index", passages, embed, encoder.fingerprint)

    Attributes:
        embed: returns the embeddings [n, D] of a text.
        split: splits texts into word pieces.
        model: fingerprint of the model.
    """

    embed: Callable[[Text], FloatArray]
    split: SplitPieces
    model: str

    def __call__(self, text: Text) -> FloatArray:
        """Return the embeddings of a text."""
        return self.embed(text)


@dataclass(frozen=True)
class WindowPieces:
    """Word pieces of W windows of passages, which have S sentences.

    Attributes:
        ids: dictionary ids of the pieces of all sentences [P].
        lengths: number of pieces of each sentence [S].
        counts: number of sentences of each window [W]; at least one.
    """

    ids: IntArray
    lengths: IntArray
    counts: IntArray


def join_windows(parts: Sequence[WindowPieces], positions: Sequence[IntArray]) -> WindowPieces:
    """Put the windows of several parts into one order.

    Args:
        parts: windows, at least one part.
        positions: position of each window of a part in the result.
    """
    if len(parts) == 1:
        return parts[0]
    ids = np.concatenate([part.ids for part in parts])
    lengths = np.concatenate([part.lengths for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    order = np.concatenate(positions).argsort()
    first_sentences = counts.cumsum() - counts
    sentences = joined_ranges(first_sentences[order], counts[order])
    first_pieces = lengths.cumsum() - lengths
    pieces = joined_ranges(first_pieces[sentences], lengths[sentences])
    return WindowPieces(ids[pieces], lengths[sentences], counts[order])


def joined_ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """Return the numbers of several ranges, one range after the other.

        joined_ranges(np.array([10, 40]), np.array([2, 3]))  # [10, 11, 40, 41, 42]

    Args:
        starts: first number of each range [n].
        counts: length of each range [n].
    """
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - counts), counts)


def find_windows(documents: IntArray, starts: IntArray, stops: IntArray) -> IntArray:
    """Return the first row of each window, given the spans of rows in their documents.

    The row of a window is followed by the rows of its sentences, which lie inside it.

    Args:
        documents: document of each row, ascending [R].
        starts: start of each row in the text of its document [R].
        stops: end of each row [R].
    """
    # Documents do not overlap after this shift, so one comparison suffices.
    shifts = documents * (int(stops.max(initial=0)) + 1)
    furthest = np.maximum.accumulate(shifts + stops)
    is_first = np.ones(len(documents), dtype=bool)
    is_first[1:] = (shifts + starts)[1:] >= furthest[:-1]
    return np.flatnonzero(is_first)


def sentence_rows(first_rows: IntArray, stop_rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return the first row of the sentences of each window, and their number.

    A window of one sentence has one row, which is both.

    Args:
        first_rows: first row of each window [W].
        stop_rows: row after the last row of each window [W].
    """
    first_sentences = np.minimum(first_rows + 1, stop_rows - 1)
    return first_sentences, stop_rows - first_sentences
