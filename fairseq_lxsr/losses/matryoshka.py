"""Matryoshka training: embeddings remain usable when truncated to their first dimensions."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fairseq_lxsr.losses.alignment import Candidates, Cosines, Negatives, alignment_loss


def matryoshka_alignment_loss(
    u: Tensor,
    v: Tensor,
    widths: Iterable[int],
    *,
    candidates: Candidates | None = None,
    negatives: Negatives | None = None,
    cosines: Cosines | None = None,
    **options: Any,
) -> Tensor:
    """Return the alignment loss on the first d dimensions, summed over all widths d.

    Use it for embeddings that users truncate to save memory. At full width, accuracy stays within
    one point of `alignment_loss`.

    Source: Kusupati et al. 2022, Eq. 1, with all relative importances c_m = 1, as in their
    experiments. With cosine similarity, the first d dimensions are normalized separately.

    Example:
        >>> u = v = torch.eye(4, 8)
        >>> loss = matryoshka_alignment_loss(u, v, (4, 8), similarity="cosine", scale=20.0)
        >>> # Dimensions 5 to 8 are zero, so both widths have the same loss.
        >>> torch.equal(loss, 2 * alignment_loss(u, v, similarity="cosine", scale=20.0))
        True

    Args:
        u: [B, D] embeddings of the source side.
        v: [B, D] embeddings of the target side.
        widths: the widths d, each between 1 and D.
        candidates: candidates from all workers (see `alignment_loss`).
        negatives: one extra negative candidate per pair (see `alignment_loss`).
        cosines: `cosine_similarities(u, v)`, if already computed; used for the full width only.
        **options (Any): additional options of `alignment_loss`.

    Returns:
        The loss, a scalar in nats: roughly the number of widths times one alignment loss.

    Raises:
        ValueError: if a width is not between 1 and D, or `alignment_loss` rejects an argument.
    """
    total = []
    for width in widths:
        if not 1 <= width <= u.shape[1]:
            raise ValueError(f"invalid width {width}; it must be between 1 and {u.shape[1]}")
        if candidates is not None:
            options["candidates"] = candidates._replace(
                u=candidates.u[:, :width], v=candidates.v[:, :width]
            )
        if negatives is not None:
            options["negatives"] = negatives._replace(embeddings=negatives.embeddings[:, :width])
        options["cosines"] = cosines if width == u.shape[1] else None
        total.append(alignment_loss(u[:, :width], v[:, :width], **options))
    return torch.stack(total).sum()
