"""Scores that correct the cosine for hubs: margins (Artetxe and Schwenk 2019a) and CSLS (Conneau et
al. 2018).

r(x) is the mean cosine of x to its k nearest neighbours on the other side, its neighbourhood.
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
    """Compute the margin of every pair elementwise.

    `ratio` is cos / m, `distance` is cos - m, `absolute` is cos, where m = (r(x) + r(y)) / 2
    (Artetxe and Schwenk 2019a, section 3.1: with k neighbours each, m is their sum over 2k). A
    ratio has no meaning where m is not positive; the pair then gets the sign of the cosine times
    infinity, or 0 for a cosine of 0.
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
    raise InputError(f"margin {margin!r}; expected one of {', '.join(MARGINS)}")


def neighbourhood(cosines: FloatArray) -> FloatArray:
    """Compute r, the mean of the cosines [N, k] to the k nearest, [N]."""
    return cosines.mean(axis=1, dtype=np.float64).astype(np.float32)


def margin_neighbours(
    queries: NDArray[Any],
    candidates: NDArray[Any],
    k: int,
    margin: str = "ratio",
    depth: int = 0,
    **search,
) -> tuple[FloatArray, IntArray]:
    """Rank the `depth` nearest (0: k, as in LASER's xsim) of [N, D] in [M, D] by margin over
    neighbourhoods of k.

    `search` are options of `nearest_neighbours`. Returns margins [N, depth] in descending order (of
    equal margins the larger cosine comes first), and indices.
    """
    cosines, found = nearest_neighbours(queries, candidates, max(k, depth or k), **search)
    back, _ = nearest_neighbours(candidates, queries, k, **search)
    means = neighbourhood(back)
    depth = depth or k
    scores = margin_scores(cosines, neighbourhood(cosines[:, :k])[:, None], means[found], margin)[
        :, :depth
    ]
    return best_first(scores, found[:, :depth])


def csls_neighbours(
    queries: NDArray[Any], candidates: NDArray[Any], k: int, neighbours: int = 10, **search
) -> tuple[FloatArray, IntArray]:
    """Find the k candidates y of largest CSLS(x, y) = 2 cos(x, y) - r(x) - r(y) of each query, and
    their indices.

    `neighbours` is the size of the neighbourhoods of r (10 in MUSE), at most N and M; `search` are
    options of `nearest_neighbours`. CSLS [N, k] is in descending order.
    """
    to_queries, _ = nearest_neighbours(candidates, queries, neighbours, **search)
    to_candidates, _ = nearest_neighbours(queries, candidates, neighbours, **search)
    # for one query, CSLS and cos - r(y)/2 give the same order
    scores, found = nearest_neighbours(
        queries, candidates, k, penalty=neighbourhood(to_queries) / 2, **search
    )
    return 2 * scores - neighbourhood(to_candidates)[:, None], found
