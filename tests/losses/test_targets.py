"""Targets on literals worked out by hand."""

import pytest
import torch

from fairseq_lxsr.losses.targets import bag_of_pieces, merge_duplicates, mix, spread

PAD = 1


def as_dicts(target):
    """Each row of a sparse target as {id: mass}."""
    rows = []
    for ids, weights in zip(*(part.tolist() for part in target), strict=True):
        row: dict[int, float] = {}
        for piece, weight in zip(ids, weights, strict=True):
            if weight:
                row[piece] = row.get(piece, 0) + weight
        rows.append({piece: pytest.approx(mass) for piece, mass in row.items()})
    return rows


TOKENS = torch.tensor([[7, 5, 7, 7], [9, 6, PAD, PAD]])


def test_counts_sum_to_one_and_types_count_a_repeated_piece_once():
    assert as_dicts(bag_of_pieces(TOKENS, PAD, "counts")) == [{7: 0.75, 5: 0.25}, {9: 0.5, 6: 0.5}]
    assert as_dicts(bag_of_pieces(TOKENS, PAD, "types")) == [{7: 0.25, 5: 0.25}, {9: 0.5, 6: 0.5}]


def test_spread_over_masked_pieces_and_nothing_where_there_are_none():
    assert as_dicts(spread(torch.tensor([[4, 8], [PAD, PAD]]), PAD)) == [{4: 0.5, 8: 0.5}, {}]


def test_the_two_readings_of_the_ugt_mixture_for_a_piece_that_is_in_both():
    # our reading: the masked piece 7 also stands in the translation [7 5 7 7]: 1/2 + 1/2 * 1/4
    parts = spread(torch.tensor([[7], [PAD]]), PAD), bag_of_pieces(TOKENS, PAD, "types")
    assert as_dicts(mix(*parts)) == [{7: 0.625, 5: 0.125}, {9: 0.5, 6: 0.5}]
    # the printed cases in order, and the released code: the share in place of the half, so q sums
    # to less than one
    assert as_dicts(mix(*parts, "translation")) == [{7: 0.125, 5: 0.125}, {9: 0.5, 6: 0.5}]
    # as two index_fill_ after each other: 7 has 1/2 * 1/4 only, 9 keeps its half
    parts = spread(torch.tensor([[7], [9]]), PAD), bag_of_pieces(TOKENS.flip(0), PAD, "types")
    expected = [{7: 0.5, 9: 0.25, 6: 0.25}, {9: 0.5, 7: 0.125, 5: 0.125}]
    assert as_dicts(mix(*parts, "translation")) == expected


def test_merge_moves_all_mass_to_one_entry():
    ids, weights = merge_duplicates(
        torch.tensor([[7, 5, 7, 0]]), torch.tensor([[0.5, 0.25, 0.125, 0.0]])
    )
    assert ids.tolist() == [[0, 5, 7, 7]]
    assert weights.tolist() == [[0.0, 0.25, 0.625, 0.0]]
