"""Sparse targets, compared with values worked out by hand."""

from collections import Counter

import pytest
import torch

from fairseq_lxsr.losses.targets import bag_of_pieces, merge_duplicates, mix, spread

PAD = 1


# Two sentences: piece 7 three times, and a shorter sentence.
SENTENCES = torch.tensor([[7, 5, 7, 7], [9, 6, PAD, PAD]])


def masses_by_piece(target):
    """Each row of a sparse target as {id of a piece: mass}."""
    rows = []
    for ids, weights in zip(target[0].tolist(), target[1].tolist(), strict=True):
        masses = Counter()
        for piece, weight in zip(ids, weights, strict=True):
            if weight:
                masses[piece] += weight
        rows.append(pytest.approx(dict(masses)))
    return rows


def test_counts_weight_each_piece_by_its_share_of_the_sentence():
    target = bag_of_pieces(SENTENCES, PAD, "counts")
    assert masses_by_piece(target) == [{7: 3 / 4, 5: 1 / 4}, {9: 1 / 2, 6: 1 / 2}]


def test_types_weight_a_repeated_piece_like_one_that_occurs_once():
    target = bag_of_pieces(SENTENCES, PAD, "types")
    assert masses_by_piece(target) == [{7: 1 / 4, 5: 1 / 4}, {9: 1 / 2, 6: 1 / 2}]


def test_masked_pieces_of_a_sentence_share_its_mass():
    """A sentence without masked pieces has no mass."""
    masked_pieces = torch.tensor([[4, 8], [PAD, PAD]])
    target = spread(masked_pieces, PAD)
    assert masses_by_piece(target) == [{4: 1 / 2, 8: 1 / 2}, {}]


def test_the_mixture_adds_the_masses_of_a_masked_piece_that_is_in_the_translation():
    # The first sentence has a masked piece, 7; the second has none.
    masked = spread(torch.tensor([[7], [PAD]]), PAD)
    translation = bag_of_pieces(SENTENCES, PAD, "types")

    mixture = mix(masked, translation)

    # 7 is all of the masked pieces, and 1/4 of the translation.
    assert masses_by_piece(mixture) == [
        {7: 1 / 2 * 1 + 1 / 2 * 1 / 4, 5: 1 / 2 * 1 / 4},
        {9: 1 / 2, 6: 1 / 2},
    ]


def test_overlap_translation_takes_only_the_mass_of_the_translation():
    """As the cases of the formula in their printed order: the mass sums to less than one."""
    # The first sentence has a masked piece, 7; the second has none.
    masked = spread(torch.tensor([[7], [PAD]]), PAD)
    translation = bag_of_pieces(SENTENCES, PAD, "types")

    mixture = mix(masked, translation, overlap="translation")

    assert masses_by_piece(mixture) == [
        {7: 1 / 2 * 1 / 4, 5: 1 / 2 * 1 / 4},
        {9: 1 / 2, 6: 1 / 2},
    ]


def test_overlap_translation_keeps_a_masked_piece_that_is_only_in_another_translation():
    # The masked piece 7 is in the second translation, and 9 is in the first.
    masked = spread(torch.tensor([[7], [9]]), PAD)
    translation = bag_of_pieces(torch.tensor([[9, 6, PAD, PAD], [7, 5, 7, 7]]), PAD, "types")

    mixture = mix(masked, translation, overlap="translation")

    assert masses_by_piece(mixture) == [
        {7: 1 / 2, 9: 1 / 2 * 1 / 2, 6: 1 / 2 * 1 / 2},
        {9: 1 / 2, 7: 1 / 2 * 1 / 4, 5: 1 / 2 * 1 / 4},
    ]


def test_merging_moves_the_mass_of_duplicates_to_one_entry():
    ids = torch.tensor([[7, 5, 7, 0]])
    weights = torch.tensor([[0.5, 0.25, 0.125, 0.0]])

    merged_ids, merged_weights = merge_duplicates(ids, weights)

    # The entries are sorted by id, and the first of the two entries of 7 has the mass of both.
    assert merged_ids.tolist() == [[0, 5, 7, 7]]
    assert merged_weights.tolist() == [[0.0, 0.25, 0.5 + 0.125, 0.0]]
