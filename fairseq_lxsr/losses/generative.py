"""Generative objectives: predict the words of a sentence, of its translation, or of both, from each
encoder pass.

The five rows of the table in Mao et al. 2021, section 3.2; `pass` l reads sentence S_l, l' is the
other language.
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
    """Build the targets that the sentence embedding of either pass must predict.

    For `sentence_loss`. `ugt` is the paper's; `xtr` needs no masks, and finds about as many
    translations in its tables.

    Source: Mao et al. 2021, Eq. 1 to 4.

    Example:
        >>> tokens, masked = (torch.tensor([[4, 5]]), torch.tensor([[6, 1]])), (torch.tensor([[1]]),) * 2
        >>> of_source, of_target = sentence_targets("xtr", tokens, masked, padding_idx=1, weighting="counts")
        >>> of_target[0].tolist(), of_target[1].tolist()  # the source's two pieces, half of the mass each
        ([[4, 5]], [[0.5, 0.5]])

    Args:
        objective: `xtr`: the words of the translation; `smlm`: the pair's one masked piece, on
            whichever side it is; `ugt` and `mlm_xtr`: the words of the translation, with half of
            the mass on the pass's own masked pieces if it has any (they differ in how many are
            masked).
        tokens: ids of source and target that the other pass predicts, [B, T] and [B, T']; unmasked
            in the paper.
        masked_ids: masked ids of source and target, [B, M] and [B, M'], `padding_idx` at unused
            positions.
        padding_idx: id of padding.
        weighting: one of `TARGET_WEIGHTS`.
        overlap: one of `TARGET_OVERLAPS`, for `ugt` and `mlm_xtr`, see `targets.mix`.

    Returns:
        targets for the source pass and the target pass.

    Raises:
        ValueError: for another objective.
    """
    own = [spread(pieces, padding_idx) for pieces in masked_ids]
    if objective == "smlm":
        masked = spread(torch.cat(masked_ids, dim=1), padding_idx)
        return masked, masked
    translation = [bag_of_pieces(other, padding_idx, weighting) for other in reversed(tokens)]
    if objective == "xtr":
        return translation[0], translation[1]
    if objective in ("ugt", "mlm_xtr"):
        return mix(own[0], translation[0], overlap), mix(own[1], translation[1], overlap)
    raise ValueError(
        f"objective is {objective!r}; expected one of {OBJECTIVES} but mlm, which predicts tokens"
    )


def sentence_loss(logits: Tensor, source: Target, target: Target) -> Tensor:
    """KL(q || softmax(logits)) summed over both passes and all pairs.

    One row of logits for a sentence, not for a piece, is what makes the lightweight model cheap.

    Source: Mao et al. 2021, Eq. 2, with q and p as in the last version, KL(q || p).

    Example:
        >>> logits, target = torch.zeros(2, 8), (torch.tensor([[4]]), torch.ones(1, 1))  # V 8, one pair
        >>> round(sentence_loss(logits, target, target).item(), 3)  # 2 log 8
        4.159

    Args:
        logits: [2B, V], source passes first.
        source: target distribution of the source passes.
        target: target distribution of the target passes.

    Returns:
        scalar, in nats.
    """
    width = max(source[0].shape[1], target[0].shape[1])
    ids, weights = (
        torch.cat([F.pad(part, (0, width - part.shape[1])) for part in parts])  # [2B, K]
        for parts in zip(source, target, strict=True)
    )
    return kl_divergence(logits, ids, weights).sum()


def token_loss(
    logits: Tensor,
    masked_ids: tuple[Tensor, Tensor],
    masked_index: tuple[Tensor, Tensor],
    padding_idx: int,
) -> Tensor:
    """Cross-entropy of each masked piece from its own state (`mlm`): mean within a sentence, summed
    over sentences.

    Masked language modelling, the paper's baseline: it does not align languages, and finds few
    translations.

    The paper does not say how pieces are averaged; here a sentence counts once, as in the other
    objectives.

    Example:
        >>> masked, index = (torch.tensor([[4, 1]]), torch.tensor([[5, 6]])), (torch.tensor([0]), torch.tensor([0, 1]))
        >>> round(token_loss(torch.zeros(3, 8), masked, index, padding_idx=1).item(), 3)  # 2 log 8
        4.159

    Args:
        logits: [K + K', V], source pieces first.
        masked_ids: masked ids of source and target, [B, M] and [B, M'].
        masked_index: [K] and [K'] indices of the real ones in the flattened `masked_ids`.
        padding_idx: id of padding.

    Returns:
        scalar, in nats.
    """
    ids, weights = (
        torch.cat(
            [part.flatten()[index] for part, index in zip(parts, masked_index, strict=True)]
        )  # [K + K']
        for parts in zip(*(spread(pieces, padding_idx) for pieces in masked_ids), strict=True)
    )
    return (kl_divergence(logits, ids[:, None], torch.ones_like(weights)[:, None]) * weights).sum()
