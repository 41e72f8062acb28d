"""Coherence of a sentence with its context, of which embeddings are learnt without parallel text.

Source: Wang, Hou, Li, Tong, Jiang, "Learning Multilingual Sentence Embeddings from Monolingual Corpus".
"""

import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32


@in_float32
def context_classification_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Stage 1: is this the sentence that stood here? Binary cross-entropy of scores [R], labels [R] of 0 or 1.

    Returns: scalar, summed over the rows, in nats.
    """
    return F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="sum")


@in_float32
def coherence_regression_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Stage 2: how well does it fit? Squared error of scores [R] to cosines [R].

    Returns: scalar, summed over the rows.
    """
    return (scores - labels.to(scores.dtype)).square().sum()
