"""Margin-based mining of translation pairs from two sets of sentences, or paraphrases from one set.

The method follows Artetxe and Schwenk 2019a.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import RETRIEVALS
from fairseq_lxsr.vectors.margin import margin_scores, neighbourhood
from fairseq_lxsr.vectors.neighbours import nearest_neighbours
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, as_matrix, check_count, normalise_rows

# Number of queries that are compared at a time for CSLS.
PAIR_ROWS = 1024


@dataclass(frozen=True)
class MinedPairs:
    """P pairs in descending order of score.

    Attributes:
        scores: margins [P].
        source: row indices of the source [P].
        target: row indices of the target [P].
    """

    scores: FloatArray
    source: IntArray
    target: IntArray

    def __len__(self) -> int:
        return len(self.scores)

    def first(self, count: int) -> "MinedPairs":
        """Return the best `count` pairs.

        Args:
            count: number of pairs to keep.

        Returns:
            The pairs, in the same order.
        """
        return MinedPairs(self.scores[:count], self.source[:count], self.target[:count])

    def above(self, threshold: float) -> "MinedPairs":
        """Return the pairs that score at least `threshold`.

        Args:
            threshold: lowest score to keep.

        Returns:
            The pairs, in the same order.
        """
        # In float32, a threshold between two adjacent scores would be rounded to one of them.
        return self.first(int((self.scores.astype(np.float64) >= threshold).sum()))

    def select(self, rows: Any) -> "MinedPairs":
        """Return the pairs at the given positions, or where a mask is true.

        Args:
            rows: positions [n], or a mask [P], of pairs.

        Returns:
            The pairs, in the order of `rows`.
        """
        return MinedPairs(self.scores[rows], self.source[rows], self.target[rows])


def mine(
    source: NDArray[Any],
    target: NDArray[Any] | None = None,
    k: int = 4,
    margin: str = "ratio",
    retrieval: str = "max",
    **search,
) -> MinedPairs:
    """Find the pairs of embeddings with the largest margins over their neighbourhoods.

        pairs = mine(source, target).above(1.06)
        for score, i, j in zip(pairs.scores, pairs.source, pairs.target):
            print(score, source_lines[i], target_lines[j])

    Within one set the pairs are paraphrases: no row is paired with itself, and of (i, j) and (j, i)
    only the pair with the smaller first index is returned.

    Args:
        source: embeddings [N, D], in memory or memory-mapped.
        target: embeddings [M, D]; None for pairs within the source.
        k: number of neighbours per sentence, used as its candidates and its neighbourhood.
        margin: `ratio`, `distance` or `absolute`.
        retrieval: `fwd` pairs each source sentence with its best target, `bwd` the reverse;
            `intersect` keeps the pairs in both, `max` the pairs in either, greedily by score, each
            sentence once; `all` pairs each sentence with all its k neighbours, for later selection.
        **search (Any): options of `nearest_neighbours`.

    Returns:
        The pairs in descending order of score. `source` and `target` are row indices of the
        embeddings.

    Raises:
        InputError: if k is larger than the number of candidates, another value is out of range, or
            a row contains NaN or infinity.
    """
    if target is None:
        source = as_matrix(source, "source")
        check_count("k", k, len(source) - 1, "other rows")
        cosines, ids = drop_self(*nearest_neighbours(source, source, k + 1, **search))
        return mine_within(cosines, ids, margin=margin, retrieval=retrieval)
    forward = nearest_neighbours(source, target, k, **search)
    backward = nearest_neighbours(target, source, k, **search)
    return mine_neighbours(*forward, *backward, margin=margin, retrieval=retrieval)


def drop_self(cosines: FloatArray, ids: IntArray, first: int = 0) -> tuple[FloatArray, IntArray]:
    """Remove each row from the list of its own nearest neighbours.

    If a row is not among its neighbours, the last of them is removed.

    Args:
        cosines: cosines of n rows to their k + 1 nearest neighbours, usually including the rows
            themselves [n, k + 1].
        ids: ids of the neighbours [n, k + 1].
        first: index of the first row among the candidates.

    Returns:
        Cosines and ids of the other neighbours, [n, k] each.
    """
    is_dropped = ids == np.arange(first, first + len(ids))[:, None]
    is_dropped[:, -1] |= ~is_dropped.any(axis=1)
    is_kept = ~is_dropped
    return cosines[is_kept].reshape(len(ids), -1), ids[is_kept].reshape(len(ids), -1)


def mine_within(
    cosines: FloatArray, ids: IntArray, margin: str = "ratio", retrieval: str = "max"
) -> MinedPairs:
    """Mine pairs within one set of embeddings, given each row's nearest neighbours except itself.

    Args:
        cosines: cosine of each row to its k nearest neighbours, in descending order [N, k].
        ids: row indices of these neighbours [N, k].
        margin: see `mine`.
        retrieval: see `mine`.

    Returns:
        The pairs in descending order of score. Each pair occurs once, and its source index is
        the smaller one.
    """
    # Within one set, both directions give the same pairs; keep each of them once.
    one_way = "fwd" if retrieval in ("max", "bwd") else retrieval
    pairs = mine_neighbours(cosines, ids, cosines, ids, margin, one_way)
    low = np.minimum(pairs.source, pairs.target)
    high = np.maximum(pairs.source, pairs.target)
    # Of two equal pairs, the first has the larger score.
    _, best = np.unique(low * len(ids) + high, return_index=True)
    distinct = _sort(pairs.scores[best], low[best], high[best])
    if retrieval == "max":
        return one_to_one(distinct, within=True)
    return distinct


def mine_neighbours(
    forward_cosines: FloatArray,
    forward: IntArray,
    backward_cosines: FloatArray,
    backward: IntArray,
    margin: str = "ratio",
    retrieval: str = "max",
) -> MinedPairs:
    """Mine pairs from known neighbours in both directions.

    A row whose cosines are all 0 is a zero vector, which is in no pair.

    Args:
        forward_cosines: cosines of the source rows to their neighbours in the target [N, k].
        forward: ids of these neighbours [N, k].
        backward_cosines: cosines of the target rows to their neighbours in the source [M, k].
        backward: ids of these neighbours [M, k].
        margin: see `mine`.
        retrieval: see `mine`.

    Returns:
        The pairs in descending order of score.
    """
    if retrieval not in RETRIEVALS:
        raise InputError(f"invalid retrieval {retrieval!r}; choose from {', '.join(RETRIEVALS)}")
    source_means = neighbourhood(forward_cosines)
    target_means = neighbourhood(backward_cosines)
    left = margin_scores(forward_cosines, source_means[:, None], target_means[forward], margin)
    right = margin_scores(backward_cosines, target_means[:, None], source_means[backward], margin)
    source_is_known = np.asarray(forward_cosines.any(axis=1))
    target_is_known = np.asarray(backward_cosines.any(axis=1))
    # A zero vector must not be the best neighbour of any row.
    left[~target_is_known[forward]] = -np.inf
    right[~source_is_known[backward]] = -np.inf
    pairs = _retrieve(left, forward, right, backward, retrieval)
    pairs = pairs.select(source_is_known[pairs.source] & target_is_known[pairs.target])
    if retrieval == "max":
        return one_to_one(pairs)
    return pairs


def _retrieve(
    left: FloatArray, forward: IntArray, right: FloatArray, backward: IntArray, retrieval: str
) -> MinedPairs:
    """Choose pairs by their margins [N, k] from source to target and [M, k] from target to source.

    The pairs of `max` are not yet one-to-one.
    """
    if retrieval == "all":
        return _union(left, forward, right, backward)
    best_target, forward_scores = _nearest(left, forward)
    best_source, backward_scores = _nearest(right, backward)
    sources = np.arange(len(best_target))
    targets = np.arange(len(best_source))
    if retrieval == "fwd":
        return _sort(forward_scores, sources, best_target)
    if retrieval == "bwd":
        return _sort(backward_scores, best_source, targets)
    if retrieval == "intersect":
        is_mutual = best_source[best_target] == sources
        return _sort(forward_scores[is_mutual], sources[is_mutual], best_target[is_mutual])
    return _sort(
        np.concatenate([forward_scores, backward_scores]),
        np.concatenate([sources, best_source]),
        np.concatenate([best_target, targets]),
    )


def one_to_one(pairs: MinedPairs, within: bool = False) -> MinedPairs:
    """Select pairs greedily by score, so that each sentence occurs only once.

    Args:
        pairs: pairs in descending order of score.
        within: whether source and target are the same set, in which each sentence may occur once.

    Returns:
        The selected pairs, in the same order.
    """
    seen_source: set[int] = set()
    seen_target: set[int] = seen_source if within else set()
    selected = []
    for index, (source, target) in enumerate(
        zip(pairs.source.tolist(), pairs.target.tolist(), strict=True)
    ):
        if source not in seen_source and target not in seen_target:
            seen_source.add(source)
            seen_target.add(target)
            selected.append(index)
    return pairs.select(selected)


def _nearest(scores: FloatArray, ids: IntArray) -> tuple[IntArray, FloatArray]:
    """Return the neighbour with the largest margin for each row, and its margin, [N] each."""
    best = scores.argmax(axis=1)[:, None]
    return np.take_along_axis(ids, best, 1)[:, 0], np.take_along_axis(scores, best, 1)[:, 0]


def _union(
    forward_scores: FloatArray, forward: IntArray, backward_scores: FloatArray, backward: IntArray
) -> MinedPairs:
    """Pair each row with all its neighbours, in both directions; each pair occurs once."""
    forward_rows = np.repeat(np.arange(len(forward)), forward.shape[1])
    backward_rows = np.repeat(np.arange(len(backward)), backward.shape[1])
    sources = np.concatenate([forward_rows, backward.ravel()])
    targets = np.concatenate([forward.ravel(), backward_rows])
    scores = np.concatenate([forward_scores.ravel(), backward_scores.ravel()])
    _, first = np.unique(sources * len(backward) + targets, return_index=True)
    return _sort(scores[first], sources[first], targets[first])


def _sort(scores: FloatArray, source: IntArray, target: IntArray) -> MinedPairs:
    """Sort by descending score; equal scores by source, then by target."""
    order = np.lexsort((target, source, -scores))
    return MinedPairs(scores[order], source[order], target[order])


def csls_pairs(
    queries: FloatArray, candidates: FloatArray, count: int, neighbours: int = 10
) -> tuple[FloatArray, IntArray, IntArray]:
    """Find the `count` pairs with the largest CSLS(x, y) = 2 cos(x, y) - r(x) - r(y).

    Args:
        queries: vectors [N, D].
        candidates: vectors [M, D].
        count: number of pairs to find.
        neighbours: number of neighbours in r.

    Returns:
        CSLS in descending order, row indices of the queries, and row indices of the candidates,
        each [count]. The order of pairs with equal CSLS is arbitrary.
    """
    best = np.empty(0, dtype=np.float32)
    # Positions in the matrix of all pairs, row by row.
    positions = np.empty(0, dtype=np.int64)
    for start, block in _csls_blocks(queries, candidates, neighbours):
        scores = block.ravel()
        if len(best) < count:
            missing = min(count, len(scores))
            selected = np.argpartition(scores, -missing)[-missing:]
        else:
            # Few pairs exceed the best pairs so far, and comparing is faster than sorting.
            selected = np.flatnonzero(scores > best[-1])
        best = np.append(best, scores[selected])
        positions = np.append(positions, selected + start * len(candidates))
        order = np.argsort(-best, kind="stable")[:count]
        best = best[order]
        positions = positions[order]
    rows, columns = np.divmod(positions, len(candidates))
    return best, rows, columns


def csls_best(
    queries: FloatArray, candidates: FloatArray, neighbours: int = 10
) -> tuple[FloatArray, IntArray]:
    """Find the candidate with the largest CSLS for each query.

    Args:
        queries: vectors [N, D].
        candidates: vectors [M, D].
        neighbours: number of neighbours in r, see `csls_pairs`.

    Returns:
        CSLS and row indices of the candidates, each [N].
    """
    scores = np.empty(len(queries), dtype=np.float32)
    columns = np.empty(len(queries), dtype=np.int64)
    for start, block in _csls_blocks(queries, candidates, neighbours):
        rows = slice(start, start + len(block))
        columns[rows] = block.argmax(axis=1)
        scores[rows] = block.max(axis=1)
    return scores, columns


def _csls_blocks(
    queries: FloatArray, candidates: FloatArray, neighbours: int
) -> Iterator[tuple[int, FloatArray]]:
    """Yield the index of the first query of each block, and CSLS with all candidates [n, M]."""
    query_means = neighbourhood(nearest_neighbours(queries, candidates, neighbours)[0])
    candidate_means = neighbourhood(nearest_neighbours(candidates, queries, neighbours)[0])
    doubled_queries = 2 * normalise_rows(queries)
    candidate_units = normalise_rows(candidates)
    for start in range(0, len(doubled_queries), PAIR_ROWS):
        stop = start + PAIR_ROWS
        block = doubled_queries[start:stop] @ candidate_units.T
        block -= candidate_means
        block -= query_means[start:stop, None]
        yield start, block
