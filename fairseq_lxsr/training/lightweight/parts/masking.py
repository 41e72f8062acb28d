"""Deterministic masking: a function of (seed, epoch, pair index) alone, vectorised over a batch;
see `draws`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from fairseq.data import Dictionary
from numpy.typing import NDArray

from fairseq_lxsr.text.tokenizer import MASK, is_punctuation
from fairseq_lxsr.text.words import WORD_START, is_marked
from fairseq_lxsr.training.dataset import SIDES, DrawnPairs
from fairseq_lxsr.training.draws import Draw, uniform
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

BoolArray = NDArray[np.bool_]

MASKINGS = ("one", "tokens")
# share of pieces that `mask_tokens` chooses; of those, the share replaced by <mask> and by a random
# piece; the others are kept (Devlin et al. 2019)
MASKED_SHARE, MASK_SHARE, RANDOM_SHARE = 0.15, 0.8, 0.1


@dataclass(frozen=True)
class MaskingVocabulary:
    """Meaning of the ids: real pieces begin at `first_piece` and end before `mask_idx`, the last
    symbol, <mask>.
    """

    padding_idx: int
    mask_idx: int
    first_piece: int
    is_punctuation: BoolArray  # [V]
    starts_word: BoolArray  # [V] pieces that begin a word


def add_mask(dictionary: Dictionary) -> MaskingVocabulary:
    """Add <mask> to a dictionary of pieces, as its last symbol."""
    punctuation = [is_punctuation(symbol) for symbol in dictionary.symbols]
    marked = is_marked(dictionary.symbols)
    mask_idx = dictionary.add_symbol(MASK)
    return MaskingVocabulary(
        padding_idx=dictionary.pad(),
        mask_idx=mask_idx,
        first_piece=dictionary.nspecial,
        is_punctuation=np.array([*punctuation, False]),
        starts_word=np.array(
            [symbol.startswith(WORD_START) or not marked for symbol in dictionary.symbols]
        ),
    )


@dataclass(frozen=True)
class MaskedBatch:
    """One side of a batch: the ids that the encoder reads, and the masked ones (`padding_idx` at
    unused positions).
    """

    tokens: IntArray  # [B, T]
    masked_ids: IntArray  # [B, M] original ids of the masked pieces
    positions: IntArray  # [B, M] their positions, 0 at unused positions


def mask_one_piece(
    source: IntArray,
    target: IntArray,
    index: IntArray,
    seed: int,
    epoch: int,
    vocabulary: MaskingVocabulary,
) -> tuple[MaskedBatch, MaskedBatch]:
    """Draw one side of each pair (p = 1/2) and replace one of its pieces by <mask>; the other side
    stays whole.

    Pieces of punctuation are drawn only where a sentence has nothing else (Mao et al. 2021, section
    3.2). The sides are padded ids, [B, T] and [B, T'], of the pairs `index` [B].
    """
    draw_source = uniform(seed, epoch, index, Draw.MASKED_SIDE) < 0.5  # [B]
    which = uniform(seed, epoch, index, Draw.MASKED_PIECE)  # [B]
    sides = []
    for tokens, drawn in ((source, draw_source), (target, ~draw_source)):
        real = tokens != vocabulary.padding_idx
        candidates = real & ~vocabulary.is_punctuation[tokens]
        candidates = np.where(candidates.any(axis=1, keepdims=True), candidates, real)
        nth = (which * candidates.sum(axis=1)).astype(np.int64)  # [B], which candidate
        position = (candidates.cumsum(axis=1) > nth[:, None]).argmax(axis=1)[:, None]  # [B, 1]
        masked_ids = np.where(
            drawn[:, None], np.take_along_axis(tokens, position, axis=1), vocabulary.padding_idx
        )
        masked = tokens.copy()
        masked[drawn, position[drawn, 0]] = vocabulary.mask_idx
        sides.append(MaskedBatch(masked, masked_ids, np.where(drawn[:, None], position, 0)))
    return sides[0], sides[1]


def drop_pieces(
    tokens: IntArray,
    index: IntArray,
    side: int,
    seed: int,
    epoch: int,
    probability: float,
    vocabulary: MaskingVocabulary,
) -> IntArray:
    """Replace pieces by padding, each with some probability; <mask> and the piece of a row with the
    highest draw stay.

    `tokens` are the padded ids [B, T] of one side, 0 for the source and 1 for the target, of the
    pairs `index` [B].
    """
    # [B, T]
    drawn = uniform(
        seed, epoch, index[:, None], Draw.WORD_DROPOUT, side, np.arange(tokens.shape[1])
    )
    drawn[tokens == vocabulary.padding_idx] = 0
    kept = (
        (drawn >= probability)
        | (drawn == drawn.max(axis=1, keepdims=True))
        | (tokens == vocabulary.mask_idx)
    )
    return np.where(kept, tokens, vocabulary.padding_idx)


def mask_tokens(
    tokens: IntArray,
    index: IntArray,
    side: int,
    seed: int,
    epoch: int,
    vocabulary: MaskingVocabulary,
) -> MaskedBatch:
    """Choose 15 percent of the pieces of each sentence, at least one: 80 percent become <mask>, 10
    a random piece.

    The other 10 percent are kept. The arguments are those of `drop_pieces`.
    """
    b, t = tokens.shape
    real = tokens != vocabulary.padding_idx
    lengths = real.sum(axis=1)

    def draw(kind: Draw) -> FloatArray:
        return uniform(seed, epoch, index[:, None], kind, side, np.arange(t))  # [B, T]

    counts = (
        np.floor(MASKED_SHARE * lengths + draw(Draw.MASKED_COUNT)[:, 0])
        .astype(np.int64)
        .clip(1, None)
    )
    order = np.where(real, draw(Draw.MASKED_POSITIONS), 2.0).argsort(axis=1, kind="stable")
    positions = np.sort(np.where(np.arange(t) < counts[:, None], order, t), axis=1)[
        :, : counts.max(initial=1)
    ]
    used = positions < t
    positions = np.where(used, positions, 0)
    masked_ids = np.where(
        used, np.take_along_axis(tokens, positions, axis=1), vocabulary.padding_idx
    )

    action = np.take_along_axis(draw(Draw.MASK_ACTION), positions, axis=1)
    span = vocabulary.mask_idx - vocabulary.first_piece
    nth = np.take_along_axis(draw(Draw.MASK_REPLACEMENT), positions, axis=1) * span
    random = vocabulary.first_piece + nth.astype(np.int64)
    other = np.where(action < MASK_SHARE + RANDOM_SHARE, random, masked_ids)
    replacement = np.where(action < MASK_SHARE, vocabulary.mask_idx, other)
    masked = tokens.copy()
    rows = np.broadcast_to(np.arange(b)[:, None], positions.shape)
    masked[rows[used], positions[used]] = replacement[used]
    return MaskedBatch(masked, masked_ids, positions)


class Masking:
    """Part of a batch: masks pieces on the fly.

    The kind `one` masks one piece of one side of each pair (xtr, smlm, ugt), `tokens` 15 percent of
    the pieces of both sides (mlm, mlm_xtr).
    """

    def __init__(self, kind: str, vocabulary: MaskingVocabulary):
        if kind not in MASKINGS:
            raise ValueError(f"masking is {kind!r}; expected one of {MASKINGS}")
        self.kind, self.vocabulary = kind, vocabulary

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        for side, original, masked in zip(SIDES, pairs.tokens, self._mask(pairs), strict=True):
            batch["net_input"][side] = masked.tokens
            batch[f"{side}_masked_ids"] = masked.masked_ids
            if self.kind == "tokens":
                # computed on the host: a device would have to synchronize to know their number
                rows, columns = np.nonzero(masked.masked_ids != self.vocabulary.padding_idx)
                batch[f"{side}_positions"] = (
                    rows * original.shape[1] + masked.positions[rows, columns]
                )
                batch[f"{side}_masked_index"] = rows * masked.masked_ids.shape[1] + columns

    def _mask(self, pairs: DrawnPairs) -> tuple[MaskedBatch, MaskedBatch]:
        draw = pairs.dataset.seed, pairs.dataset.epoch, self.vocabulary
        source, target = pairs.tokens
        if self.kind == "one":
            return mask_one_piece(source, target, pairs.index, *draw)
        return mask_tokens(source, pairs.index, 0, *draw), mask_tokens(
            target, pairs.index, 1, *draw
        )


class MaskedTargets:
    """Part of a batch, after `Masking`: the other side predicts the ids with their masks, not the
    original ones.
    """

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        for side in SIDES:
            batch[f"{side}_tokens"] = batch["net_input"][side]


@dataclass(frozen=True)
class WordDropout:
    """Part of a batch: hides pieces from the encoder, after masking; hard negatives are read
    whole.
    """

    probability: float  # of hiding a piece
    vocabulary: MaskingVocabulary

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        draw = pairs.dataset.seed, pairs.dataset.epoch, self.probability, self.vocabulary
        for number, side in enumerate(SIDES):
            batch["net_input"][side] = drop_pieces(
                batch["net_input"][side], pairs.index, number, *draw
            )
