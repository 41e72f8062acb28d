"""Splits word pieces into parts at random in training, and computes their expected embeddings.

A rare word's own embedding was seldom trained, but its parts were also trained in other words. If
training replaces a piece with its parts with some probability, the sum of a sentence's piece
embeddings becomes random. To compute its expectation, replace each embedding with the expected
embedding of its piece. Encoding then takes no extra time, and rare words inherit some meaning from
their parts, as in fastText (Bojanowski, Grave, Joulin and Mikolov 2017), where a word is the sum
of its character n-grams.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

# Maximum depth to which a piece and its parts are split, both in training and for exported
# embeddings. A piece of N characters needs a depth of at most N - 1, and SentencePiece pieces have
# at most 16 characters by default.
SPLIT_ROUNDS = 64


def merged_from(symbols: Sequence[str], first_piece: int) -> NDArray[np.int64]:
    """Return the ids of the two pieces that BPE merged to form each piece.

    If several pairs form the same piece, the pair that BPE would merge first is used.

    Args:
        symbols: V dictionary symbols; the pieces are in merge order.
        first_piece: number of special symbols, which come first.

    Returns:
        Ids of both parts [V, 2]; -1 for symbols that are not the result of a merge.
    """
    ids = {piece: number for number, piece in enumerate(symbols) if number >= first_piece}
    # SentencePiece lists pieces in merge order. Single characters count as preceding all merges.
    ranks = {piece: 0 if len(piece) == 1 else number for piece, number in ids.items()}
    halves = np.full((len(symbols), 2), -1, dtype=np.int64)
    for piece, number in ids.items():
        parts = _first_merge(piece, ranks)
        if parts is not None:
            halves[number] = ids[parts[0]], ids[parts[1]]
    return halves


def _first_merge(piece: str, ranks: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the two parts that BPE would merge first to form a piece, or None.

    Args:
        piece: the piece to split.
        ranks: maps each piece to its position in merge order.
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
    """Return the probability of splitting each piece into its two parts in training, float32 [V].

    For a piece that occurs n times, it is 1 - (1 - P) (1 - r), where r = K / (K + n), or r = 0 if
    K is 0.

    If training continues on new text, a piece that is rare there has learnt its embedding from the
    earlier text, so its probability is at most the larger of P and `before`. Passing the result as
    `before` returns the same result, so a resumed run splits pieces as it did before.

    Args:
        counts: number of occurrences n of each piece in the training text, [V].
        everywhere: P, the part of the probability that does not depend on the count.
        rare: K, the count at which a piece is split half of the time.
        before: probabilities of the training run that this one continues, [V]; None if there is
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
    """Return the expected embeddings of pieces that are split at random.

    The result x(v) of a piece v with the parts h and g is
    x(v) = (1 - p(v)) table(v) + p(v) (x(h) + x(g)); a piece without parts has x(v) = table(v).

    Args:
        table: trained embeddings [V, D].
        halves: ids of the parts of each piece [V, 2] (see `merged_from`).
        probability: probability p that each piece is split [V].

    Returns:
        Expected embeddings [V, D].
    """
    splittable = np.flatnonzero((halves[:, 0] >= 0) & (probability > 0))
    first, second = halves[splittable].T
    share = probability[splittable, None].astype(table.dtype)
    unsplit = (1 - share) * table[splittable]
    expected = table.copy()
    # Parts are shorter than their piece, so the result stops changing after at most as many
    # iterations as the longest piece has characters.
    for _ in range(SPLIT_ROUNDS):
        following = unsplit + share * (expected[first] + expected[second])
        if np.array_equal(following, expected[splittable]):
            break
        expected[splittable] = following
    return expected
