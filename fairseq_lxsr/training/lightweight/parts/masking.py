"""Masking of word pieces, which depends only on (seed, epoch, pair index); see `draws`."""

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

MASKINGS = ("none", "one", "tokens")
# `mask_tokens` selects this fraction of the pieces. Of the selected pieces, MASK_SHARE are replaced
# by <mask> and RANDOM_SHARE by a random piece; the rest remain unchanged (Devlin et al. 2019).
MASKED_SHARE = 0.15
MASK_SHARE = 0.8
RANDOM_SHARE = 0.1


@dataclass(frozen=True)
class MaskingVocabulary:
    """Dictionary data for masking: special ids, punctuation and word starts.

    Attributes:
        padding_idx: id of padding.
        mask_idx: id of <mask>, the last symbol.
        first_piece: id of the first piece; the pieces end before <mask>.
        is_punctuation: whether each symbol is punctuation [V].
        starts_word: whether each symbol starts a word [V].
    """

    padding_idx: int
    mask_idx: int
    first_piece: int
    is_punctuation: BoolArray
    starts_word: BoolArray


def add_mask(dictionary: Dictionary) -> MaskingVocabulary:
    """Add <mask> as the last symbol of a dictionary, and return the data for masking."""
    punctuation = [is_punctuation(symbol) for symbol in dictionary.symbols]
    marked = is_marked(dictionary.symbols)
    mask_idx = dictionary.add_symbol(MASK)
    return MaskingVocabulary(
        padding_idx=dictionary.pad(),
        mask_idx=mask_idx,
        first_piece=dictionary.nspecial,
        is_punctuation=np.array([*punctuation, False]),
        # If the dictionary does not mark word starts, every piece counts as a word.
        starts_word=np.array(
            [symbol.startswith(WORD_START) or not marked for symbol in dictionary.symbols]
        ),
    )


@dataclass(frozen=True)
class MaskedBatch:
    """One side of a masked batch.

    Attributes:
        tokens: encoder input ids [B, T].
        masked_ids: original ids of the masked pieces, then padding [B, M].
        positions: positions of the masked pieces, then 0 [B, M].
    """

    tokens: IntArray
    masked_ids: IntArray
    positions: IntArray


def mask_one_piece(
    source: IntArray,
    target: IntArray,
    index: IntArray,
    seed: int,
    epoch: int,
    vocabulary: MaskingVocabulary,
) -> tuple[MaskedBatch, MaskedBatch]:
    """Mask one piece per pair, on the source or target side with equal probability.

    Punctuation is only chosen if the sentences contain nothing else. The paper does not mention
    this; the released code of Mao et al. 2021 never masks punctuation (dataset.py, line 31).

    Args:
        source: padded source ids [B, T].
        target: padded target ids [B, T'].
        index: pair indices [B].
        seed: seed of the training run.
        epoch: number of the epoch.
        vocabulary: dictionary data for masking.

    Returns:
        The masked source and target.
    """
    # Whether to mask a piece of the source [B].
    draw_source = uniform(seed, epoch, index, Draw.MASKED_SIDE) < 0.5
    draw_piece = uniform(seed, epoch, index, Draw.MASKED_PIECE)
    sides = []
    for tokens, drawn in ((source, draw_source), (target, ~draw_source)):
        real = tokens != vocabulary.padding_idx
        candidates = real & ~vocabulary.is_punctuation[tokens]
        candidates = np.where(candidates.any(axis=1, keepdims=True), candidates, real)
        # Index of the chosen candidate [B], and its position in the sentence [B, 1].
        nth = (draw_piece * candidates.sum(axis=1)).astype(np.int64)
        position = (candidates.cumsum(axis=1) > nth[:, None]).argmax(axis=1)[:, None]
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
    """Randomly replace pieces with padding, except <mask> and the last remaining piece of a row.

    Args:
        tokens: padded ids [B, T].
        index: pair indices [B].
        side: 0 for the source, 1 for the target.
        seed: seed of the training run.
        epoch: number of the epoch.
        probability: probability of dropping each piece.
        vocabulary: dictionary data for masking.
    """
    # Random number for each position [B, T].
    drawn = uniform(
        seed, epoch, index[:, None], Draw.WORD_DROPOUT, side, np.arange(tokens.shape[1])
    )
    drawn[tokens == vocabulary.padding_idx] = 0
    stays = (
        (drawn >= probability)
        | (drawn == drawn.max(axis=1, keepdims=True))
        | (tokens == vocabulary.mask_idx)
    )
    return np.where(stays, tokens, vocabulary.padding_idx)


def mask_tokens(
    tokens: IntArray,
    index: IntArray,
    side: int,
    seed: int,
    epoch: int,
    vocabulary: MaskingVocabulary,
) -> MaskedBatch:
    """Mask 15 percent of the pieces in each sentence, but at least one.

    Of the selected pieces, 80 percent become <mask>, 10 percent become a random piece, and 10
    percent remain unchanged. For the arguments, see `drop_pieces`.
    """
    b, t = tokens.shape
    real = tokens != vocabulary.padding_idx
    lengths = real.sum(axis=1)

    def draw(kind: Draw) -> FloatArray:
        """Draw random numbers [B, T], one for every position."""
        return uniform(seed, epoch, index[:, None], kind, side, np.arange(t))

    # Rounding up or down at random makes the expected count exact.
    counts = np.floor(MASKED_SHARE * lengths + draw(Draw.MASKED_COUNT)[:, 0])
    counts = counts.astype(np.int64).clip(1, None)
    # Padding sorts last.
    order = np.where(real, draw(Draw.MASKED_POSITIONS), 2.0).argsort(axis=1, kind="stable")
    positions = np.sort(np.where(np.arange(t) < counts[:, None], order, t), axis=1)
    positions = positions[:, : counts.max(initial=1)]
    used = positions < t
    positions = np.where(used, positions, 0)
    masked_ids = np.where(
        used, np.take_along_axis(tokens, positions, axis=1), vocabulary.padding_idx
    )

    action = np.take_along_axis(draw(Draw.MASK_ACTION), positions, axis=1)
    span = vocabulary.mask_idx - vocabulary.first_piece
    nth = np.take_along_axis(draw(Draw.MASK_REPLACEMENT), positions, axis=1) * span
    random = vocabulary.first_piece + nth.astype(np.int64)
    random_or_same = np.where(action < MASK_SHARE + RANDOM_SHARE, random, masked_ids)
    replacement = np.where(action < MASK_SHARE, vocabulary.mask_idx, random_or_same)
    masked = tokens.copy()
    rows = np.broadcast_to(np.arange(b)[:, None], positions.shape)
    masked[rows[used], positions[used]] = replacement[used]
    return MaskedBatch(masked, masked_ids, positions)


class Masking:
    """Masks pieces in a batch on the fly.

    Args:
        kind: `none` masks nothing (objective xtr); `one` masks one piece per pair, on one side
            (smlm and ugt); `tokens` masks 15 percent of the pieces on both sides (mlm and mlm_xtr).
        vocabulary: dictionary data for masking.
    """

    def __init__(self, kind: str, vocabulary: MaskingVocabulary):
        if kind not in MASKINGS:
            raise ValueError(f"unknown masking {kind!r}; choose from {MASKINGS}")
        self.kind = kind
        self.vocabulary = vocabulary

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        for side, original, masked in zip(SIDES, pairs.tokens, self._mask(pairs), strict=True):
            batch["net_input"][side] = masked.tokens
            batch[f"{side}_masked_ids"] = masked.masked_ids
            if self.kind == "tokens":
                # Find the positions here, because on the device this would require a copy to the
                # host.
                rows, columns = np.nonzero(masked.masked_ids != self.vocabulary.padding_idx)
                batch[f"{side}_positions"] = (
                    rows * original.shape[1] + masked.positions[rows, columns]
                )
                batch[f"{side}_masked_index"] = rows * masked.masked_ids.shape[1] + columns

    def _mask(self, pairs: DrawnPairs) -> tuple[MaskedBatch, MaskedBatch]:
        settings = (pairs.dataset.seed, pairs.dataset.epoch, self.vocabulary)
        source, target = pairs.tokens
        if self.kind == "none":
            empty = np.full((len(source), 1), self.vocabulary.padding_idx)
            positions = np.zeros_like(empty)
            return MaskedBatch(source, empty, positions), MaskedBatch(target, empty, positions)
        if self.kind == "one":
            return mask_one_piece(source, target, pairs.index, *settings)
        masked_source = mask_tokens(source, pairs.index, 0, *settings)
        masked_target = mask_tokens(target, pairs.index, 1, *settings)
        return masked_source, masked_target


class MaskedTargets:
    """Makes the masked encoder inputs the targets of a batch. Must be applied after `Masking`."""

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        for side in SIDES:
            batch[f"{side}_tokens"] = batch["net_input"][side]


@dataclass(frozen=True)
class WordDropout:
    """Drops pieces from the encoder input, except in hard negatives. Must be applied after masking.

    Attributes:
        probability: probability of dropping each piece.
        vocabulary: dictionary data for masking.
    """

    probability: float
    vocabulary: MaskingVocabulary

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        data = pairs.dataset
        settings = (data.seed, data.epoch, self.probability, self.vocabulary)
        for number, side in enumerate(SIDES):
            tokens = batch["net_input"][side]
            batch["net_input"][side] = drop_pieces(tokens, pairs.index, number, *settings)
