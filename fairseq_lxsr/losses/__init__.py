"""Loss functions on tensors, independent of fairseq.

Notation, here and in the rest of the package: B sentence pairs in a batch, T tokens in a sentence,
D the embedding width, V the vocabulary size, R rows of logits (one per encoder pass, or per masked
piece), K entries of a sparse target. Every loss is computed in float32, whatever the training
precision, and summed over the batch; the caller divides it by B.
"""

from fairseq_lxsr.losses.alignment import (
    Candidates,
    Cosines,
    Negatives,
    alignment_loss,
    cosine_similarities,
    in_batch_accuracy,
)
from fairseq_lxsr.losses.coherence import coherence_regression_loss, context_classification_loss
from fairseq_lxsr.losses.distance import distance_constraint, draw_negatives
from fairseq_lxsr.losses.distillation import DISTILL_LOSSES, distillation_loss
from fairseq_lxsr.losses.divergence import kl_divergence, label_smoothed_cross_entropy
from fairseq_lxsr.losses.generative import OBJECTIVES, sentence_loss, sentence_targets, token_loss
from fairseq_lxsr.losses.matryoshka import matryoshka_alignment_loss
from fairseq_lxsr.losses.similarity import similarity_loss
from fairseq_lxsr.losses.targets import TARGET_OVERLAPS, TARGET_WEIGHTS, bag_of_pieces, mix, spread

__all__ = [
    "DISTILL_LOSSES",
    "OBJECTIVES",
    "TARGET_OVERLAPS",
    "TARGET_WEIGHTS",
    "Candidates",
    "Cosines",
    "Negatives",
    "alignment_loss",
    "bag_of_pieces",
    "coherence_regression_loss",
    "context_classification_loss",
    "cosine_similarities",
    "distance_constraint",
    "distillation_loss",
    "draw_negatives",
    "in_batch_accuracy",
    "kl_divergence",
    "label_smoothed_cross_entropy",
    "matryoshka_alignment_loss",
    "mix",
    "sentence_loss",
    "sentence_targets",
    "similarity_loss",
    "spread",
    "token_loss",
]
