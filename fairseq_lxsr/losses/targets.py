"""Sparse target distributions of the generative objectives.

A target q over the vocabulary is a pair (ids, weights), both [R, K]: q(w) is the sum of the weights
whose id is w, and zero elsewhere; entries of weight 0 are padding. No [R, V] tensor is ever built.

Source: Mao et al., "Lightweight Cross-Lingual Sentence Representation Learning", ACL 2021, Eq. 1-4
and the footnote on weights (3 or 4, by version).
"""

import torch
from torch import Tensor

TARGET_WEIGHTS = ("types", "counts")
TARGET_OVERLAPS = ("sum", "translation")

Target = tuple[Tensor, Tensor]


def bag_of_pieces(tokens: Tensor, padding_idx: int, weighting: str = "types") -> Target:
    """q(w) = n(w) / length for the pieces w of a sentence (Eq. 3), the target of `xtr`.

    Example:
        >>> bag_of_pieces(torch.tensor([[4, 4, 5, 1]]), padding_idx=1)[0].tolist()
        [[1, 4, 4, 5]]

    Args:
        tokens: [R, T] ids, `padding_idx` at unused positions.
        padding_idx: id of padding.
        weighting: `counts`: n(w) is the number of times w occurs, so q sums to 1; `types`: n(w) is
            1 for every distinct w, so q sums to at most 1 (what the authors ran, by their
            footnote).

    Returns:
        ids [R, T] and weights [R, T] in float32.

    Raises:
        ValueError: for an unknown weighting.
    """
    real = tokens.ne(padding_idx)  # [R, T]
    weights = real / real.sum(dim=1, keepdim=True).clamp_min(1)
    if weighting == "counts":
        return tokens, weights
    if weighting != "types":
        raise ValueError(f"weighting is {weighting!r}; expected one of {TARGET_WEIGHTS}")
    ids, order = tokens.sort(dim=1)
    return ids, weights.gather(1, order) * _starts_run(ids)


def spread(tokens: Tensor, padding_idx: int) -> Target:
    """Spread q evenly over the given pieces of each row [R, K]; a row without any has q = 0.

    With one masked piece per row this is the one-hot target of `smlm`.

    Example:
        >>> spread(torch.tensor([[4, 5]]), padding_idx=1)[1].tolist()
        [[0.5, 0.5]]
    """
    return bag_of_pieces(tokens, padding_idx, "counts")


def mix(first: Target, second: Target, overlap: str = "sum") -> Target:
    """q = 1/2 first + 1/2 second where `first` has mass (a sentence with masked pieces), else
    `second` (Eq. 4).

    Example:
        >>> masked, translation = (spread(torch.tensor([ids]), padding_idx=1) for ids in ([4], [5, 6]))
        >>> mix(masked, translation)[1].tolist()
        [[0.5, 0.25, 0.25]]

    Args:
        first: ids and weights, both [R, K1].
        second: ids and weights, both [R, K2].
        overlap: mass of an id that is in both, where the equation can be read two ways: `sum`, of
            its two halves, so that q stays a distribution; `translation`, only 1/2 second, the
            first of the printed cases that fits (as the released code, modeling/bertModel.py, lines
            462 to 470, which writes the second half over the first).

    Returns:
        ids and weights, both [R, K1 + K2].

    Raises:
        ValueError: for an unknown overlap.
    """
    share = first[1].sum(dim=1, keepdim=True).gt(0) * 0.5  # [R, 1]
    own = first[1] * share
    if overlap == "translation":
        # [R, K1, K2]
        in_both = (first[0][:, :, None] == second[0][:, None, :]) & second[1].gt(0)[:, None, :]
        own = own.masked_fill(in_both.any(dim=2), 0)
    elif overlap != "sum":
        raise ValueError(f"overlap is {overlap!r}; expected one of {TARGET_OVERLAPS}")
    return torch.cat((first[0], second[0]), dim=1), torch.cat((own, second[1] * (1 - share)), dim=1)


def merge_duplicates(ids: Tensor, weights: Tensor) -> Target:
    """Merge duplicate ids of a row: the first of them gets their whole mass, which is then q(w)
    itself.

    Returns:
        ids sorted along each row and weights, both [R, K]; the other duplicates get weight 0.
    """
    ids, order = ids.sort(dim=1)
    starts = _starts_run(ids)
    run = starts.cumsum(dim=1) - 1  # [R, K], which run of equal ids an entry belongs to
    mass = torch.zeros_like(weights).scatter_add(1, run, weights.gather(1, order))
    return ids, mass.gather(1, run) * starts


def _starts_run(sorted_ids: Tensor) -> Tensor:
    starts = torch.ones_like(sorted_ids, dtype=torch.bool)
    starts[:, 1:] = sorted_ids[:, 1:] != sorted_ids[:, :-1]
    return starts
