"""Mines translation pairs from two sets of sentences, paraphrases from one, by margin (Artetxe and
Schwenk 2019a).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import RETRIEVALS
from fairseq_lxsr.vectors.margin import margin_scores, neighbourhood
from fairseq_lxsr.vectors.neighbours import nearest_neighbours
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, as_matrix, check_count, normalise_rows

PAIR_ROWS = 1024  # queries that are compared at a time


@dataclass(frozen=True)
class MinedPairs:
    """P pairs in descending order of score."""

    scores: FloatArray  # [P]
    source: IntArray  # [P], row numbers of the source
    target: IntArray  # [P], row numbers of the target

    def __len__(self) -> int:
        return len(self.scores)

    def first(self, count: int) -> "MinedPairs":
        """Return the best `count` pairs."""
        return MinedPairs(self.scores[:count], self.source[:count], self.target[:count])

    def above(self, threshold: float) -> "MinedPairs":
        """Return the pairs that score at least `threshold`."""
        # in float32 a threshold between two adjacent scores would be rounded to one of them
        return self.first(int((self.scores.astype(np.float64) >= threshold).sum()))


def mine(
    source: NDArray[Any],
    target: NDArray[Any] | None = None,
    k: int = 4,
    margin: str = "ratio",
    retrieval: str = "max",
    **search,
) -> MinedPairs:
    """Find the pairs of two sets of embeddings that have the largest margins over their
    neighbourhoods.

    In one set, without a target, they are paraphrases: no row is paired with itself, and of (i, j)
    and (j, i) only the one with the smaller first number is there.

    Args:
        source: embeddings [N, D], in memory or memory-mapped.
        target: embeddings [M, D]; None for pairs of two rows of the source.
        k: number of neighbours of a sentence, which are its candidates and its neighbourhood.
        margin: `ratio`, `distance` or `absolute`.
        retrieval: `fwd` pairs every source sentence with its best target, `bwd` the reverse;
            `intersect` takes the pairs in both, `max` the pairs in either, greedily by score, each
            sentence once; `all` pairs every sentence with all its k neighbours, for a choice that
            is made later.
        **search (Any): options of `nearest_neighbours`.
    """
    if target is None:
        source = as_matrix(source, "source")
        check_count("k", k, len(source) - 1, "other rows")
        others = without_self(*nearest_neighbours(source, source, k + 1, **search))
        return mine_within(*others, margin=margin, retrieval=retrieval)
    forward = nearest_neighbours(source, target, k, **search)
    backward = nearest_neighbours(target, source, k, **search)
    return mine_neighbours(*forward, *backward, margin=margin, retrieval=retrieval)


def without_self(cosines: FloatArray, ids: IntArray, first: int = 0) -> tuple[FloatArray, IntArray]:
    """Leave each row itself out of its k + 1 nearest, or the last of them where it is not there:
    [n, k] of each.

    `first` is the number of the first row among the candidates.
    """
    left_out = ids == np.arange(first, first + len(ids))[:, None]
    left_out[:, -1] |= ~left_out.any(axis=1)
    return cosines[~left_out].reshape(len(ids), -1), ids[~left_out].reshape(len(ids), -1)


def mine_within(
    cosines: FloatArray, ids: IntArray, margin: str = "ratio", retrieval: str = "max"
) -> MinedPairs:
    """Mine pairs of one set from the neighbours of every row among the others: cosines and indices
    [N, k].
    """
    ways = {"max": "fwd", "bwd": "fwd"}  # the same, where each pair counts once
    pairs = mine_neighbours(cosines, ids, cosines, ids, margin, ways.get(retrieval, retrieval))
    low, high = np.minimum(pairs.source, pairs.target), np.maximum(pairs.source, pairs.target)
    # the first of each, which scores most
    _, best = np.unique(low * len(ids) + high, return_index=True)
    once = _in_order(pairs.scores[best], low[best], high[best])
    return one_to_one(once, within=True) if retrieval == "max" else once


def mine_neighbours(
    forward_cosines: FloatArray,
    forward: IntArray,
    backward_cosines: FloatArray,
    backward: IntArray,
    margin: str = "ratio",
    retrieval: str = "max",
) -> MinedPairs:
    """Mine pairs from known neighbours in both directions: cosines and indices [N, k] and [M, k].

    A row whose cosines are all 0 is a zero vector, which is in no pair.
    """
    if retrieval not in RETRIEVALS:
        raise InputError(f"retrieval {retrieval!r}; expected one of {', '.join(RETRIEVALS)}")
    source_means, target_means = neighbourhood(forward_cosines), neighbourhood(backward_cosines)
    left = margin_scores(forward_cosines, source_means[:, None], target_means[forward], margin)
    right = margin_scores(backward_cosines, target_means[:, None], source_means[backward], margin)
    is_source, is_target = (
        np.asarray(cosines.any(axis=1)) for cosines in (forward_cosines, backward_cosines)
    )
    left[~is_target[forward]] = right[~is_source[backward]] = -np.inf  # not the nearest of any
    pairs = _chosen(left, forward, right, backward, retrieval)
    kept = is_source[pairs.source] & is_target[pairs.target]
    pairs = MinedPairs(pairs.scores[kept], pairs.source[kept], pairs.target[kept])
    return one_to_one(pairs) if retrieval == "max" else pairs


def _chosen(
    left: FloatArray, forward: IntArray, right: FloatArray, backward: IntArray, retrieval: str
) -> MinedPairs:
    """Choose pairs by their margins in both directions, [N, k] and [M, k]; those of `max` are not
    one to one yet.
    """
    if retrieval == "all":
        return _union(left, forward, right, backward)
    best_target, forward_scores = _nearest(left, forward)
    best_source, backward_scores = _nearest(right, backward)
    sources, targets = np.arange(len(best_target)), np.arange(len(best_source))
    if retrieval == "fwd":
        return _in_order(forward_scores, sources, best_target)
    if retrieval == "bwd":
        return _in_order(backward_scores, best_source, targets)
    if retrieval == "intersect":
        both = best_source[best_target] == sources
        return _in_order(forward_scores[both], sources[both], best_target[both])
    scores = np.concatenate([forward_scores, backward_scores])
    return _in_order(
        scores, np.concatenate([sources, best_source]), np.concatenate([best_target, targets])
    )


def one_to_one(pairs: MinedPairs, within: bool = False) -> MinedPairs:
    """Select pairs greedily by score, so that each source and each target sentence occurs once.

    Where both are `within` one set, each sentence of it occurs once.
    """
    seen_source: set[int] = set()
    seen_target: set[int] = seen_source if within else set()
    kept = []
    for index, (source, target) in enumerate(
        zip(pairs.source.tolist(), pairs.target.tolist(), strict=True)
    ):
        if source not in seen_source and target not in seen_target:
            seen_source.add(source)
            seen_target.add(target)
            kept.append(index)
    return MinedPairs(pairs.scores[kept], pairs.source[kept], pairs.target[kept])


def _nearest(scores: FloatArray, found: IntArray) -> tuple[IntArray, FloatArray]:
    """Return the neighbour of largest margin for every row, and that margin; [N] each."""
    best = scores.argmax(axis=1)[:, None]
    return np.take_along_axis(found, best, 1)[:, 0], np.take_along_axis(scores, best, 1)[:, 0]


def _union(
    forward_scores: FloatArray, forward: IntArray, backward_scores: FloatArray, backward: IntArray
) -> MinedPairs:
    """Collect the pairs of every row with all its neighbours in both directions, each pair once."""
    sources = np.concatenate(
        [np.repeat(np.arange(len(forward)), forward.shape[1]), backward.ravel()]
    )
    targets = np.concatenate(
        [forward.ravel(), np.repeat(np.arange(len(backward)), backward.shape[1])]
    )
    scores = np.concatenate([forward_scores.ravel(), backward_scores.ravel()])
    _, first = np.unique(sources * len(backward) + targets, return_index=True)
    return _in_order(scores[first], sources[first], targets[first])


def _in_order(scores: FloatArray, source: IntArray, target: IntArray) -> MinedPairs:
    """Sort by descending score; equal scores by source, then target."""
    order = np.lexsort((target, source, -scores))
    return MinedPairs(scores[order], source[order], target[order])


def csls_pairs(
    queries: FloatArray, candidates: FloatArray, count: int, neighbours: int = 10
) -> tuple[FloatArray, IntArray, IntArray]:
    """Find the `count` pairs of largest CSLS(x, y) = 2 cos(x, y) - r(x) - r(y) of all N x M, in
    descending order.

    `neighbours` is the size of the neighbourhoods of r. Returns CSLS, row numbers of the queries
    and of the candidates, each [count]; the order of equal pairs is arbitrary.
    """
    to_candidates = neighbourhood(nearest_neighbours(queries, candidates, neighbours)[0])
    to_queries = neighbourhood(nearest_neighbours(candidates, queries, neighbours)[0])
    twice, others = 2 * normalise_rows(queries), normalise_rows(candidates)
    best, places = np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64)
    for start in range(0, len(twice), PAIR_ROWS):
        block = twice[start : start + PAIR_ROWS] @ others.T  # [n, M]
        block -= to_queries
        block -= to_candidates[start : start + PAIR_ROWS, None]
        scores = block.ravel()
        if len(best) < count:
            missing = min(count, len(scores))
            here = np.argpartition(scores, -missing)[-missing:]
        else:  # few pairs beat those found so far, and comparing is faster than sorting
            here = np.flatnonzero(scores > best[-1])
        best, places = (
            np.append(best, scores[here]),
            np.append(places, here + start * len(candidates)),
        )
        order = np.argsort(-best, kind="stable")[:count]
        best, places = best[order], places[order]
    rows, columns = np.divmod(places, len(candidates))
    return best, rows, columns
