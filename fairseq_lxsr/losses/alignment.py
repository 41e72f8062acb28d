"""Contrastive alignment: each sentence must retrieve its translation among the candidates."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32

ALIGN_SIMILARITIES = ("inner", "cosine")
# Largest scale for which exp(scale x (cosine - 1)) never underflows to a denormal number.
SHARED_SCALE = 40
# Shorter vectors are not scaled to unit length; as in torch.nn.functional.normalize.
SMALLEST_LENGTH = 1e-12


class Cosines(NamedTuple):
    """Cosine similarities, and the unit vectors from which they were computed.

    Example:
        >>> cosines = cosine_similarities(torch.eye(2), 3 * torch.eye(2))
        >>> cosines.v.tolist()
        [[1.0, 0.0], [0.0, 1.0]]

    Attributes:
        u: [B, D] vectors of the source side, scaled to unit length.
        v: [C, D] vectors of the target side, scaled to unit length.
        values: [B, C] cosine similarity of every row of u with every row of v.
    """

    u: Tensor
    v: Tensor
    values: Tensor


class Candidates(NamedTuple):
    """Candidate embeddings gathered from all workers, for `alignment_loss`.

    Example:
        >>> # Two workers have two pairs each; this worker has the last two.
        >>> u = v = torch.eye(4, 8)
        >>> candidates = Candidates(u, v, first=2, is_candidate=torch.ones(4, dtype=torch.bool))
        >>> loss = alignment_loss(u[2:], v[2:], candidates=candidates)

    Attributes:
        u: [C, D] embeddings of the source side.
        v: [C, D] embeddings of the target side.
        first: row index of the first pair of this worker's batch; pair i is row `first + i`.
        is_candidate: [C] bool, False for rows that are not used as negatives, such as padding. A
            pair's own row is always a candidate for that pair.
    """

    u: Tensor
    v: Tensor
    first: int
    is_candidate: Tensor


class Negatives(NamedTuple):
    """One extra negative candidate per pair, such as a slightly altered translation.

    It is a candidate for its own pair only.

    Example:
        >>> u = v = torch.eye(2, 8)
        >>> # The extra candidates are used for u, but not for v.
        >>> is_candidate = torch.tensor([[True, False], [True, False]])
        >>> negatives = Negatives(0.9 * v, is_candidate)
        >>> loss = alignment_loss(u, v, negatives=negatives)

    Attributes:
        embeddings: [B, D] embeddings of the extra candidates.
        is_candidate: [B, 2] bool, whether the extra candidate of each pair is used for u and for v.
    """

    embeddings: Tensor
    is_candidate: Tensor


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
    cosines: Cosines | None = None,
) -> Tensor:
    """Compute the cross-entropy of retrieving each translation among the candidates.

    This is the cross-entropy of the diagonal of S = u v^T, normalized over rows and over columns,
    and summed over both directions and all pairs.

    Use it to train for retrieval. The other sentences in the batch serve as negatives, so large,
    varied batches help. It can be the only loss, or be added to a generative loss. If embeddings
    will be truncated, use `matryoshka_alignment_loss`; `distance_constraint` uses a margin instead
    of a softmax.

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
        scale: factor applied to the similarities (1 / temperature).
        candidates: candidates from all workers; None uses only the batch.
        same_text: [2, B, C] bool: True excludes a candidate, because its text equals that of the
            true translation. same_text[0] applies to candidates from v, same_text[1] to those from
            u.
        negatives: one extra negative candidate per pair.
        cosines: `cosine_similarities(u, v)`, if already computed.

    Returns:
        The loss, a scalar in nats.

    Raises:
        ValueError: if the similarity is unknown, or if the shapes of u and v differ.
    """
    if similarity not in ALIGN_SIMILARITIES:
        raise ValueError(f"unknown similarity {similarity!r}; choose from {ALIGN_SIMILARITIES}")
    if u.shape != v.shape:
        raise ValueError(f"u {tuple(u.shape)} and v {tuple(v.shape)} must have the same shape")
    unit = unit_vectors if similarity == "cosine" else (lambda x: x)
    if similarity == "cosine" and cosines is not None:
        u = cosines.u
        v = cosines.v
    else:
        u = unit(u)
        v = unit(v)
    extra: list[Tensor] = []
    if negatives is not None:
        negatives = negatives._replace(embeddings=unit(negatives.embeddings))
        extra = _similarities_to_negatives(u, v, negatives, scale)
    # [B, C]
    true = torch.arange(len(u), device=u.device)
    if candidates is not None:
        true = true + candidates.first
        to_v = u @ unit(candidates.v).T
        to_u = v @ unit(candidates.u).T
        is_negative = torch.arange(len(candidates.u), device=u.device) != true[:, None]
        hidden = is_negative & ~candidates.is_candidate
        to_v, to_u = (part.masked_fill(hidden, float("-inf")) for part in (to_v, to_u))
    elif similarity == "cosine" and same_text is None and scale <= SHARED_SCALE:
        return _cosine_loss(u @ v.T if cosines is None else cosines.values, scale, extra)
    else:
        to_v = u @ v.T
        to_u = to_v.T
    loss = u.new_zeros(())
    for side, similarities in enumerate((to_v, to_u)):
        similarities = similarities * scale
        if same_text is not None:
            similarities = similarities.masked_fill(same_text[side], float("-inf"))
        if extra:
            # [B, C + 1]
            similarities = torch.cat((similarities, extra[side][:, None]), dim=1)
        loss = loss + F.cross_entropy(similarities, true, reduction="sum")
    return loss


def _similarities_to_negatives(
    u: Tensor, v: Tensor, negatives: Negatives, scale: float
) -> list[Tensor]:
    """Return the scaled similarities of u and of v to the extra candidates, two tensors [B]."""
    similarities = []
    for queries, is_candidate in zip((u, v), negatives.is_candidate.unbind(dim=1), strict=True):
        part = (queries * negatives.embeddings).sum(dim=1) * scale
        similarities.append(part.masked_fill(~is_candidate, float("-inf")))
    return similarities


def _cosine_loss(cosines: Tensor, scale: float, extra: list[Tensor]) -> Tensor:
    """Compute the alignment loss from cosines [B, B]; both directions share each exponential."""
    if cosines.shape[0] != cosines.shape[1]:
        raise ValueError(
            f"cosines has shape {tuple(cosines.shape)}; it must be square, with one row and one "
            "column per pair"
        )
    *partitions, true = _LogPartitions.apply(cosines, scale)
    if extra:
        partitions = [torch.logaddexp(*pair) for pair in zip(partitions, extra, strict=True)]
    return sum(part.sum() for part in partitions) - 2 * scale * true.sum()


class _LogPartitions(torch.autograd.Function):
    """Logsumexp of scale x cosines [B, B] for each row and for each column, and the diagonal.

    For numerical stability, 1 is subtracted from the cosines instead of their maximum, because no
    cosine is larger. The forward and the backward pass each allocate at most one [B, B] tensor.
    """

    @staticmethod
    def forward(ctx, cosines: Tensor, scale: float):
        terms = (cosines - 1).mul_(scale).exp_()
        rows = terms.sum(dim=1)
        columns = terms.sum(dim=0)
        ctx.save_for_backward(terms, rows, columns)
        ctx.scale = scale
        return rows.log() + scale, columns.log() + scale, cosines.diagonal().clone()

    @staticmethod
    def backward(ctx, of_rows: Tensor, of_columns: Tensor, of_diagonal: Tensor):
        """Return the gradient for the cosines: the derivative of a logsumexp is the softmax."""
        terms, rows, columns = ctx.saved_tensors
        factors = (ctx.scale * of_rows / rows)[:, None] + ctx.scale * of_columns / columns
        factors.mul_(terms).diagonal().add_(of_diagonal)
        return factors, None


class _UnitVectors(torch.autograd.Function):
    """Divides vectors [B, D] by their length, like torch.nn.functional.normalize.

    torch derives the gradient in eight operations on [B, D]; this one needs four.
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min_(SMALLEST_LENGTH)
        units = x / lengths
        ctx.save_for_backward(units, lengths)
        return units

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Tensor:
        """Return the gradient for x: the part of `gradient` that is orthogonal to x, over |x|."""
        units, lengths = ctx.saved_tensors
        along = (gradient * units).sum(dim=1, keepdim=True)
        return torch.addcmul(gradient, units, along, value=-1).div_(lengths)


def unit_vectors(x: Tensor) -> Tensor:
    """Scale vectors [B, D] to unit length. Vectors of zeros remain zero."""
    return _UnitVectors.apply(x)


@in_float32
def cosine_similarities(u: Tensor, v: Tensor) -> Cosines:
    """Compute the cosine similarity of every row of u with every row of v, in float32.

    Example:
        >>> cosine_similarities(torch.eye(2), 3 * torch.eye(2)).values.tolist()
        [[1.0, 0.0], [0.0, 1.0]]

    Args:
        u: [B, D] vectors.
        v: [C, D] vectors.

    Returns:
        The cosine similarities [B, C], and the unit vectors of both sides.
    """
    unit_u = unit_vectors(u)
    unit_v = unit_vectors(v)
    return Cosines(unit_u, unit_v, unit_u @ unit_v.T)


@torch.no_grad()
def in_batch_accuracy(cosines: Tensor) -> Tensor:
    """Count the sentences whose nearest neighbour in the batch, by cosine, is their translation.

    Args:
        cosines: [B, B] `values` of the `cosine_similarities` of the two sides.

    Returns:
        Two counts, float32 [2]: source to target, and target to source. Ties are not counted.

    Example:
        >>> in_batch_accuracy(cosine_similarities(torch.eye(2), torch.eye(2)).values).tolist()
        [2.0, 2.0]
    """
    true = cosines.diagonal()
    wrong = cosines.detach().clone().fill_diagonal_(float("-inf"))
    # amax over the wrong pairs is three times faster than argmax over all pairs.
    return torch.stack([(true > wrong.amax(dim=dim)).sum() for dim in (1, 0)]).float()
