"""Contrastive alignment: each sentence must find its translation among those of the batch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32

ALIGN_SIMILARITIES = ("inner", "cosine")


@in_float32
def alignment_loss(
    u: Tensor,
    v: Tensor,
    all_u: Tensor | None = None,
    all_v: Tensor | None = None,
    *,
    similarity: str = "inner",
    scale: float = 1.0,
    first: int = 0,
    is_candidate: Tensor | None = None,
    same_text: Tensor | None = None,
    negative: Tensor | None = None,
    negative_of: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of the diagonal of S = u v^T over its rows plus over its columns, summed over the pairs.

    Source: Mao et al. 2021, Eq. 6 (inner product, scale 1); cosine with a scale as in CLIP (Radford et al. 2021).

    Args:
        u, v: [B, D] embeddings of the two sides of the pairs.
        all_u, all_v: [C, D] candidates when they are more than the batch (gathered over devices); pair i of the batch
            is their row `first + i`.
        scale: factor on the similarities (1 / temperature).
        is_candidate: [C] False for rows of the candidates that are padding.
        same_text: [2, B, C] True where a candidate, of v and of u, is not the true one but has its text: no candidate.
        negative: [B, D] one more candidate for each pair, for no other; negative_of: [B, 2] bool, for u, for v.
    Returns: scalar, in nats.
    """
    if similarity not in ALIGN_SIMILARITIES:
        raise ValueError(f"similarity is {similarity!r}; expected one of {ALIGN_SIMILARITIES}")
    in_batch = all_u is None and all_v is None
    all_u, all_v = (u if all_u is None else all_u), (v if all_v is None else all_v)
    if similarity == "cosine":
        u, v, all_u, all_v = (F.normalize(x, dim=1) for x in (u, v, all_u, all_v))
        negative = None if negative is None else F.normalize(negative, dim=1)
    rows = torch.arange(len(u), device=u.device)
    loss = u.new_zeros(())
    to_v = u @ all_v.T  # [B, C]
    to_u = to_v.T if in_batch else v @ all_u.T
    for side, (queries, similarities) in enumerate(((u, to_v), (v, to_u))):
        similarities = similarities * scale
        if is_candidate is not None:
            similarities = similarities.masked_fill(~is_candidate, float("-inf"))
        if same_text is not None:
            similarities = similarities.masked_fill(same_text[side], float("-inf"))
        if negative is not None and negative_of is not None:
            own = ((queries * negative).sum(dim=1) * scale).masked_fill(~negative_of[:, side], float("-inf"))
            similarities = torch.cat((similarities, own[:, None]), dim=1)  # [B, C + 1]
        loss = loss + F.cross_entropy(similarities, rows + first, reduction="sum")
    return loss


@torch.no_grad()
@in_float32
def in_batch_accuracy(u: Tensor, v: Tensor) -> Tensor:
    """How many sentences have their translation as nearest neighbour (cosine) in the batch.

    Returns: [2] counts in float32, source to target and target to source; a tie counts as not found.
    """
    similarities = F.normalize(u, dim=1) @ F.normalize(v, dim=1).T  # [B, B]
    true = similarities.diagonal().clone()
    similarities.fill_diagonal_(float("-inf"))  # the best of the others by amax takes a third of argmax's time
    return torch.stack([(true > similarities.amax(dim=dim)).sum() for dim in (1, 0)]).float()
