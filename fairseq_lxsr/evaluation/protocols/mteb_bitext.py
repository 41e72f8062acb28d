"""Bitext mining as mteb scores it: the nearest sentence of the target language by cosine, in one direction.

Every target sentence is a class, and every source sentence a case of it: F1, precision and recall are those of the
classes, weighted by how many source sentences have each as their translation (mteb 2.26, `_compute_metrics` in
abstasks/text/bitext_mining.py). A target that several sources choose loses precision.
"""

import argparse
from typing import TYPE_CHECKING

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.evaluation.protocols.protocol import search_settings
from fairseq_lxsr.evaluation.protocols.similarity_search import AlignedProtocol
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, from_hits, text_hash
from fairseq_lxsr.evaluation.texts import check_aligned, check_pair, directions
from fairseq_lxsr.vectors import nearest_neighbours
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder, Text
    from fairseq_lxsr.evaluation.score import Score


def weighted_scores(gold: IntArray, found: IntArray) -> dict[str, Outcomes]:
    """Compute F1, accuracy, precision and recall, of the classes weighted by their cases.

    The unit of a source sentence is the value of the class of its gold target, so that the mean over the sentences is
    the weighted mean over the classes. A class that nothing was assigned to has precision 0.

    Args:
        gold: the gold target of every source sentence [N].
        found: the target that was found for it [N].
    """
    classes = int(max(gold.max(), found.max())) + 1
    wanted, chosen = (np.bincount(rows, minlength=classes) for rows in (gold, found))
    right = np.bincount(gold[gold == found], minlength=classes)
    precision = right / np.maximum(chosen, 1)
    values = {
        "F1": 2 * right / np.maximum(wanted + chosen, 1),
        "accuracy": None,
        "precision": precision,
        "recall": right / np.maximum(wanted, 1),
    }
    hits = as_units(gold == found)
    return {name: Outcomes(hits if value is None else value[gold].tolist()) for name, value in values.items()}


def find(queries: FloatArray, candidates: FloatArray, **search) -> IntArray:
    """Find the nearest candidate by cosine of every query [Q]; of equal ones the first."""
    check_pair(queries, candidates)
    return nearest_neighbours(queries, candidates, 1, **search)[1][:, 0]


def evaluate(source: Text, target: Text, encoder: Encoder, **search) -> Score:
    """Measure aligned text from the source to the target; a repeated sentence is another class, as in mteb."""
    check_aligned(source, target)
    found = find(embed(encoder, source), embed(encoder, target), **search)
    settings = {
        "metric": "nn-cosine",
        "average": "weighted",
        "case": "mixed",
        "identical": "error",
        "pairs": len(source),
        "text": text_hash(source.lines, target.lines),
        "model": encoder.fingerprint,
    }
    return from_hits(
        "mteb-bitext", directions(source, target)[0], weighted_scores(np.arange(len(found)), found), settings
    )


class MtebBitext(AlignedProtocol):
    """`evaluation.mteb_bitext` on aligned files."""

    name, help = "mteb-bitext", "bitext mining as mteb: weighted F1 and accuracy, from the first language to the second"
    both_directions = False

    def scores(self, source: "Text", target: "Text", encoder: "Encoder", args: argparse.Namespace) -> "list[Score]":
        from fairseq_lxsr.evaluation.protocols import mteb_bitext

        return [mteb_bitext.evaluate(source, target, encoder, **search_settings(args))]


PROTOCOLS = (MtebBitext(),)
