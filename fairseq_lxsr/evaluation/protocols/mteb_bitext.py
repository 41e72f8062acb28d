"""Scores bitext mining as mteb does: by the nearest target sentence, in one direction.

Every target sentence is a class, and every source sentence an example of the class of its
translation. F1, precision and recall are averaged over the classes, weighted by class
size (mteb 2.26, `_compute_metrics` in abstasks/text/bitext_mining.py). The precision of a
target falls if several sources retrieve it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.evaluation.protocols.protocol import AlignedProtocol
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, from_hits, text_and_model
from fairseq_lxsr.evaluation.texts import check_aligned, directions, rank
from fairseq_lxsr.vectors.rows import IntArray


def weighted_scores(gold: IntArray, retrieved: IntArray) -> dict[str, Outcomes]:
    """Compute accuracy, and F1, precision and recall weighted by class size.

    Each source sentence gets the value of its gold target's class, so that the mean over sentences
    is the weighted mean over classes. A class that is never retrieved has a precision of 0.

    Args:
        gold: gold target of every source sentence [N].
        retrieved: retrieved target of every source sentence [N].

    Returns:
        Outcomes by name, each [N].
    """
    classes = int(max(gold.max(), retrieved.max())) + 1
    gold_counts = np.bincount(gold, minlength=classes)
    retrieved_counts = np.bincount(retrieved, minlength=classes)
    hits = np.bincount(gold[gold == retrieved], minlength=classes)
    f1 = 2 * hits / np.maximum(gold_counts + retrieved_counts, 1)
    precision = hits / np.maximum(retrieved_counts, 1)
    recall = hits / np.maximum(gold_counts, 1)
    return {
        "F1": Outcomes(f1[gold].tolist()),
        "accuracy": Outcomes(as_units(gold == retrieved)),
        "precision": Outcomes(precision[gold].tolist()),
        "recall": Outcomes(recall[gold].tolist()),
    }


@dataclass(frozen=True, kw_only=True)
class MtebBitext(AlignedProtocol):
    """Retrieval from source to target, as in MTEB.

    Retrieving a duplicate of the correct target sentence counts as an error.
    """

    both_directions = False

    def scores(self, source: Text, target: Text, encoder: Encoder) -> list[Score]:
        check_aligned(source, target)
        nearest = rank(embed(encoder, source), embed(encoder, target), 1, "nn")[:, 0]
        settings: dict[str, Any] = {
            "metric": "nn-cosine",
            "average": "weighted",
            "case": "mixed",
            "identical": "error",
            "pairs": len(source),
        }
        settings |= text_and_model(encoder.fingerprint, source.lines, target.lines)
        outcomes = weighted_scores(np.arange(len(nearest)), nearest)
        task, _ = directions(source, target)
        return [from_hits("mteb-bitext", task, outcomes, settings)]
