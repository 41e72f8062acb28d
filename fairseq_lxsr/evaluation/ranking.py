"""Ranking of candidates and precision, shared by the retrieval protocols."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairseq_lxsr.choices import METRICS
from fairseq_lxsr.embeddings import Reranker, Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.score import Outcomes, as_units
from fairseq_lxsr.evaluation.text import check_pair
from fairseq_lxsr.retrieval import csls_neighbours, margin_neighbours, nearest_neighbours
from fairseq_lxsr.retrieval.neighbours import FloatArray, IntArray

CSLS_NEIGHBOURS, MARGIN_NEIGHBOURS, MARGIN_DEPTH = 10, 4, 100


def rank(queries: FloatArray, candidates: FloatArray, count: int, metric: str, **search) -> IntArray:
    """Return the `count` best candidates of every query [Q, count].

    `nn` ranks by cosine; `csls` by CSLS with neighbourhoods of 10, over all candidates (Conneau et al. 2018); `margin`
    ranks the 100 nearest by cosine by ratio margin with neighbourhoods of 4 (Artetxe and Schwenk 2019a).

    Raises:
        InputError: where there are too few candidates or queries for the metric.
    """
    if metric not in METRICS:
        raise InputError(f"metric {metric!r}; expected one of {', '.join(METRICS)}")
    check_pair(queries, candidates)
    if len(candidates) < count:
        raise InputError(f"{len(candidates)} candidates; expected at least {count}, the number to be found: add text")
    if metric == "nn":
        return nearest_neighbours(queries, candidates, count, **search)[1]
    needed = CSLS_NEIGHBOURS if metric == "csls" else MARGIN_NEIGHBOURS
    if min(len(queries), len(candidates)) < needed:
        raise InputError(
            f"{len(queries)} queries and {len(candidates)} candidates; {METRICS[metric]} expects at least {needed} of "
            "each, to take the mean of that many neighbours: add text"
        )
    if metric == "csls":
        return csls_neighbours(queries, candidates, count, CSLS_NEIGHBOURS, **search)[1]
    depth = min(MARGIN_DEPTH, len(candidates))
    return margin_neighbours(queries, candidates, MARGIN_NEIGHBOURS, depth=depth, **search)[1][:, :count]


@dataclass(frozen=True)
class Again:
    """Ranks by cosine, and the nearest again by a `Reranker`.

    Args:
        reranker: scores the nearest again.
        queries: text of the queries [Q].
        candidates: text of the candidates [M].
    """

    reranker: Reranker
    queries: Sequence[str]
    candidates: Sequence[str]

    def rank(self, queries: FloatArray, candidates: FloatArray, rows: IntArray, count: int, **search) -> IntArray:
        """Return the rows of the `count` best candidates of every query [Q, count].

        Args:
            queries: embeddings of the queries [Q, D].
            candidates: embeddings of the candidates [M, D], in any order.
            rows: their rows in the text of the candidates [M].
            count: number of candidates to find.
            **search (Any): options of `nearest_neighbours`.

        Raises:
            InputError: where fewer are scored again than are to be found.
        """
        self.reranker.check_depth(count)
        check_pair(queries, candidates)
        depth = min(self.reranker.depth, len(candidates))
        cosines, found = nearest_neighbours(queries, candidates, depth, **search)
        _, best = self.reranker.best(self.queries, self._read, cosines, rows[found])
        return best[:, :count]

    def _read(self, rows: IntArray) -> list[str]:
        return [self.candidates[row] for row in rows]


def identities(lines: Sequence[str]) -> IntArray:
    """Number the sentences [N]; identical sentences get the same number."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(line, len(numbers)) for line in lines], dtype=np.int64)


def found_at(
    ranks: Sequence[int], found: IntArray, gold: IntArray, same: IntArray | None = None
) -> dict[str, Outcomes]:
    """Compute P@k: whether the gold candidate, or an identical one, is among the first k found.

    Args:
        ranks: values of k.
        found: indices of the found candidates in order of rank [Q, K].
        gold: index of the gold candidate [Q].
        same: numbers of the candidates from `identities` [M].
    """
    hits = found == gold[:, None] if same is None else same[found] == same[gold][:, None]
    return {f"P@{k}": Outcomes(as_units(hits[:, :k].any(axis=1))) for k in ranks}


def directions(source: Text, target: Text) -> tuple[str, str]:
    """Return the names of the two tasks of a language pair, which differ for a language paired with itself."""
    first, second = source.language or "source", target.language or "target"
    if first == second:
        first, second = f"{first} (source)", f"{second} (target)"
    return f"{first}->{second}", f"{second}->{first}"
