"""XSR: cross-lingual sentence retrieval, P@k both ways (Sabet et al. 2019; Mao et al. 2021, section 5.2)."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.retrieval import nearest_neighbours

RANKS = (1, 5, 10)
MAX_CANDIDATES = 200_000
MAX_QUERIES = 2_000

Embed = Callable[[Sequence[str]], NDArray[np.float32]]


@dataclass(frozen=True)
class RetrievalSet:
    """Aligned sentences; the first `queries` of each side are also searched for."""

    source: list[str]
    target: list[str]
    queries: int


def select(pairs: Iterable[tuple[str, str]], seed: int = 1) -> RetrievalSet:
    """The protocol's text: lower-cased, pairs with an empty or repeated side dropped, shuffled, cut to 200,000.

    Raises: InputError where fewer than 10 pairs are left (P@10 would have no meaning).
    """
    kept: list[tuple[str, str]] = []
    seen: tuple[set[str], set[str]] = (set(), set())
    for source, target in pairs:
        pair = (source.strip().lower(), target.strip().lower())
        if not all(pair) or pair[0] in seen[0] or pair[1] in seen[1]:
            continue
        seen[0].add(pair[0])
        seen[1].add(pair[1])
        kept.append(pair)
    if len(kept) < max(RANKS):
        raise InputError(f"{len(kept)} usable sentence pairs; expected at least {max(RANKS)}: give more aligned text")
    random.Random(seed).shuffle(kept)
    kept = kept[:MAX_CANDIDATES]
    return RetrievalSet([pair[0] for pair in kept], [pair[1] for pair in kept], min(MAX_QUERIES, len(kept)))


def precision_at(ranks: Sequence[int], found: NDArray[np.int64], gold: NDArray[np.int64]) -> dict[int, float]:
    """Per cent of queries whose gold candidate is among the first k found.

    Args: found: [N, K] indices in falling order of score; gold: [N].
    """
    hits = found == gold[:, None]
    return {k: float(100 * hits[:, :k].any(axis=1).mean()) for k in ranks}


def evaluate(texts: RetrievalSet, embed: Embed, fingerprint: str, seed: int = 1) -> Score:
    """P@1, P@5 and P@10 of the nearest neighbour by cosine, source to target and target to source.

    Sentences that embed alike tie, and the one that stands first wins: a tie helps only the right index.
    """
    source, target = embed(texts.source), embed(texts.target)
    gold = np.arange(texts.queries)
    values: dict[str, float] = {}
    for name, queries, candidates in (("source->target", source, target), ("target->source", target, source)):
        _, found = nearest_neighbours(queries[: texts.queries], candidates, max(RANKS))
        values |= {f"{name} P@{k}": value for k, value in precision_at(RANKS, found, gold).items()}
    settings = {
        "metric": "nn-cosine",
        "case": "lower",
        "queries": texts.queries,
        "candidates": len(texts.target),
        "seed": seed,
        "model": fingerprint,
    }
    return Score("xsr", values, settings)
