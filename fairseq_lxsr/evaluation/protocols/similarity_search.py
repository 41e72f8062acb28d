"""Similarity search on aligned text: is the first neighbour of a sentence its translation?

`tatoeba` searches by cosine, `xsim` by ratio margin (Artetxe and Schwenk 2019a), both in both
directions.
"""

from dataclasses import dataclass

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols.protocol import AlignedProtocol
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, from_hits, text_and_model
from fairseq_lxsr.evaluation.texts import (
    TextReranker,
    check_aligned,
    check_pair,
    directions,
    identities,
)
from fairseq_lxsr.search.options import RerankOption
from fairseq_lxsr.search.reranker import Reranker, find_reranker
from fairseq_lxsr.vectors import margin_neighbours, nearest_neighbours
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

SEARCH_METRICS = {"tatoeba": "nn-cosine", "xsim": "margin-ratio-k4-of-4"}
XSIM_NEIGHBOURS = 4


def error_rate(
    source: FloatArray,
    target: FloatArray,
    protocol: str,
    same: IntArray | None = None,
    again: TextReranker | None = None,
) -> Outcomes:
    """Compute the share of source sentences whose first neighbour is neither their translation nor
    identical to it.

    Embeddings are aligned, [N, D] each; `same` are the `texts.identities` of the target [N];
    `again` ranks in place of the protocol, `tatoeba` or `xsim`.
    """
    check_pair(source, target)
    if len(source) != len(target):
        raise InputError(f"{len(source)} and {len(target)} embeddings; expected aligned sentences")
    if again:
        found = again.rank(source, target, np.arange(len(target)), 1)
    elif protocol == "tatoeba":
        _, found = nearest_neighbours(source, target, 1, show_progress=True)
    else:
        if len(source) < XSIM_NEIGHBOURS:
            raise InputError(
                f"{len(source)} sentence pairs; xsim expects at least {XSIM_NEIGHBOURS}: add text"
            )
        _, found = margin_neighbours(source, target, XSIM_NEIGHBOURS, show_progress=True)
    same = np.arange(len(target)) if same is None else same
    return Outcomes(as_units(same[found[:, 0]] != same))


def search_scores(
    protocol: str, source: Text, target: Text, encoder: Encoder, reranker: Reranker | None = None
) -> list[Score]:
    """Measure both directions of a pair; a reranker scores the nearest by cosine again."""
    check_aligned(source, target)
    metric = reranker.name if reranker else SEARCH_METRICS[protocol]
    settings = {
        "metric": metric,
        "norm": "l2",
        "case": "mixed",
        "identical": "hit",
        "pairs": len(source),
    }
    settings |= text_and_model(encoder.fingerprint, source.lines, target.lines)
    sides = (source, embed(encoder, source)), (target, embed(encoder, target))
    scores = []
    for task, (queries, left), (candidates, right) in zip(
        directions(source, target), sides, sides[::-1], strict=True
    ):
        again = TextReranker(reranker, queries.lines, candidates.lines) if reranker else None
        errors = error_rate(left, right, protocol, identities(candidates.lines), again)
        scores.append(from_hits(protocol, task, {"error": errors}, settings))
    return scores


@dataclass(frozen=True, kw_only=True)
class Tatoeba(RerankOption, AlignedProtocol):
    """Error rate of the nearest sentence by cosine."""

    def scores(self, source: Text, target: Text, encoder: Encoder) -> list[Score]:
        return search_scores("tatoeba", source, target, encoder, find_reranker(encoder, self))


@dataclass(frozen=True, kw_only=True)
class Xsim(AlignedProtocol):
    """Error rate of the nearest sentence by margin."""

    def scores(self, source: Text, target: Text, encoder: Encoder) -> list[Score]:
        return search_scores("xsim", source, target, encoder)
