"""Losses of the coherence between a sentence and its context, which train embeddings without parallel text.

Source: Wang, Hou, Li, Tong, Jiang, "Learning Multilingual Sentence Embeddings from Monolingual Corpus".
"""

import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32


@in_float32
def context_classification_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Stage 1, is this the original sentence: binary cross-entropy.

    Args:
        scores: [R] logits.
        labels: [R] 1 for the original sentence, 0 for another.

    Returns:
        scalar, summed over the rows, in nats.
    """
    return F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="sum")


@in_float32
def coherence_regression_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Stage 2, how well does the sentence fit: squared error.

    Args:
        scores: [R] predictions.
        labels: [R] cosines of the mined pairs.

    Returns:
        scalar, summed over the rows.
    """
    return (scores - labels.to(scores.dtype)).square().sum()
