"""XSR: cross-lingual sentence retrieval, P@1, P@5, P@10 both ways (Sabet et al. 2019; Mao et al. 2021, section 5.2)."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fairseq_lxsr.choices import METRICS
from fairseq_lxsr.embeddings import Encoder, Reranker, Text, embed
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.ranking import Again, directions, found_at, rank
from fairseq_lxsr.evaluation.score import Outcomes, Score, from_hits, text_hash
from fairseq_lxsr.lines import is_blank
from fairseq_lxsr.retrieval.neighbours import FloatArray

RANKS = (1, 5, 10)
MAX_CANDIDATES = 200_000
MAX_QUERIES = 2_000


@dataclass(frozen=True)
class RetrievalSet:
    """Aligned sentences; the first `queries` of each side are the queries.

    `empty` and `repeated` count the pairs that `select` dropped, by the reason.
    """

    source: Text
    target: Text
    queries: int
    seed: int
    empty: int = 0
    repeated: int = 0


def select(
    pairs: Iterable[tuple[str, str]], seed: int = 1, languages: tuple[str, str] = ("", ""), files=("", "")
) -> RetrievalSet:
    """Select the text of the protocol: lower-case, drop pairs with an empty or duplicate side, shuffle, cut to 200,000.

    Args:
        pairs: aligned sentences.
        seed: seed of the shuffle.
        languages: languages of the two sides, see `Text`.
        files (tuple[str, str]): files of the two sides, see `Text`.

    Raises:
        InputError: where fewer than 10 pairs are left, because P@10 would have no meaning.
    """
    kept: list[tuple[str, str, int]] = []
    row, empty = -1, 0
    seen: tuple[set[str], set[str]] = (set(), set())
    for row, (source, target) in enumerate(pairs):
        pair = (source.strip().lower(), target.strip().lower())
        if any(map(is_blank, pair)):
            empty += 1
            continue
        if pair[0] in seen[0] or pair[1] in seen[1]:
            continue
        seen[0].add(pair[0])
        seen[1].add(pair[1])
        kept.append((*pair, row))
    if len(kept) < max(RANKS):
        raise InputError(f"{len(kept)} usable sentence pairs; expected at least {max(RANKS)}: give more aligned text")
    repeated = row + 1 - empty - len(kept)
    random.Random(seed).shuffle(kept)
    left, right, rows = zip(*kept[:MAX_CANDIDATES], strict=True)
    sides = [
        Text(lines, language, file, np.array(rows), total=row + 1)
        for lines, language, file in zip((left, right), languages, files, strict=True)
    ]
    return RetrievalSet(sides[0], sides[1], min(MAX_QUERIES, len(rows)), seed, empty, repeated)


def precision_at(
    queries: FloatArray,
    candidates: FloatArray,
    metric: str = "nn",
    seed: int = 1,
    again: Again | None = None,
    **search,
) -> dict[str, Outcomes]:
    """Compute P@1, P@5 and P@10, where candidate i is the translation of query i.

    Equal candidates are ranked in random order, so that the position of the translation gives no advantage.

    Args:
        queries: embeddings of the queries [Q, D].
        candidates: embeddings of the candidates [M, D], M >= Q.
        metric: see `ranking.rank`.
        seed: seed of the random order.
        again: ranks in place of the metric.
    """
    order = np.random.default_rng(seed).permutation(len(candidates))
    if again:
        found = again.rank(queries, candidates[order], order, max(RANKS), **search)
    else:
        found = order[rank(queries, candidates[order], max(RANKS), metric, **search)]
    return found_at(RANKS, found, np.arange(len(queries)))


def evaluate(
    texts: RetrievalSet,
    encoder: Encoder,
    metrics: Sequence[str] = tuple(METRICS),
    reranker: Reranker | None = None,
    **search,
) -> list[Score]:
    """Measure both directions of a pair by each metric.

    Args:
        texts: the text.
        encoder: any encoder.
        metrics: see `ranking.rank`.
        reranker: scores the nearest again; the metric is `nn`.
        **search (Any): options of `nearest_neighbours`.

    Raises:
        InputError: for another metric with a reranker, and for one that scores fewer than 10 again.
    """
    if reranker and list(metrics) != ["nn"]:
        raise InputError(
            f"rerank with the metric {', '.join(metrics)}; expected nn, the cosine that is averaged with MaxSim"
        )
    source, target = embed(encoder, texts.source), embed(encoder, texts.target)
    scores = []
    for metric in metrics:
        settings = {
            "metric": reranker.name if reranker else METRICS[metric],
            "norm": "l2",
            "case": "lower",
            "queries": texts.queries,
            "candidates": len(texts.target),
            "seed": texts.seed,
            "text": text_hash(texts.source.lines, texts.target.lines),
            "model": encoder.fingerprint,
        }
        sides = (texts.source.lines, source), (texts.target.lines, target)
        for task, (lines, queries), (others, candidates) in zip(
            directions(texts.source, texts.target), sides, sides[::-1], strict=True
        ):
            again = Again(reranker, lines[: texts.queries], others) if reranker else None
            hits = precision_at(queries[: texts.queries], candidates, metric, texts.seed, again, **search)
            scores.append(from_hits("xsr", task, hits, settings))
    return scores
