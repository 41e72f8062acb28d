"""Matryoshka: the first units of an embedding are trained as embeddings of their own, so that it
can be cut off.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fairseq_lxsr.losses.alignment import Candidates, Negatives, alignment_loss


def matryoshka_alignment_loss(
    u: Tensor,
    v: Tensor,
    widths: Iterable[int],
    *,
    candidates: Candidates | None = None,
    negatives: Negatives | None = None,
    cosines: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Sum over the widths d of the alignment loss of the first d units.

    For embeddings of which users keep the first units, to save memory; at full width it finds what
    `alignment_loss` finds, within a point.

    Source: Kusupati et al. 2022, Eq. 1, with all relative importances c_m = 1, as in their
    experiments. With the cosine the first d units are normalized on their own.

    Example:
        >>> u = v = torch.eye(4, 8)
        >>> loss = matryoshka_alignment_loss(u, v, (4, 8), similarity="cosine", scale=20.0)
        >>> torch.equal(loss, 2 * alignment_loss(u, v, similarity="cosine", scale=20.0))  # units 5 to 8 are zero
        True

    Args:
        u: [B, D] embeddings of the source side.
        v: [B, D] embeddings of the target side.
        widths: the widths d, each from 1 to D.
        candidates: see `alignment_loss`.
        negatives: see `alignment_loss`.
        cosines: see `alignment_loss`; they serve the full width.
        **options (Any): other options of `alignment_loss`.

    Returns:
        scalar, in nats: as many times larger than one alignment loss as there are widths, roughly.
    """
    total = []
    for width in widths:
        if not 1 <= width <= u.shape[1]:
            raise ValueError(f"width {width}; expected 1 to {u.shape[1]}")
        if candidates is not None:
            options["candidates"] = candidates._replace(
                u=candidates.u[:, :width], v=candidates.v[:, :width]
            )
        if negatives is not None:
            options["negatives"] = negatives._replace(embeddings=negatives.embeddings[:, :width])
        options["cosines"] = cosines if width == u.shape[1] else None
        total.append(alignment_loss(u[:, :width], v[:, :width], **options))
    return torch.stack(total).sum()
