"""Mining against a slow reference written from the definition, and on a matrix by hand."""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.vectors import MinedPairs, csls_pairs, mine, mine_neighbours, one_to_one


def all_cosines(source, target):
    source_units = source / np.linalg.norm(source, axis=1, keepdims=True)
    target_units = target / np.linalg.norm(target, axis=1, keepdims=True)
    return source_units @ target_units.T


def slow_mine(source, target, k, retrieval):
    """Ratio margin mining from the definition, with loops: pairs and scores, best first."""
    cosines = all_cosines(source, target)
    targets_of = np.argsort(-cosines, axis=1)[:, :k].tolist()
    sources_of = np.argsort(-cosines.T, axis=1)[:, :k].tolist()

    def ratio(pair):
        i, j = pair
        source_mean = cosines[i, targets_of[i]].mean()
        target_mean = cosines[sources_of[j], j].mean()
        return cosines[pair] / ((source_mean + target_mean) / 2)

    forward = set()
    backward = set()
    all_pairs = set()
    for i, targets in enumerate(targets_of):
        pairs = [(i, j) for j in targets]
        forward.add(max(pairs, key=ratio))
        all_pairs.update(pairs)
    for j, sources in enumerate(sources_of):
        pairs = [(i, j) for i in sources]
        backward.add(max(pairs, key=ratio))
        all_pairs.update(pairs)
    pairs_by_retrieval = {
        "fwd": forward,
        "bwd": backward,
        "intersect": forward & backward,
        "max": forward | backward,
        "all": all_pairs,
    }
    pairs = sorted(pairs_by_retrieval[retrieval], key=ratio, reverse=True)
    if retrieval == "max":
        pairs = with_each_row_once(pairs)
    return pairs, [ratio(pair) for pair in pairs]


def with_each_row_once(pairs):
    """The pairs without those that have the source or target of an earlier one."""
    sources = set()
    targets = set()
    remaining = []
    for source, target in pairs:
        if source not in sources and target not in targets:
            remaining.append((source, target))
            sources.add(source)
            targets.add(target)
    return remaining


def pairs_of(mined):
    return list(zip(mined.source.tolist(), mined.target.tolist(), strict=True))


@pytest.mark.parametrize("retrieval", ["max", "intersect", "fwd", "bwd", "all"])
def test_mined_pairs_are_those_of_the_slow_reference(retrieval):
    for num_sources, num_targets, k in ((30, 45, 4), (50, 20, 3), (5, 3, 2)):
        rng = np.random.default_rng(num_sources)
        source = rng.standard_normal((num_sources, 5)) + 1
        target = rng.standard_normal((num_targets, 5)) + 1
        # About half of the targets are near a source.
        num_near = min(num_sources, num_targets // 2)
        target[:num_near] = source[:num_near]
        target += 0.3 * rng.standard_normal((num_targets, 5))
        expected, scores = slow_mine(source, target, k, retrieval)
        mined = mine(source, target, k, retrieval=retrieval)
        assert pairs_of(mined) == expected
        np.testing.assert_allclose(mined.scores, scores, rtol=1e-5)


# The cosines and ids of the two nearest of two source and three target sentences.
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
def test_pairs_of_each_retrieval_are_those_chosen_by_hand(retrieval, pairs):
    mined = mine_neighbours(*FORWARD, *BACKWARD, margin="absolute", retrieval=retrieval)
    assert pairs_of(mined) == pairs
    assert (np.diff(mined.scores) <= 0).all()


def test_of_pairs_with_equal_scores_the_first_is_chosen():
    scores = np.float32([0.9, 0.9, 0.8, 0.7])
    pairs = MinedPairs(scores, np.array([0, 0, 1, 1]), np.array([1, 2, 1, 2]))
    assert pairs_of(one_to_one(pairs)) == [(0, 1), (1, 2)]


def test_pairs_at_the_threshold_are_above_it():
    pairs = MinedPairs(np.float32([1.2, 1.1, 1.1, 0.9]), np.arange(4), np.arange(4))
    assert len(pairs.above(1.1)) == 3
    assert len(pairs.above(2)) == 0
    assert pairs.first(2).source.tolist() == [0, 1]


def test_each_of_two_equal_rows_is_in_one_pair():
    rows = np.random.default_rng(1).standard_normal((20, 8))
    rows_twice = np.concatenate([rows, rows])
    mined = mine(rows_twice, rows_twice)
    assert sorted(mined.source.tolist()) == sorted(mined.target.tolist())
    assert len(set(mined.source.tolist())) == len(mined)
    assert ((mined.source - mined.target) % 20 == 0).all()


def slow_mine_within(rows, k, retrieval):
    """As `slow_mine`, but within one set, of which a row is no neighbour of itself."""
    cosines = all_cosines(rows, rows)
    to_others = cosines - 3 * np.eye(len(rows))
    neighbours_of = np.argsort(-to_others, axis=1)[:, :k].tolist()

    def ratio(pair):
        i, j = pair
        first_mean = cosines[i, neighbours_of[i]].mean()
        second_mean = cosines[j, neighbours_of[j]].mean()
        return cosines[pair] / ((first_mean + second_mean) / 2)

    best = {}
    all_pairs = set()
    for i, neighbours in enumerate(neighbours_of):
        best[i] = max(neighbours, key=lambda j, i=i: ratio((i, j)))
        all_pairs.update((min(i, j), max(i, j)) for j in neighbours)
    best_pairs = {(min(pair), max(pair)) for pair in best.items()}
    if retrieval == "all":
        pairs = all_pairs
    elif retrieval == "intersect":
        pairs = {(i, j) for i, j in best_pairs if best[i] == j and best[j] == i}
    else:
        pairs = best_pairs
    ordered = sorted(pairs, key=ratio, reverse=True)
    if retrieval == "max":
        used = set()
        remaining = []
        for pair in ordered:
            if used.isdisjoint(pair):
                remaining.append(pair)
                used.update(pair)
        ordered = remaining
    return ordered, [ratio(pair) for pair in ordered]


@pytest.mark.parametrize("retrieval", ["max", "intersect", "fwd", "bwd", "all"])
def test_pairs_within_one_set_are_those_of_the_slow_reference(retrieval):
    for num_rows, k in ((40, 4), (33, 2), (3, 2)):
        rng = np.random.default_rng(num_rows)
        rows = rng.standard_normal((num_rows, 6)) + 1
        num_near = num_rows - num_rows // 2
        rows[-num_near:] = rows[:num_near] + 0.3 * rng.standard_normal((num_near, 6))
        expected, scores = slow_mine_within(rows, k, retrieval)
        mined = mine(rows, k=k, retrieval=retrieval)
        assert pairs_of(mined) == expected
        np.testing.assert_allclose(mined.scores, scores, rtol=1e-5)
        assert (mined.source < mined.target).all()


def test_no_row_is_in_a_pair_with_itself_even_if_all_are_equal():
    """A row need not be among its own nearest if there are more equal rows than neighbours."""
    mined = mine(np.ones((9, 3)), k=2, retrieval="all")
    assert (mined.source < mined.target).all()
    # Each row is in a pair: neighbours that are the row itself were replaced by others.
    assert set(mined.source.tolist() + mined.target.tolist()) == set(range(9))


def test_too_many_neighbours_and_an_unknown_retrieval_are_refused():
    with pytest.raises(InputError, match=r"k is 4; .*3"):
        mine(np.eye(5), np.eye(5)[:3])
    with pytest.raises(InputError, match="retrieval 'best'"):
        mine(np.eye(5), np.eye(5)[:3], k=2, retrieval="best")
    # Within one set, a row is no neighbour of itself.
    for k in (0, 3):
        with pytest.raises(InputError, match=f"k is {k}; .*2"):
            mine(np.eye(3), k=k)
    with pytest.raises(InputError, match=r"k is 1, .*0"):
        mine(np.eye(1), k=1)


def test_csls_pairs_are_the_best_of_the_whole_matrix():
    for num_queries, num_candidates, count in (
        (7, 5, 35),
        (40, 30, 25),
        (1, 1, 1),
        (1100, 90, 200),
        (1100, 2, 2100),
    ):
        rng = np.random.default_rng(num_queries)
        queries = rng.standard_normal((num_queries, 6)).astype(np.float32)
        candidates = rng.standard_normal((num_candidates, 6)).astype(np.float32)
        k = min(10, num_queries, num_candidates)
        cosines = all_cosines(queries, candidates)
        query_means = np.sort(cosines, axis=1)[:, -k:].mean(axis=1)
        candidate_means = np.sort(cosines, axis=0)[-k:].mean(axis=0)
        all_scores = 2 * cosines - query_means[:, None] - candidate_means
        expected = np.sort(all_scores, axis=None)[::-1][:count]
        scores, rows, columns = csls_pairs(queries, candidates, count, k)
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        np.testing.assert_allclose(all_scores[rows, columns], scores, atol=1e-5)
        assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == count
