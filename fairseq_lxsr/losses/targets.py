"""Sparse target distributions for the generative objectives.

A target q over the vocabulary is a pair (ids, weights), both [R, K]: q(w) is the sum of the weights
of all entries with id w. Entries of weight 0 are padding. No [R, V] tensor is ever built.

Source: Mao et al., "Lightweight Cross-Lingual Sentence Representation Learning", ACL 2021, Eq. 1-4
and the footnote on weights (number 3 or 4, depending on the version).
"""

import torch
from torch import Tensor

TARGET_WEIGHTS = ("types", "counts")
TARGET_OVERLAPS = ("sum", "translation")

Target = tuple[Tensor, Tensor]


def bag_of_pieces(tokens: Tensor, padding_idx: int, weighting: str = "types") -> Target:
    """Return the target of `xtr`: q(w) = n(w) / length for each piece w of a sentence (Eq. 3).

    Example:
        >>> bag_of_pieces(torch.tensor([[4, 4, 5, 1]]), padding_idx=1)[0].tolist()
        [[1, 4, 4, 5]]

    Args:
        tokens: [R, T] ids, with `padding_idx` at unused positions.
        padding_idx: id of padding.
        weighting: with `counts`, n(w) is the number of occurrences of w, and q sums to 1; with
            `types`, n(w) is 1 for each distinct w, and q sums to at most 1. The authors used
            `types`, according to their footnote.

    Returns:
        Ids [R, T] and weights, float32 [R, T].

    Raises:
        ValueError: if the weighting is unknown.
    """
    # [R, T]
    real = tokens.ne(padding_idx)
    weights = real / real.sum(dim=1, keepdim=True).clamp_min(1)
    if weighting == "counts":
        return tokens, weights
    if weighting != "types":
        raise ValueError(f"unknown weighting {weighting!r}; choose from {TARGET_WEIGHTS}")
    ids, order = tokens.sort(dim=1)
    return ids, weights.gather(1, order) * _starts_run(ids)


def spread(tokens: Tensor, padding_idx: int) -> Target:
    """Return a target with equal weights for all pieces in a row.

    In a row without pieces, q is 0. With one masked piece per row, this is the one-hot target of
    `smlm`.

    Example:
        >>> spread(torch.tensor([[4, 5]]), padding_idx=1)[1].tolist()
        [[0.5, 0.5]]

    Args:
        tokens: [R, K] ids, with `padding_idx` at unused positions.
        padding_idx: id of padding.

    Returns:
        Ids and weights, both [R, K].
    """
    return bag_of_pieces(tokens, padding_idx, "counts")


def mix(first: Target, second: Target, overlap: str = "sum") -> Target:
    """Return q = 1/2 first + 1/2 second, or q = second in rows where `first` is empty (Eq. 4).

    `first` is only non-empty for sentences with masked pieces.

    Example:
        >>> masked = spread(torch.tensor([[4]]), padding_idx=1)
        >>> translation = spread(torch.tensor([[5, 6]]), padding_idx=1)
        >>> mix(masked, translation)[1].tolist()
        [[0.5, 0.25, 0.25]]

    Args:
        first: ids and weights, both [R, K1].
        second: ids and weights, both [R, K2].
        overlap: mass of an id that occurs in both targets, for which the equation is ambiguous.
            With `sum` it is the sum of the two halves, so that q remains a distribution. With
            `translation` it is only 1/2 second. This is the first case of the equation that
            applies, and it is what the released code does (modeling/bertModel.py, lines 462 to
            470, where the second half overwrites the first).

    Returns:
        Ids and weights, both [R, K1 + K2].

    Raises:
        ValueError: if `overlap` is unknown.
    """
    # [R, 1]
    share = first[1].sum(dim=1, keepdim=True).gt(0) * 0.5
    first_weights = first[1] * share
    if overlap == "translation":
        # [R, K1, K2]
        in_both = (first[0][:, :, None] == second[0][:, None, :]) & second[1].gt(0)[:, None, :]
        first_weights = first_weights.masked_fill(in_both.any(dim=2), 0)
    elif overlap != "sum":
        raise ValueError(f"unknown overlap {overlap!r}; choose from {TARGET_OVERLAPS}")
    second_weights = second[1] * (1 - share)
    ids = torch.cat((first[0], second[0]), dim=1)
    return ids, torch.cat((first_weights, second_weights), dim=1)


def merge_duplicates(ids: Tensor, weights: Tensor) -> Target:
    """Merge duplicate ids in each row by summing their weights.

    Args:
        ids: ids of the entries [R, K].
        weights: their weights [R, K].

    Returns:
        Ids, sorted in each row, and weights, both [R, K]. The first of several equal ids receives
        their total weight, and the rest receive weight 0.
    """
    ids, order = ids.sort(dim=1)
    starts = _starts_run(ids)
    # [R, K] index of the run of equal ids to which each entry belongs
    run = starts.cumsum(dim=1) - 1
    mass = torch.zeros_like(weights).scatter_add(1, run, weights.gather(1, order))
    return ids, mass.gather(1, run) * starts


def _starts_run(sorted_ids: Tensor) -> Tensor:
    """Return a mask [R, K] of the entries that start a run of equal ids."""
    starts = torch.ones_like(sorted_ids, dtype=torch.bool)
    starts[:, 1:] = sorted_ids[:, 1:] != sorted_ids[:, :-1]
    return starts
