"""Sparse targets, compared with values worked out by hand."""

from collections import Counter

import pytest
import torch

from fairseq_lxsr.losses.targets import bag_of_pieces, merge_duplicates, mix, spread

PAD = 1


def as_dicts(target):
    """Each row of a sparse target as {id: mass}."""
    rows = []
    for ids, weights in zip(target[0].tolist(), target[1].tolist(), strict=True):
        masses = Counter()
        for piece, weight in zip(ids, weights, strict=True):
            if weight:
                masses[piece] += weight
        rows.append(pytest.approx(dict(masses)))
    return rows


TOKENS = torch.tensor([[7, 5, 7, 7], [9, 6, PAD, PAD]])


def test_counts_sum_to_one_and_types_count_a_repeated_piece_once():
    assert as_dicts(bag_of_pieces(TOKENS, PAD, "counts")) == [{7: 0.75, 5: 0.25}, {9: 0.5, 6: 0.5}]
    assert as_dicts(bag_of_pieces(TOKENS, PAD, "types")) == [{7: 0.25, 5: 0.25}, {9: 0.5, 6: 0.5}]


def test_mass_is_spread_over_masked_pieces_and_absent_without_any():
    assert as_dicts(spread(torch.tensor([[4, 8], [PAD, PAD]]), PAD)) == [{4: 0.5, 8: 0.5}, {}]


def test_the_mixture_adds_the_masses_of_a_masked_piece_that_is_in_the_translation():
    # The masked piece 7 is also in the translation [7 5 7 7]: 1/2 + 1/2 * 1/4.
    masked = spread(torch.tensor([[7], [PAD]]), PAD)
    translation = bag_of_pieces(TOKENS, PAD, "types")
    assert as_dicts(mix(masked, translation)) == [{7: 0.625, 5: 0.125}, {9: 0.5, 6: 0.5}]


def test_the_mixture_of_the_released_code_takes_the_mass_of_the_translation():
    """As the cases of the formula in their printed order: q then sums to less than one."""
    masked = spread(torch.tensor([[7], [PAD]]), PAD)
    translation = bag_of_pieces(TOKENS, PAD, "types")
    mixture = mix(masked, translation, "translation")
    assert as_dicts(mixture) == [{7: 0.125, 5: 0.125}, {9: 0.5, 6: 0.5}]
    # The same as two calls of index_fill_: 7 has 1/2 * 1/4 only, and 9 keeps its half.
    masked = spread(torch.tensor([[7], [9]]), PAD)
    translation = bag_of_pieces(TOKENS.flip(0), PAD, "types")
    expected = [{7: 0.5, 9: 0.25, 6: 0.25}, {9: 0.5, 7: 0.125, 5: 0.125}]
    assert as_dicts(mix(masked, translation, "translation")) == expected


def test_merging_moves_the_mass_of_duplicates_to_one_entry():
    ids = torch.tensor([[7, 5, 7, 0]])
    weights = torch.tensor([[0.5, 0.25, 0.125, 0.0]])
    merged_ids, merged_weights = merge_duplicates(ids, weights)
    assert merged_ids.tolist() == [[0, 5, 7, 7]]
    assert merged_weights.tolist() == [[0.0, 0.25, 0.625, 0.0]]
