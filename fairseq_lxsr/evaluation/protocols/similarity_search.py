"""Similarity search on aligned text: is the nearest neighbour of a sentence its translation?

`tatoeba` searches by cosine similarity, `xsim` by ratio margin (Artetxe and Schwenk 2019a), both in
both directions.
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
    target_ids: IntArray | None = None,
    reranker: TextReranker | None = None,
) -> Outcomes:
    """Compute the fraction of source sentences whose nearest neighbour is not their translation.

    Args:
        source: embeddings [N, D].
        target: embeddings of the translations [N, D].
        protocol: `tatoeba` or `xsim`.
        target_ids: ids of the target sentences from `texts.identities` [N]; retrieving a sentence
            identical to the translation is not an error. None if all sentences differ.
        reranker: if given, ranks the target sentences instead of the protocol's metric.

    Returns:
        Outcomes [N]: 1 for each error, otherwise 0.

    Raises:
        InputError: if the embeddings do not match, or there are too few.
    """
    check_pair(source, target)
    if len(source) != len(target):
        raise InputError(
            f"got {len(source)} source and {len(target)} target embeddings; expected aligned "
            "sentences"
        )
    if reranker:
        neighbours = reranker.rank(source, target, np.arange(len(target)), 1)
    elif protocol == "tatoeba":
        _, neighbours = nearest_neighbours(source, target, 1, show_progress=True)
    else:
        check_enough_for_margin(protocol, len(source))
        _, neighbours = margin_neighbours(source, target, XSIM_NEIGHBOURS, show_progress=True)
    if target_ids is None:
        target_ids = np.arange(len(target))
    return Outcomes(as_units(target_ids[neighbours[:, 0]] != target_ids))


def check_enough_for_margin(protocol: str, pairs: int) -> None:
    """Check that every sentence has enough neighbours for the margin.

    Args:
        protocol: `tatoeba` or `xsim`.
        pairs: number of sentence pairs.
    """
    if pairs < XSIM_NEIGHBOURS:
        raise InputError(
            f"found {pairs} sentence pairs; expected at least {XSIM_NEIGHBOURS} for {protocol}: "
            "use more text"
        )


def search_scores(
    protocol: str, source: Text, target: Text, encoder: Encoder, reranker: Reranker | None = None
) -> list[Score]:
    """Score an encoder in both directions of a language pair.

    Args:
        protocol: `tatoeba` or `xsim`.
        source: sentences [N].
        target: translations of the sentences [N].
        encoder: encoder of both texts.
        reranker: reranks the nearest candidates by cosine similarity.

    Returns:
        The scores of both directions.
    """
    check_aligned(source, target)
    settings = {
        "metric": reranker.name if reranker else SEARCH_METRICS[protocol],
        "norm": "l2",
        "case": "mixed",
        "identical": "hit",
        "pairs": len(source),
    }
    settings |= text_and_model(encoder.fingerprint, source.lines, target.lines)
    sides = [(source, embed(encoder, source)), (target, embed(encoder, target))]
    scores = []
    for task, (queries, query_vectors), (candidates, candidate_vectors) in zip(
        directions(source, target), sides, sides[::-1], strict=True
    ):
        text_reranker = None
        if reranker:
            text_reranker = TextReranker(reranker, queries.lines, candidates.lines)
        errors = error_rate(
            query_vectors, candidate_vectors, protocol, identities(candidates.lines), text_reranker
        )
        scores.append(from_hits(protocol, task, {"error": errors}, settings))
    return scores


@dataclass(frozen=True, kw_only=True)
class Tatoeba(RerankOption, AlignedProtocol):
    """Error rate of the nearest sentence by cosine similarity."""

    def scores(self, source: Text, target: Text, encoder: Encoder) -> list[Score]:
        return search_scores("tatoeba", source, target, encoder, find_reranker(encoder, self))


@dataclass(frozen=True, kw_only=True)
class Xsim(AlignedProtocol):
    """Error rate of the nearest sentence by margin."""

    def scores(self, source: Text, target: Text, encoder: Encoder) -> list[Score]:
        return search_scores("xsim", source, target, encoder)
