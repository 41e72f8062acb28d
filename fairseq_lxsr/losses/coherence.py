"""Coherence losses between a sentence and its context, which need no parallel text.

Source: Wang, Hou, Li, Tong, Jiang, "Learning Multilingual Sentence Embeddings from Monolingual
Corpus".
"""

import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32


@in_float32
def context_classification_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the loss of stage 1, which classifies sentences in their contexts as original or not.

    This is a binary cross-entropy. Use it for text without translations: in half of the samples, a
    random sentence replaces the original one. If you have parallel text, use `alignment_loss`.

    Source: Wang et al., stage 1.

    Example:
        >>> import torch
        >>> scores, labels = torch.tensor([4.0, -4.0]), torch.tensor([1, 0])
        >>> round(float(context_classification_loss(scores, labels)), 3)
        0.036

    Args:
        scores: [R] logits.
        labels: [R] 1 for the original sentence, 0 for a random one.

    Returns:
        The loss, a scalar in nats, summed over the rows.
    """
    return F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="sum")


@in_float32
def coherence_regression_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the loss of stage 2, which predicts how well a sentence matches its context.

    This is a squared error. Use it after stage 1, on pairs mined with the embeddings of stage 1: a
    sentence is replaced by its mined neighbour in another language.

    Source: Wang et al., stage 2.

    Example:
        >>> import torch
        >>> coherence_regression_loss(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 1.0])).item()
        0.25

    Args:
        scores: [R] predictions.
        labels: [R] cosine similarities of the mined pairs.

    Returns:
        The loss, a scalar, summed over the rows.

    Raises:
        ValueError: if the shapes differ.
    """
    if scores.shape != labels.shape:
        raise ValueError(
            f"scores {tuple(scores.shape)} and labels {tuple(labels.shape)} must have equal shapes"
        )
    return (scores - labels.to(scores.dtype)).square().sum()
