"""Mining against a slow reference written from the definition, and on a matrix worked out by
hand.
"""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.vectors import MinedPairs, csls_pairs, mine, mine_neighbours, one_to_one


def slow_mine(source, target, k, retrieval):
    """Ratio margin mining from the definition, with loops."""
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (source, target))
    cosines = a @ b.T
    near_target = [sorted(range(len(b)), key=lambda j: -cosines[i, j])[:k] for i in range(len(a))]
    near_source = [sorted(range(len(a)), key=lambda i: -cosines[i, j])[:k] for j in range(len(b))]
    r_source = [np.mean([cosines[i, j] for j in near]) for i, near in enumerate(near_target)]
    r_target = [np.mean([cosines[i, j] for i in near]) for j, near in enumerate(near_source)]

    def ratio(i, j):
        return cosines[i, j] / ((r_source[i] + r_target[j]) / 2)

    forward = {(i, max(near, key=lambda j: ratio(i, j))) for i, near in enumerate(near_target)}
    backward = {(max(near, key=lambda i: ratio(i, j)), j) for j, near in enumerate(near_source)}
    all_near = {(i, j) for i, near in enumerate(near_target) for j in near}
    all_near |= {(i, j) for j, near in enumerate(near_source) for i in near}
    ways = {
        "fwd": forward,
        "bwd": backward,
        "intersect": forward & backward,
        "max": forward | backward,
    }
    pairs = (ways | {"all": all_near})[retrieval]
    pairs = sorted(pairs, key=lambda pair: -ratio(*pair))
    if retrieval == "max":
        kept = []
        for pair in pairs:
            if all(pair[0] != other[0] and pair[1] != other[1] for other in kept):
                kept.append(pair)
        pairs = kept
    return pairs, [ratio(*pair) for pair in pairs]


@pytest.mark.parametrize("retrieval", ["max", "intersect", "fwd", "bwd", "all"])
@pytest.mark.parametrize(("n", "m", "k"), [(30, 45, 4), (50, 20, 3), (5, 3, 2)])
def test_equal_to_the_slow_reference(retrieval, n, m, k):
    rng = np.random.default_rng(n)
    source = rng.standard_normal((n, 5)) + 1
    target = np.concatenate([source[: m // 2], rng.standard_normal((m, 5)) + 1])[
        :m
    ] + 0.3 * rng.standard_normal((m, 5))
    expected, scores = slow_mine(source, target, k, retrieval)
    mined = mine(source, target, k, retrieval=retrieval)
    assert list(zip(mined.source.tolist(), mined.target.tolist(), strict=True)) == expected
    np.testing.assert_allclose(mined.scores, scores, rtol=1e-5)


# two source and three target sentences; cosines of the k = 2 nearest both ways, margin absolute
FORWARD = (np.float32([[0.9, 0.5], [0.8, 0.7]]), np.array([[0, 1], [0, 2]]))
BACKWARD = (np.float32([[0.9, 0.8], [0.5, 0.1], [0.7, 0.2]]), np.array([[0, 1], [0, 1], [1, 0]]))


@pytest.mark.parametrize(
    ("retrieval", "pairs"),
    [
        ("fwd", [(0, 0), (1, 0)]),
        ("bwd", [(0, 0), (1, 2), (0, 1)]),
        ("intersect", [(0, 0)]),
        ("max", [(0, 0), (1, 2)]),
        ("all", [(0, 0), (1, 0), (1, 2), (0, 1), (0, 2), (1, 1)]),
    ],
)
def test_by_hand(retrieval, pairs):
    mined = mine_neighbours(*FORWARD, *BACKWARD, margin="absolute", retrieval=retrieval)
    assert list(zip(mined.source.tolist(), mined.target.tolist(), strict=True)) == pairs
    assert (np.diff(mined.scores) <= 0).all()


def test_greedy_pairs_prefer_the_first_of_equal_scores_and_a_threshold_keeps_them_all():
    pairs = MinedPairs(
        np.float32([0.9, 0.9, 0.8, 0.7]), np.array([0, 0, 1, 1]), np.array([1, 2, 1, 2])
    )
    kept = one_to_one(pairs)
    assert (kept.source.tolist(), kept.target.tolist()) == ([0, 1], [1, 2])
    pairs = MinedPairs(np.float32([1.2, 1.1, 1.1, 0.9]), np.arange(4), np.arange(4))
    assert (len(pairs.above(1.1)), len(pairs.above(2)), pairs.first(2).source.tolist()) == (
        3,
        0,
        [0, 1],
    )


def test_duplicates_are_taken_once_each():
    rows = np.random.default_rng(1).standard_normal((20, 8))
    both = np.concatenate([rows, rows])
    mined = mine(both, both)
    assert sorted(mined.source.tolist()) == sorted(mined.target.tolist())
    assert len(set(mined.source.tolist())) == len(mined)
    assert ((mined.source - mined.target) % 20 == 0).all()


def slow_within(rows, k, retrieval):
    """Pairs within one set from the definition: those of two sets of which a row is no neighbour of
    itself.
    """
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = units @ units.T
    near = [
        sorted(set(range(len(rows))) - {i}, key=lambda j: -cosines[i, j])[:k]
        for i in range(len(rows))
    ]
    means = [cosines[i, near[i]].mean() for i in range(len(rows))]

    def ratio(pair):
        return cosines[pair] / ((means[pair[0]] + means[pair[1]]) / 2)

    best = [max(near[i], key=lambda j: ratio((i, j))) for i in range(len(rows))]
    ways = {
        "all": {(i, j) for i in range(len(rows)) for j in near[i]},
        "intersect": {(i, j) for i, j in enumerate(best) if best[j] == i},
    }
    pairs = {(min(pair), max(pair)) for pair in ways.get(retrieval, set(enumerate(best)))}
    ordered, seen = sorted(pairs, key=lambda pair: -ratio(pair)), set()
    if retrieval == "max":
        ordered = [pair for pair in ordered if seen.isdisjoint(pair) and not seen.update(pair)]
    return ordered, [ratio(pair) for pair in ordered]


@pytest.mark.parametrize("retrieval", ["max", "intersect", "fwd", "bwd", "all"])
@pytest.mark.parametrize(("n", "k"), [(40, 4), (33, 2), (3, 2)])
def test_pairs_within_one_set(retrieval, n, k):
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, 6)) + 1
    rows[n // 2 :] = rows[: n - n // 2] + 0.3 * rng.standard_normal((n - n // 2, 6))
    expected, scores = slow_within(rows, k, retrieval)
    mined = mine(rows, k=k, retrieval=retrieval)
    assert list(zip(mined.source.tolist(), mined.target.tolist(), strict=True)) == expected
    np.testing.assert_allclose(mined.scores, scores, rtol=1e-5)
    assert (mined.source < mined.target).all()


def test_equal_rows_are_pairs_and_none_is_its_own():
    """Of more equal rows than neighbours, a row need not be among its own nearest."""
    mined = mine(np.ones((9, 3)), k=2, retrieval="all")
    assert (mined.source < mined.target).all()
    assert len(mined) > 9
    for k in (0, 3):
        with pytest.raises(InputError, match=f"k is {k}; .*2"):
            mine(np.eye(3), k=k)
    with pytest.raises(InputError, match=r"k is 1, .*0"):
        mine(np.eye(1), k=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "k is 4; .*3"),
        ({"k": 2, "retrieval": "best"}, "retrieval 'best'"),
    ],
)
def test_what_cannot_be_mined(options, message):
    with pytest.raises(InputError, match=message):
        mine(np.eye(5), np.eye(5)[:3], **options)


@pytest.mark.parametrize(
    ("n", "m", "count"), [(7, 5, 35), (40, 30, 25), (1, 1, 1), (1100, 90, 200), (1100, 2, 2100)]
)
def test_csls_pairs_are_the_best_of_all(n, m, count):
    rng = np.random.default_rng(n)
    queries, candidates = (rng.standard_normal((size, 6)).astype(np.float32) for size in (n, m))
    k = min(10, n, m)
    cosines = (queries @ candidates.T) / np.outer(
        *(np.linalg.norm(side, axis=1) for side in (queries, candidates))
    )
    to_candidates = np.sort(cosines, axis=1)[:, -k:].mean(axis=1)
    to_queries = np.sort(cosines, axis=0)[-k:].mean(axis=0)
    scores = 2 * cosines - to_candidates[:, None] - to_queries
    expected = np.sort(scores, axis=None)[::-1][:count]
    found, rows, columns = csls_pairs(queries, candidates, count, k)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(scores[rows, columns], found, atol=1e-5)
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == count
