"""Similarity search over aligned text: xsim (Heffernan et al. 2022) and Tatoeba (Artetxe and Schwenk 2019b).

Both report the share of sentences whose first neighbour is not their translation, over all sentences, in both
directions. Tatoeba ranks by cosine; xsim ranks the 4 nearest by ratio margin with neighbourhoods of 4, as LASER does.
"""

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Reranker, Text, embed
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.ranking import Again, directions, identities
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, from_hits, text_hash
from fairseq_lxsr.evaluation.text import check_aligned, check_pair
from fairseq_lxsr.retrieval import margin_neighbours, nearest_neighbours
from fairseq_lxsr.retrieval.neighbours import FloatArray, IntArray

METRICS = {"tatoeba": "nn-cosine", "xsim": "margin-ratio-k4-of-4"}
NEIGHBOURS = 4


def error_rate(
    source: FloatArray,
    target: FloatArray,
    protocol: str,
    same: IntArray | None = None,
    again: Again | None = None,
    **search,
) -> Outcomes:
    """Compute the share of source sentences whose first neighbour is neither their translation nor identical to it.

    Args:
        source: source embeddings [N, D].
        target: target embeddings [N, D], aligned with the source.
        protocol: `tatoeba` or `xsim`.
        same: `ranking.identities` of the target [N].
        again: ranks in place of the protocol.
    """
    check_pair(source, target)
    if len(source) != len(target):
        raise InputError(f"{len(source)} and {len(target)} embeddings; expected aligned sentences")
    if again:
        found = again.rank(source, target, np.arange(len(target)), 1, **search)
    elif protocol == "tatoeba":
        _, found = nearest_neighbours(source, target, 1, **search)
    else:
        if len(source) < NEIGHBOURS:
            raise InputError(f"{len(source)} sentence pairs; xsim expects at least {NEIGHBOURS}: add text")
        _, found = margin_neighbours(source, target, NEIGHBOURS, **search)
    same = np.arange(len(target)) if same is None else same
    return Outcomes(as_units(same[found[:, 0]] != same))


def evaluate(
    protocol: str, source: Text, target: Text, encoder: Encoder, reranker: Reranker | None = None, **search
) -> list[Score]:
    """Measure both directions of a pair; a reranker scores the nearest by cosine again."""
    check_aligned(source, target)
    embeddings = embed(encoder, source), embed(encoder, target)
    settings = {
        "metric": reranker.name if reranker else METRICS[protocol],
        "norm": "l2",
        "case": "mixed",
        "identical": "hit",
        "pairs": len(source),
        "text": text_hash(source.lines, target.lines),
        "model": encoder.fingerprint,
    }
    forth, back = (
        Again(reranker, *lines) if reranker else None
        for lines in ((source.lines, target.lines), (target.lines, source.lines))
    )
    forward = error_rate(*embeddings, protocol, identities(target.lines), forth, **search)
    backward = error_rate(*embeddings[::-1], protocol, identities(source.lines), back, **search)
    tasks = directions(source, target)
    return [
        from_hits(protocol, task, {"error": errors}, settings)
        for task, errors in zip(tasks, (forward, backward), strict=True)
    ]
