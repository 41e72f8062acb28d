"""Which pieces a piece is made of, how often training takes it apart, and the embeddings that this
expects.

A rare word has a row of its own that was seldom trained, and parts that were trained in other
words. Where training reads a piece as its parts with some probability, the sum of the rows of a
sentence is random. Its expectation can be stored: each row is replaced by the expected sum of the
rows that it is read as. Encoding takes no more time than before, and a rare word has some of the
meaning of its parts, as in fastText (Bojanowski, Grave, Joulin and Mikolov 2017), where a word is
the sum of its character n-grams.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# how often a piece and its parts are taken apart, in training and in exported rows: a piece of N
# characters needs N - 1 at most, and SentencePiece's have 16 unless more were asked for
SPLIT_ROUNDS = 64


def merged_from(symbols: Sequence[str], first_piece: int) -> NDArray[np.int64]:
    """Find the two pieces that each piece was merged from, as ids [V, 2], -1 where there are none.

    Where several pairs spell a piece, the one that BPE could merge first is taken: SentencePiece
    orders pieces by their merges, and single characters precede all of them. The first
    `first_piece` of the V symbols are special.
    """
    rank = {
        piece: 0 if len(piece) == 1 else number
        for number, piece in enumerate(symbols)
        if number >= first_piece
    }
    ids = {piece: number for number, piece in enumerate(symbols) if number >= first_piece}
    halves = np.full((len(symbols), 2), -1, dtype=np.int64)
    for piece, number in ids.items():
        ways = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [way for way in ways if way[0] in ids and way[1] in ids]
        if known:
            best = min(known, key=lambda way: max(rank[way[0]], rank[way[1]]))
            halves[number] = ids[best[0]], ids[best[1]]
    return halves


def split_probability(
    counts: NDArray[np.int64],
    everywhere: float,
    rare: float,
    before: NDArray[np.floating] | None = None,
) -> NDArray[np.floating]:
    """Compute the probability with which each piece is read as its two parts: [V] float32.

    It is 1 - (1 - P) (1 - r) with r = K / (K + n), or 0 where K is: P is `everywhere`, K is `rare`,
    and n in `counts` [V] how often the training text has a piece. `before` [V] are the
    probabilities of the training that this one goes on from; a piece that is rare in this text only
    has learnt its row from the other, so that it is at most P or `before`, whichever is more. With
    the result as `before` it is the same again: training that is resumed splits as it did.
    """
    split = 1 - (1 - everywhere) * (1 - (rare / (rare + counts) if rare else np.zeros(len(counts))))
    if before is not None:
        split = np.minimum(split, np.maximum(before, everywhere))
    return split.astype(np.float32)


def expected_rows(
    table: NDArray[np.floating], halves: NDArray[np.int64], probability: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Compute the expected sum of rows that each piece is read as, where pieces and their parts are
    split at random.

    With x(v) the result [V, D] and h, g the two parts of v (`halves` [V, 2], see `merged_from`):
    x(v) = (1 - p(v)) table(v) + p(v) (x(h) + x(g)), and x(v) = table(v) for a piece without parts.
    """
    whole = np.flatnonzero((halves[:, 0] >= 0) & (probability > 0))
    first, second = halves[whole].T
    share = probability[whole, None].astype(table.dtype)
    own, expected = (1 - share) * table[whole], table.copy()
    # a part is shorter than the whole, so nothing changes after the longest
    for _ in range(SPLIT_ROUNDS):
        following = own + share * (expected[first] + expected[second])
        if np.array_equal(following, expected[whole]):
            break
        expected[whole] = following
    return expected
