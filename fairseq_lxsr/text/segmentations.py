"""Splits word pieces into parts at random during training, and computes the expected embeddings.

A rare word has a row of its own that was seldom trained, and parts that were trained in other
words. If training replaces a piece by its parts with some probability, the sum of the rows of a
sentence is random. Its expectation can be stored: each row is replaced by the expected sum of rows
for its piece. Encoding takes no more time than before, and a rare word gets some of the meaning of
its parts, as in fastText (Bojanowski, Grave, Joulin and Mikolov 2017), where a word is the sum of
its character n-grams.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

# Maximum depth to which a piece and its parts are split, in training and for exported rows. A
# piece of N characters needs at most N - 1 rounds, and SentencePiece pieces have at most 16
# characters by default.
SPLIT_ROUNDS = 64


def merged_from(symbols: Sequence[str], first_piece: int) -> NDArray[np.int64]:
    """Return the ids of the two pieces that BPE merged into each piece.

    If several pairs spell a piece, the pair that BPE could merge first is taken.

    Args:
        symbols: V symbols of a dictionary, whose pieces are in the order of their merges.
        first_piece: the number of special symbols, which come first.

    Returns:
        The ids of both parts, [V, 2]; -1 for symbols that were not merged.
    """
    ids = {piece: number for number, piece in enumerate(symbols) if number >= first_piece}
    # SentencePiece lists pieces in merge order. Treat single characters as preceding all merges.
    ranks = {piece: 0 if len(piece) == 1 else number for piece, number in ids.items()}
    halves = np.full((len(symbols), 2), -1, dtype=np.int64)
    for piece, number in ids.items():
        parts = _first_merge(piece, ranks)
        if parts is not None:
            halves[number] = ids[parts[0]], ids[parts[1]]
    return halves


def _first_merge(piece: str, ranks: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the two parts that BPE would merge first to form a piece; None if there are none.

    Args:
        piece: the piece.
        ranks: the pieces, with numbers in the order of their merges.
    """
    merges = []
    for cut in range(1, len(piece)):
        first = piece[:cut]
        second = piece[cut:]
        if first in ranks and second in ranks:
            merges.append((first, second))
    if not merges:
        return None
    return min(merges, key=lambda parts: max(ranks[parts[0]], ranks[parts[1]]))


def split_probability(
    counts: NDArray[np.int64],
    everywhere: float,
    rare: float,
    before: NDArray[np.floating] | None = None,
) -> NDArray[np.floating]:
    """Return the probability that training splits a piece into its two parts, float32 [V].

    For a piece that occurs n times it is 1 - (1 - P) (1 - r) with r = K / (K + n), and r = 0 if K
    is 0.

    A piece that is rare in the new text of a continued training has learnt its row from the earlier
    text. Its probability is therefore at most the larger one of P and `before`. With the result as
    `before`, the result is the same: a training that is resumed splits pieces as it did.

    Args:
        counts: n, how often the training text has each piece, [V].
        everywhere: P, the probability that does not depend on the count.
        rare: K, the count at which a piece is split half of the time.
        before: the probabilities of the training that this one continues, [V]; None if there is
            none.
    """
    if rare:
        rare_share = rare / (rare + counts)
    else:
        rare_share = np.zeros(len(counts))
    split = 1 - (1 - everywhere) * (1 - rare_share)
    if before is not None:
        split = np.minimum(split, np.maximum(before, everywhere))
    return split.astype(np.float32)


def expected_rows(
    table: NDArray[np.floating], halves: NDArray[np.int64], probability: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Return the expected embedding of each piece if pieces are split at random, [V, D].

    With x(v) the result and h, g the two parts of v:
    x(v) = (1 - p(v)) table(v) + p(v) (x(h) + x(g)), and x(v) = table(v) for a piece without parts.

    Args:
        table: the trained rows [V, D].
        halves: the parts of each piece [V, 2], see `merged_from`.
        probability: p, the probability that a piece is split [V].
    """
    splittable = np.flatnonzero((halves[:, 0] >= 0) & (probability > 0))
    first, second = halves[splittable].T
    share = probability[splittable, None].astype(table.dtype)
    unsplit = (1 - share) * table[splittable]
    expected = table.copy()
    # Parts are shorter than their piece, so the result stops changing after at most as many rounds
    # as the longest piece has characters.
    for _ in range(SPLIT_ROUNDS):
        following = unsplit + share * (expected[first] + expected[second])
        if np.array_equal(following, expected[splittable]):
            break
        expected[splittable] = following
    return expected
