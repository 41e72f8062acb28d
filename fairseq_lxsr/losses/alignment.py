"""Contrastive alignment: each sentence must find its translation among those of the batch."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32

ALIGN_SIMILARITIES = ("inner", "cosine")
# largest scale for which exp(scale x (cosine - 1)) is a normal number for every cosine
SHARED_SCALE = 40


class Candidates(NamedTuple):
    """Candidates of all workers, which are more than the batch, for `alignment_loss`.

    Example:
        >>> u = v = torch.eye(4, 8)  # of two workers with two pairs each; this one has the last two
        >>> candidates = Candidates(u, v, first=2, is_candidate=torch.ones(4, dtype=torch.bool))
        >>> loss = alignment_loss(u[2:], v[2:], candidates=candidates)

    Attributes:
        u: [C, D] embeddings of the source side.
        v: [C, D] embeddings of the target side.
        first: row of the first pair of the batch; pair i is row `first + i`.
        is_candidate: [C] False for rows that are no negatives, such as padding; a pair always sees
            its own row.
    """

    u: Tensor
    v: Tensor
    first: int
    is_candidate: Tensor


class Negatives(NamedTuple):
    """One additional candidate for each pair, which other pairs do not see, such as a translation a
    little changed.

    Example:
        >>> u = v = torch.eye(2, 8)
        >>> negatives = Negatives(0.9 * v, of=torch.tensor([[True, False], [True, False]]))  # for u alone
        >>> loss = alignment_loss(u, v, negatives=negatives)

    Attributes:
        embeddings: [B, D] embeddings of the candidates.
        of: [B, 2] bool, whether it is a candidate for u, for v.
    """

    embeddings: Tensor
    of: Tensor


@in_float32
def alignment_loss(
    u: Tensor,
    v: Tensor,
    *,
    similarity: str = "inner",
    scale: float = 1.0,
    candidates: Candidates | None = None,
    same_text: Tensor | None = None,
    negatives: Negatives | None = None,
    cosines: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of the diagonal of S = u v^T over its rows plus over its columns, summed over
    the pairs.

    The loss for retrieval: the other sentences of the batch are the negatives, so large batches of
    varied text help. It trains an encoder alone, or beside a generative loss.
    `matryoshka_alignment_loss` is for embeddings that are cut off, `distance_constraint` for a
    margin in place of a softmax.

    Source: Mao et al. 2021, Eq. 5 (inner product, scale 1); cosine with a scale as in CLIP (Radford
    et al. 2021).

    Example:
        >>> u, v = torch.eye(3, 8), torch.eye(3, 8)  # embeddings of three pairs
        >>> loss = alignment_loss(u, v, similarity="cosine", scale=20.0) / len(u)
        >>> bool(loss < alignment_loss(u, v.flip(0), similarity="cosine", scale=20.0) / len(u))
        True

    Args:
        u: [B, D] embeddings of the source side.
        v: [B, D] embeddings of the target side.
        similarity: one of `ALIGN_SIMILARITIES`.
        scale: factor on the similarities (1 / temperature).
        candidates: candidates of all workers; None for those of the batch.
        same_text: [2, B, C] True for a candidate (of v, then of u) that has the text of the true
            translation but is not that translation; it is left out.
        negatives: one additional candidate for each pair.
        cosines: [B, B] `cosine_similarities(u, v)` where they are at hand.

    Returns:
        scalar, in nats.

    Raises:
        ValueError: for an unknown similarity, and for shapes that differ.
    """
    if similarity not in ALIGN_SIMILARITIES:
        raise ValueError(f"similarity is {similarity!r}; expected one of {ALIGN_SIMILARITIES}")
    unit = (lambda x: F.normalize(x, dim=1)) if similarity == "cosine" else (lambda x: x)
    u, v = unit(u), unit(v)
    own: list[Tensor] = []  # similarities [B] to the additional candidates, for u, for v
    if negatives is not None:
        similar = ((queries * unit(negatives.embeddings)).sum(dim=1) * scale for queries in (u, v))
        both = zip(similar, negatives.of.unbind(dim=1), strict=True)
        own = [part.masked_fill(~of, float("-inf")) for part, of in both]
    if (
        similarity == "cosine"
        and candidates is None
        and same_text is None
        and scale <= SHARED_SCALE
    ):
        return _cosine_loss(u @ v.T if cosines is None else cosines, scale, own)
    to_v = u @ (v if candidates is None else unit(candidates.v)).T  # [B, C]
    to_u = to_v.T if candidates is None else v @ unit(candidates.u).T
    true = torch.arange(len(u), device=u.device) + (0 if candidates is None else candidates.first)
    if candidates is not None:
        others = torch.arange(len(candidates.u), device=u.device) != true[:, None]  # [B, C]
        hidden = others & ~candidates.is_candidate
        to_v, to_u = (part.masked_fill(hidden, float("-inf")) for part in (to_v, to_u))
    loss = u.new_zeros(())
    for side, similarities in enumerate((to_v, to_u)):
        similarities = similarities * scale
        if same_text is not None:
            similarities = similarities.masked_fill(same_text[side], float("-inf"))
        if own:
            similarities = torch.cat((similarities, own[side][:, None]), dim=1)  # [B, C + 1]
        loss = loss + F.cross_entropy(similarities, true, reduction="sum")
    return loss


def _cosine_loss(cosines: Tensor, scale: float, own: list[Tensor]) -> Tensor:
    """Compute the loss over cosines [B, B] of the batch, with one exponential of each for rows and
    columns.
    """
    if cosines.shape[0] != cosines.shape[1]:
        raise ValueError(f"cosines {tuple(cosines.shape)}; expected as many rows of u as of v")
    partitions = _LogPartitions.apply(cosines, scale)
    if own:
        partitions = [torch.logaddexp(*pair) for pair in zip(partitions, own, strict=True)]
    return sum(part.sum() for part in partitions) - 2 * scale * cosines.diagonal().sum()


class _LogPartitions(torch.autograd.Function):
    """Logsumexp of scale x cosines [B, B] over the rows and over the columns, [B] each.

    The largest cosine is 1, so no maximum is searched, and neither pass keeps more than one [B, B]
    tensor.
    """

    @staticmethod
    def forward(ctx, cosines: Tensor, scale: float):
        terms = (cosines - 1).mul_(scale).exp_()
        rows, columns = terms.sum(dim=1), terms.sum(dim=0)
        ctx.save_for_backward(terms, rows, columns)
        ctx.scale = scale
        return rows.log() + scale, columns.log() + scale

    @staticmethod
    def backward(ctx, of_rows: Tensor, of_columns: Tensor):
        """The derivative of a logsumexp is the softmax."""
        terms, rows, columns = ctx.saved_tensors
        factors = (ctx.scale * of_rows / rows)[:, None] + ctx.scale * of_columns / columns
        return factors.mul_(terms), None


@in_float32
def cosine_similarities(u: Tensor, v: Tensor) -> Tensor:
    """Compute the cosines [B, B] of all pairs of rows of u and v, both [B, D], in float32.

    Example:
        >>> cosine_similarities(torch.eye(2), 3 * torch.eye(2)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    return F.normalize(u, dim=1) @ F.normalize(v, dim=1).T


@torch.no_grad()
def in_batch_accuracy(cosines: Tensor) -> Tensor:
    """Count the sentences whose nearest neighbour (cosine) in the batch is their translation.

    Args:
        cosines: [B, B] `cosine_similarities` of the two sides.

    Returns:
        [2] counts in float32, source to target and target to source; a tie counts as not found.

    Example:
        >>> in_batch_accuracy(cosine_similarities(torch.eye(2), torch.eye(2))).tolist()
        [2.0, 2.0]
    """
    true = cosines.diagonal()
    others = cosines.detach().clone().fill_diagonal_(float("-inf"))
    # amax over the others takes a third of the time of argmax over all
    return torch.stack([(true > others.amax(dim=dim)).sum() for dim in (1, 0)]).float()
