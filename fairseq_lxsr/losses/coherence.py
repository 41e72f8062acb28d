"""Losses for the coherence between a sentence and its context, which need no parallel text.

Source: Wang, Hou, Li, Tong, Jiang, "Learning Multilingual Sentence Embeddings from Monolingual
Corpus".
"""

import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32


@in_float32
def context_classification_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of stage 1: is a sentence the original one of its context?

    It is the binary cross-entropy. Use it for text without translations: half of the samples have a
    random sentence in place of the original one. If there is parallel text, use `alignment_loss`.

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
        A scalar, summed over the rows, in nats.
    """
    return F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="sum")


@in_float32
def coherence_regression_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of stage 2: how well does a sentence fit its context?

    It is the squared error. Use it after stage 1, on pairs that were mined with its embeddings: a
    sentence is replaced by its neighbour in another language.

    Source: Wang et al., stage 2.

    Example:
        >>> import torch
        >>> coherence_regression_loss(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 1.0])).item()
        0.25

    Args:
        scores: [R] predictions.
        labels: [R] cosines of the mined pairs.

    Returns:
        A scalar, summed over the rows.

    Raises:
        ValueError: if the shapes differ.
    """
    if scores.shape != labels.shape:
        raise ValueError(
            f"scores {tuple(scores.shape)} and labels {tuple(labels.shape)}; expected equal shapes"
        )
    return (scores - labels.to(scores.dtype)).square().sum()
