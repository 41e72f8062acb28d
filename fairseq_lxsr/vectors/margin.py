"""Margin and CSLS scores, which correct cosine similarity for hubs.

Margins are from Artetxe and Schwenk 2019a, CSLS is from Conneau et al. 2018. The neighbourhood r(x)
is the mean cosine of x to its k nearest neighbours on the other side.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import MARGINS
from fairseq_lxsr.vectors.neighbours import nearest_neighbours
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, best_first


def margin_scores(
    cosines: FloatArray, source_means: FloatArray, target_means: FloatArray, margin: str
) -> FloatArray:
    """Compute the margin of each pair, elementwise.

    `ratio` is cos / m, `distance` is cos - m, `absolute` is cos, with m = (r(x) + r(y)) / 2
    (Artetxe and Schwenk 2019a, section 3.1: with k neighbours each, m is their sum over 2k). A
    ratio is meaningless if m is not positive; the score is then the sign of the cosine times
    infinity, or 0 for a cosine of 0.

    Args:
        cosines: cosine of each pair.
        source_means: r(x) of the source x of each pair, or an array that broadcasts to the cosines.
        target_means: r(y) of the target y of each pair, in the same form.
        margin: `ratio`, `distance` or `absolute`.

    Returns:
        Margins, in the shape of the cosines.

    Raises:
        InputError: if the margin is unknown.
    """
    mean = (source_means + target_means) / 2
    if margin == "absolute":
        return cosines
    if margin == "distance":
        return cosines - mean
    if margin == "ratio":
        positive = mean > 0
        limit = np.select([cosines > 0, cosines < 0], [np.inf, -np.inf])
        return np.where(positive, cosines / np.where(positive, mean, 1), limit).astype(np.float32)
    raise InputError(f"invalid margin {margin!r}; choose from {', '.join(MARGINS)}")


def neighbourhood(cosines: FloatArray) -> FloatArray:
    """Compute the mean cosine of each vector to its k nearest neighbours.

    Args:
        cosines: cosines of the vectors to their neighbours [N, k].

    Returns:
        The means r, float32 [N].
    """
    return cosines.mean(axis=1, dtype=np.float64).astype(np.float32)


def margin_neighbours(
    queries: NDArray[Any],
    candidates: NDArray[Any],
    k: int,
    margin: str = "ratio",
    depth: int = 0,
    **search,
) -> tuple[FloatArray, IntArray]:
    """Rank the nearest candidates of each query by margin.

    Args:
        queries: vectors [N, D].
        candidates: vectors [M, D].
        k: size of the neighbourhoods, at most N and M.
        margin: `ratio`, `distance` or `absolute`.
        depth: number of nearest candidates to rank; 0 means k, as in LASER's xsim.
        **search (Any): options of `nearest_neighbours`.

    Returns:
        Margins [N, depth] in descending order, and ids of the candidates [N, depth]. Equal margins
        are sorted by cosine.
    """
    depth = depth or k
    cosines, ids = nearest_neighbours(queries, candidates, max(k, depth), **search)
    candidate_cosines, _ = nearest_neighbours(candidates, queries, k, **search)
    query_means = neighbourhood(cosines[:, :k])
    candidate_means = neighbourhood(candidate_cosines)
    scores = margin_scores(cosines, query_means[:, None], candidate_means[ids], margin)
    return best_first(scores[:, :depth], ids[:, :depth])


def csls_neighbours(
    queries: NDArray[Any], candidates: NDArray[Any], k: int, neighbours: int = 10, **search
) -> tuple[FloatArray, IntArray]:
    """Find the k candidates y with the largest CSLS(x, y) = 2 cos(x, y) - r(x) - r(y) per query x.

    Args:
        queries: vectors [N, D].
        candidates: vectors [M, D].
        k: number of candidates to find.
        neighbours: size of the neighbourhoods, at most N and M; 10 in MUSE.
        **search (Any): options of `nearest_neighbours`.

    Returns:
        CSLS [N, k] in descending order, and ids of the candidates [N, k].
    """
    candidate_cosines, _ = nearest_neighbours(candidates, queries, neighbours, **search)
    query_cosines, _ = nearest_neighbours(queries, candidates, neighbours, **search)
    # For one query, CSLS and cos - r(y)/2 rank the candidates in the same order.
    penalty = neighbourhood(candidate_cosines) / 2
    scores, ids = nearest_neighbours(queries, candidates, k, penalty=penalty, **search)
    return 2 * scores - neighbourhood(query_cosines)[:, None], ids
