"""Generative objectives: predict words of a sentence and of its translation from an embedding.

These are the five objectives in table 6 of Mao et al. 2021. There is one encoder pass per side: the
source pass encodes the source sentence, the target pass the target sentence.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.divergence import kl_divergence
from fairseq_lxsr.losses.targets import Target, bag_of_pieces, mix, spread

OBJECTIVES = ("ugt", "xtr", "smlm", "mlm", "mlm_xtr")


def sentence_targets(
    objective: str,
    tokens: tuple[Tensor, Tensor],
    masked_ids: tuple[Tensor, Tensor],
    padding_idx: int,
    weighting: str = "types",
    overlap: str = "sum",
) -> tuple[Target, Target]:
    """Return the target distributions that the sentence embeddings must predict (`sentence_loss`).

    `ugt` is the objective proposed in the paper. `xtr` (Eq. 2 and 3) needs no masks, and retrieves
    about as many translations in the paper's table 6.

    Source: Mao et al. 2021, Eq. 1 to 4.

    Example:
        >>> tokens = torch.tensor([[4, 5]]), torch.tensor([[6, 1]])
        >>> masked = torch.tensor([[1]]), torch.tensor([[1]])
        >>> _, target = sentence_targets("xtr", tokens, masked, padding_idx=1, weighting="counts")
        >>> # The target pass must predict the two source pieces, each with half of the mass.
        >>> target[0].tolist(), target[1].tolist()
        ([[4, 5]], [[0.5, 0.5]])

    Args:
        objective: `xtr` predicts the words of the translation; `smlm` predicts the only masked
            piece of the pair, on whichever side it is; `ugt` and `mlm_xtr` predict the words of the
            translation, but reserve half of the mass for the masked pieces of the pass if it has
            any. `ugt` and `mlm_xtr` differ in how many pieces are masked.
        tokens: source and target ids, [B, T] and [B, T'], unmasked in the paper. The source pass
            predicts the target ids, and the target pass predicts the source ids.
        masked_ids: masked ids of source and target, [B, M] and [B, M'], with `padding_idx` at
            unused positions.
        padding_idx: id of padding.
        weighting: one of `TARGET_WEIGHTS`.
        overlap: one of `TARGET_OVERLAPS`, for `ugt` and `mlm_xtr` (see `targets.mix`).

    Returns:
        Targets of the source pass and of the target pass.

    Raises:
        ValueError: if the objective is unknown, or is `mlm`.
    """
    masked_pieces = [spread(pieces, padding_idx) for pieces in masked_ids]
    if objective == "smlm":
        masked = spread(torch.cat(masked_ids, dim=1), padding_idx)
        return masked, masked
    translation = [bag_of_pieces(side, padding_idx, weighting) for side in reversed(tokens)]
    if objective == "xtr":
        return translation[0], translation[1]
    if objective in ("ugt", "mlm_xtr"):
        source = mix(masked_pieces[0], translation[0], overlap)
        target = mix(masked_pieces[1], translation[1], overlap)
        return source, target
    raise ValueError(
        f"invalid objective {objective!r}; choose from {OBJECTIVES} except mlm, whose loss is "
        "token_loss"
    )


def sentence_loss(logits: Tensor, source: Target, target: Target) -> Tensor:
    """Return KL(q || softmax(logits)), summed over both sides and all pairs.

    There is one row of logits per sentence instead of one per piece, which makes the lightweight
    model cheap to train.

    Source: Mao et al. 2021, Eq. 2, with the order KL(q || p) of the version with six authors.

    Example:
        >>> # One pair, vocabulary size V = 8
        >>> logits, target = torch.zeros(2, 8), (torch.tensor([[4]]), torch.ones(1, 1))
        >>> round(sentence_loss(logits, target, target).item(), 3)  # 2 log 8
        4.159

    Args:
        logits: [2B, V], source passes first.
        source: target distribution of the source passes.
        target: target distribution of the target passes.

    Returns:
        The loss, a scalar in nats.
    """
    width = max(source[0].shape[1], target[0].shape[1])
    # [2B, K] each
    ids, weights = (
        torch.cat([F.pad(part, (0, width - part.shape[1])) for part in parts])
        for parts in zip(source, target, strict=True)
    )
    return kl_divergence(logits, ids, weights).sum()


def token_loss(
    logits: Tensor,
    masked_ids: tuple[Tensor, Tensor],
    masked_index: tuple[Tensor, Tensor],
    padding_idx: int,
) -> Tensor:
    """Return the cross-entropy of masked pieces: the mean of each sentence, summed over sentences.

    This is masked language modelling (`mlm`), the paper's baseline: each masked piece is predicted
    from its own state. It does not align languages, and retrieves few translations.

    The paper does not say how pieces are averaged. Here all sentences have the same weight, as in
    the other objectives.

    Example:
        >>> masked = torch.tensor([[4, 1]]), torch.tensor([[5, 6]])
        >>> index = torch.tensor([0]), torch.tensor([0, 1])
        >>> round(token_loss(torch.zeros(3, 8), masked, index, padding_idx=1).item(), 3)  # 2 log 8
        4.159

    Args:
        logits: [K + K', V], source pieces first.
        masked_ids: masked ids of source and target, [B, M] and [B, M'].
        masked_index: [K] and [K'] indices of the masked pieces in the flattened `masked_ids`.
        padding_idx: id of padding.

    Returns:
        The loss, a scalar in nats.
    """
    # [K + K'] each
    ids, weights = (
        torch.cat([part.flatten()[index] for part, index in zip(parts, masked_index, strict=True)])
        for parts in zip(*(spread(pieces, padding_idx) for pieces in masked_ids), strict=True)
    )
    return (kl_divergence(logits, ids[:, None], torch.ones_like(weights)[:, None]) * weights).sum()
