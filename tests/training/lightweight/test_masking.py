import numpy as np
import pytest

from fairseq_lxsr.training.lightweight.parts import masking
from fairseq_lxsr.training.lightweight.parts.masking import (
    MaskingVocabulary,
    mask_one_piece,
    mask_tokens,
)

PAD, MASK, FIRST, COMMA, DOT = 1, 99, 4, 4, 5


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


def test_one_piece_of_one_side_is_masked(vocabulary):
    source, target, index = batch(500, 9, 1), batch(500, 12, 2), np.arange(500)
    left, right = mask_one_piece(source, target, index, 1, 1, vocabulary)
    drawn = [(side.tokens == MASK).sum(axis=1) for side in (left, right)]
    assert (drawn[0] + drawn[1] == 1).all()
    for original, side, count in ((source, left, drawn[0]), (target, right, drawn[1])):
        rows = count == 1
        assert (side.masked_ids[~rows] == PAD).all()
        np.testing.assert_array_equal(side.tokens[~rows], original[~rows])
        restored = side.tokens.copy()
        restored[rows, side.positions[rows, 0]] = side.masked_ids[rows, 0]
        np.testing.assert_array_equal(restored, original)


def test_both_languages_and_all_places_are_drawn_evenly(vocabulary):
    tokens, index = np.full((20_000, 5), 50), np.arange(20_000)
    left, right = mask_one_piece(tokens, tokens, index, 1, 1, vocabulary)
    assert abs((left.tokens == MASK).any(axis=1).mean() - 0.5) < 0.02
    for side in (left, right):  # the place does not tell the side
        assert np.abs((side.tokens == MASK).sum(axis=0) / 20_000 - 0.1).max() < 0.01


def test_punctuation_is_masked_only_where_nothing_else_stands(vocabulary):
    tokens = np.array([[COMMA, 50, DOT, PAD], [COMMA, DOT, PAD, PAD]] * 200)
    left, right = mask_one_piece(tokens, tokens, np.arange(400), 1, 1, vocabulary)
    masked_ids = np.where(left.masked_ids != PAD, left.masked_ids, right.masked_ids)[:, 0]
    assert set(masked_ids[::2]) == {50}
    assert set(masked_ids[1::2]) == {COMMA, DOT}


def test_masking_depends_on_seed_epoch_and_index_alone(vocabulary):
    source, target, index = batch(64, 9, 1), batch(64, 12, 2), np.arange(64)

    def one(rows, seed=1, epoch=1, extra=0):
        sides = [
            np.pad(side[rows], ((0, 0), (0, extra)), constant_values=PAD)
            for side in (source, target)
        ]
        masked = mask_one_piece(*sides, index[rows], seed, epoch, vocabulary)
        return [side.tokens[:, :width] for side, width in zip(masked, (9, 12), strict=True)]

    def many(rows, seed=1, epoch=1, extra=0):
        tokens = np.pad(source[rows], ((0, 0), (0, extra)), constant_values=PAD)
        return [mask_tokens(tokens, index[rows], 0, seed, epoch, vocabulary).tokens[:, :9]]

    everything = np.arange(64)
    for mask in (one, many):
        reference = mask(everything)
        order = np.random.default_rng(5).permutation(64)
        for whole, shuffled in zip(reference, mask(order, extra=3), strict=True):
            np.testing.assert_array_equal(whole[order], shuffled)  # neither batch order nor padding
        for whole, part in zip(reference, mask(everything[10:20]), strict=True):
            np.testing.assert_array_equal(whole[10:20], part)  # nor the rest of the batch
        for other in ({"epoch": 2}, {"seed": 2}):
            assert any(
                (a != b).any() for a, b in zip(reference, mask(everything, **other), strict=True)
            )


def test_token_masking_statistics(vocabulary):
    tokens = batch(4000, 40, 3, shortest=20)
    masked = mask_tokens(tokens, np.arange(4000), 0, 1, 1, vocabulary)
    real, masked_ids = (tokens != PAD).sum(), masked.masked_ids != PAD
    assert abs(masked_ids.sum() / real - 0.15) < 0.003
    rows = np.broadcast_to(np.arange(4000)[:, None], masked_ids.shape)[masked_ids]
    now, before = masked.tokens[rows, masked.positions[masked_ids]], masked.masked_ids[masked_ids]
    assert abs((now == MASK).mean() - 0.8) < 0.01
    assert abs((now == before).mean() - 0.1) < 0.01
    np.testing.assert_array_equal(tokens[rows, masked.positions[masked_ids]], before)
    untouched = masked.tokens.copy()
    untouched[rows, masked.positions[masked_ids]] = before
    np.testing.assert_array_equal(untouched, tokens)
    random = now[(now != MASK) & (now != before)]
    assert random.min() >= FIRST
    assert random.max() < MASK
    assert np.abs(np.histogram(random, 5, (FIRST, MASK))[0] / len(random) - 0.2).max() < 0.05
    whole = mask_tokens(np.full((20_000, 10), 50), np.arange(20_000), 0, 1, 1, vocabulary)
    places = np.bincount(whole.positions[whole.masked_ids != PAD], minlength=10) / 20_000
    assert np.abs(places - 0.15).max() < 0.01
    # hidden pieces are drawn whatever is masked
    left = masking.drop_pieces(whole.tokens, np.arange(20_000), 0, 1, 1, 0.15, vocabulary)
    assert (left == MASK).sum() == (whole.tokens == MASK).sum()
    assert abs((left == PAD).sum() / (whole.tokens != MASK).sum() - 0.15) < 0.01
    tokens = batch(300, 6, 4)
    source, target = (
        mask_tokens(tokens, np.arange(300), side, 1, 1, vocabulary) for side in (0, 1)
    )
    assert (source.masked_ids != PAD).any(axis=1).all()
    assert (source.positions != target.positions).any()
