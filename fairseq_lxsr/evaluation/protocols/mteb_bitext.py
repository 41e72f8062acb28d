"""Bitext mining as mteb scores it: the nearest sentence of the target language by cosine, in one
direction.

Every target sentence is a class, and every source sentence a case of it: F1, precision and recall
are those of the classes, weighted by how many source sentences have each as their translation (mteb
2.26, `_compute_metrics` in abstasks/text/bitext_mining.py). A target that several sources choose
loses precision.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.evaluation.protocols.protocol import AlignedProtocol
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, from_hits, text_and_model
from fairseq_lxsr.evaluation.texts import check_aligned, directions, rank
from fairseq_lxsr.vectors.rows import IntArray


def weighted_scores(gold: IntArray, found: IntArray) -> dict[str, Outcomes]:
    """Compute F1, accuracy, precision and recall of gold and found targets [N], of the classes
    weighted by their cases.

    The unit of a source sentence is the value of the class of its gold target, so that the mean
    over the sentences is the weighted mean over the classes. A class that nothing was assigned to
    has precision 0.
    """
    classes = int(max(gold.max(), found.max())) + 1
    wanted, chosen = (np.bincount(rows, minlength=classes) for rows in (gold, found))
    right = np.bincount(gold[gold == found], minlength=classes)
    return {
        "F1": Outcomes((2 * right / np.maximum(wanted + chosen, 1))[gold].tolist()),
        "accuracy": Outcomes(as_units(gold == found)),
        "precision": Outcomes((right / np.maximum(chosen, 1))[gold].tolist()),
        "recall": Outcomes((right / np.maximum(wanted, 1))[gold].tolist()),
    }


@dataclass(frozen=True, kw_only=True)
class MtebBitext(AlignedProtocol):
    """Aligned text from the source to the target; a repeated sentence is another class, as in
    mteb.
    """

    both_directions = False

    def scores(self, source: Text, target: Text, encoder: Encoder) -> list[Score]:
        check_aligned(source, target)
        found = rank(embed(encoder, source), embed(encoder, target), 1, "nn")[:, 0]
        settings: dict[str, Any] = {
            "metric": "nn-cosine",
            "average": "weighted",
            "case": "mixed",
            "identical": "error",
        }
        settings |= {"pairs": len(source)} | text_and_model(
            encoder.fingerprint, source.lines, target.lines
        )
        hits = weighted_scores(np.arange(len(found)), found)
        return [from_hits("mteb-bitext", directions(source, target)[0], hits, settings)]
