"""Masked pieces: one of a pair, or some of each sentence."""

import numpy as np
import pytest

from fairseq_lxsr.training.lightweight.parts import masking
from fairseq_lxsr.training.lightweight.parts.masking import (
    MaskingVocabulary,
    mask_one_piece,
    mask_tokens,
)

PAD = 1
FIRST = 4
COMMA = 4
DOT = 5
MASK = 99


@pytest.fixture
def vocabulary():
    punctuation = np.zeros(100, dtype=bool)
    punctuation[[COMMA, DOT]] = True
    return MaskingVocabulary(PAD, MASK, FIRST, punctuation, np.zeros_like(punctuation))


def batch(pairs, length, seed=0, shortest=1):
    """Random padded sentences without punctuation."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(10, MASK, (pairs, length))
    tokens[np.arange(length) >= rng.integers(shortest, length + 1, pairs)[:, None]] = PAD
    return tokens


def test_one_piece_of_one_side_is_masked_and_no_other_piece_changes(vocabulary):
    source = batch(500, 9, 1)
    target = batch(500, 12, 2)

    masked_source, masked_target = mask_one_piece(source, target, np.arange(500), 1, 1, vocabulary)

    num_masked = np.zeros(500, dtype=int)
    for original, masked in ((source, masked_source), (target, masked_target)):
        has_mask = (masked.tokens == MASK).any(axis=1)
        num_masked += (masked.tokens == MASK).sum(axis=1)
        # Sentences without a mask are unchanged.
        assert (masked.masked_ids[~has_mask] == PAD).all()
        np.testing.assert_array_equal(masked.tokens[~has_mask], original[~has_mask])
        # With the masked piece put back, the others are, too.
        restored = masked.tokens.copy()
        restored[has_mask, masked.positions[has_mask, 0]] = masked.masked_ids[has_mask, 0]
        np.testing.assert_array_equal(restored, original)
    assert (num_masked == 1).all()


def test_sides_and_positions_of_the_masked_piece_are_drawn_evenly(vocabulary):
    tokens = np.full((20_000, 5), 50)
    source, target = mask_one_piece(tokens, tokens, np.arange(20_000), 1, 1, vocabulary)
    assert abs((source.tokens == MASK).any(axis=1).mean() - 1 / 2) < 0.02
    for side in (source, target):
        shares_of_positions = (side.tokens == MASK).mean(axis=0)
        # Two sides of five positions.
        assert np.abs(shares_of_positions - 1 / 10).max() < 0.01


def test_punctuation_is_masked_only_in_sentences_of_punctuation(vocabulary):
    # A sentence with a word, and one without, in turn.
    tokens = np.array([[COMMA, 50, DOT, PAD], [COMMA, DOT, PAD, PAD]] * 200)
    source, target = mask_one_piece(tokens, tokens, np.arange(400), 1, 1, vocabulary)
    masked_ids = np.where(source.masked_ids != PAD, source.masked_ids, target.masked_ids)[:, 0]
    assert set(masked_ids[::2]) == {50}
    assert set(masked_ids[1::2]) == {COMMA, DOT}


def with_padding(tokens, extra):
    return np.pad(tokens, ((0, 0), (0, extra)), constant_values=PAD)


@pytest.mark.parametrize("kind", ["one", "tokens"])
def test_masks_depend_only_on_seed_epoch_and_index(vocabulary, kind):
    source = batch(64, 9, 1)
    target = batch(64, 12, 2)

    def mask(rows, seed=1, epoch=1, extra=0):
        """The masked pieces of both sides, next to each other."""
        read_source = with_padding(source[rows], extra)
        read_target = with_padding(target[rows], extra)
        if kind == "one":
            sides = mask_one_piece(read_source, read_target, rows, seed, epoch, vocabulary)
        else:
            sides = (
                mask_tokens(read_source, rows, 0, seed, epoch, vocabulary),
                mask_tokens(read_target, rows, 1, seed, epoch, vocabulary),
            )
        return np.concatenate([sides[0].tokens[:, :9], sides[1].tokens[:, :12]], axis=1)

    rows = np.arange(64)
    expected = mask(rows)
    # They depend neither on the order, nor on padding, nor on other pairs of the batch.
    order = np.random.default_rng(5).permutation(64)
    np.testing.assert_array_equal(mask(order, extra=3), expected[order])
    np.testing.assert_array_equal(mask(rows[10:20]), expected[10:20])
    assert (mask(rows, epoch=2) != expected).any()
    assert (mask(rows, seed=2) != expected).any()


@pytest.fixture
def masked_text(vocabulary):
    """4,000 sentences of 20 to 40 pieces: their pieces, and the same with masks."""
    tokens = batch(4000, 40, 3, shortest=20)
    return tokens, mask_tokens(tokens, np.arange(4000), 0, 1, 1, vocabulary)


def masked_pieces(masked):
    """The original pieces that are masked, and what the encoder reads in their places."""
    is_masked = masked.masked_ids != PAD
    rows, _ = np.nonzero(is_masked)
    return masked.masked_ids[is_masked], masked.tokens[rows, masked.positions[is_masked]]


def test_15_percent_of_pieces_are_masked(masked_text):
    tokens, masked = masked_text
    share = (masked.masked_ids != PAD).sum() / (tokens != PAD).sum()
    assert abs(share - 0.15) < 0.003


def test_80_percent_of_masked_pieces_are_hidden_and_10_percent_unchanged(masked_text):
    """The other 10 percent are replaced, as in BERT."""
    original, read = masked_pieces(masked_text[1])
    assert abs((read == MASK).mean() - 0.8) < 0.01
    assert abs((read == original).mean() - 0.1) < 0.01


def test_replacements_are_drawn_evenly_from_all_pieces(masked_text):
    original, read = masked_pieces(masked_text[1])
    replacements = read[(read != MASK) & (read != original)]
    assert replacements.min() >= FIRST
    assert replacements.max() < MASK
    shares_of_fifths = np.histogram(replacements, 5, (FIRST, MASK))[0] / len(replacements)
    assert np.abs(shares_of_fifths - 1 / 5).max() < 0.05


def test_pieces_that_are_not_masked_are_unchanged(masked_text):
    tokens, masked = masked_text
    is_masked = masked.masked_ids != PAD
    rows, _ = np.nonzero(is_masked)
    restored = masked.tokens.copy()
    restored[rows, masked.positions[is_masked]] = masked.masked_ids[is_masked]
    np.testing.assert_array_equal(restored, tokens)


def test_all_positions_are_masked_equally_often(vocabulary):
    tokens = np.full((20_000, 10), 50)
    masked = mask_tokens(tokens, np.arange(20_000), 0, 1, 1, vocabulary)
    positions = masked.positions[masked.masked_ids != PAD]
    shares = np.bincount(positions, minlength=10) / 20_000
    assert np.abs(shares - 0.15).max() < 0.01


def test_pieces_are_dropped_independently_of_masks(vocabulary):
    tokens = np.full((20_000, 10), 50)
    masked = mask_tokens(tokens, np.arange(20_000), 0, 1, 1, vocabulary).tokens
    dropped = masking.drop_pieces(masked, np.arange(20_000), 0, 1, 1, 0.15, vocabulary)
    assert (dropped == MASK).sum() == (masked == MASK).sum()
    assert abs((dropped == PAD).sum() / (masked != MASK).sum() - 0.15) < 0.01


def test_every_sentence_has_a_masked_piece(vocabulary):
    # Even sentences of one piece.
    masked = mask_tokens(batch(300, 6, 4), np.arange(300), 0, 1, 1, vocabulary)
    assert (masked.masked_ids != PAD).any(axis=1).all()


def test_both_sides_are_masked_differently(vocabulary):
    tokens = batch(300, 6, 4)
    source = mask_tokens(tokens, np.arange(300), 0, 1, 1, vocabulary)
    target = mask_tokens(tokens, np.arange(300), 1, 1, 1, vocabulary)
    assert (source.positions != target.positions).any()
