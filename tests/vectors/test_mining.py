"""Mining against a slow reference written from the definition, and on a matrix by hand."""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.vectors import MinedPairs, csls_pairs, mine, mine_neighbours, one_to_one


def all_cosines(source, target):
    """The cosines of all source rows and target columns."""
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
    """The pairs (source row, target row) in the order of mining."""
    return list(zip(mined.source.tolist(), mined.target.tolist(), strict=True))


@pytest.mark.parametrize(
    ("num_sources", "num_targets", "k"),
    [
        pytest.param(30, 45, 4, id="more targets"),
        pytest.param(50, 20, 3, id="more sources"),
        pytest.param(5, 3, 2, id="few"),
    ],
)
@pytest.mark.parametrize("retrieval", ["max", "intersect", "fwd", "bwd", "all"])
def test_mined_pairs_are_those_of_the_slow_reference(retrieval, num_sources, num_targets, k):
    rng = np.random.default_rng(num_sources)
    source = rng.standard_normal((num_sources, 5)) + 1
    target = rng.standard_normal((num_targets, 5)) + 1
    # About half of the targets are near a source.
    num_near = min(num_sources, num_targets // 2)
    target[:num_near] = source[:num_near]
    target += 0.3 * rng.standard_normal((num_targets, 5))

    mined = mine(source, target, k, retrieval=retrieval)

    expected_pairs, expected_scores = slow_mine(source, target, k, retrieval)
    assert pairs_of(mined) == expected_pairs
    np.testing.assert_allclose(mined.scores, expected_scores, rtol=1e-5)


# The cosines and ids of the two nearest of two source and three target sentences.
# The cosines of two sources (rows) and three targets (columns), and both sides' two nearest.
COSINES = np.float32([[0.9, 0.5, 0.2], [0.8, 0.1, 0.7]])
TARGETS_OF_SOURCES = np.array([[0, 1], [0, 2]])
SOURCES_OF_TARGETS = np.array([[0, 1], [0, 1], [1, 0]])
FORWARD = (np.take_along_axis(COSINES, TARGETS_OF_SOURCES, 1), TARGETS_OF_SOURCES)
BACKWARD = (np.take_along_axis(COSINES.T, SOURCES_OF_TARGETS, 1), SOURCES_OF_TARGETS)


@pytest.mark.parametrize(
    ("retrieval", "expected"),
    [
        # The best target of each source.
        ("fwd", [(0, 0), (1, 0)]),
        # The best source of each target.
        ("bwd", [(0, 0), (1, 2), (0, 1)]),
        # The pairs of both of these.
        ("intersect", [(0, 0)]),
        # The pairs of either, without those whose source or target is already in a better pair.
        ("max", [(0, 0), (1, 2)]),
        ("all", [(0, 0), (1, 0), (1, 2), (0, 1), (0, 2), (1, 1)]),
    ],
)
def test_pairs_of_each_retrieval_are_those_chosen_by_hand_best_first(retrieval, expected):
    mined = mine_neighbours(*FORWARD, *BACKWARD, margin="absolute", retrieval=retrieval)

    assert pairs_of(mined) == expected
    assert (np.diff(mined.scores) <= 0).all()


def test_of_pairs_with_equal_scores_one_to_one_selects_the_first():
    pairs = MinedPairs(
        scores=np.float32([0.9, 0.9, 0.8, 0.7]),
        source=np.array([0, 0, 1, 1]),
        target=np.array([1, 2, 1, 2]),
    )

    selected = one_to_one(pairs)

    # Both pairs of source 0 score 0.9. The first takes target 1, so source 1 is left with target 2.
    assert pairs_of(selected) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("threshold", "count"),
    # Pairs whose score equals the threshold are included.
    [(1.1, 3), (2, 0)],
)
def test_above_selects_the_pairs_that_score_at_least_the_threshold(threshold, count):
    pairs = MinedPairs(np.float32([1.2, 1.1, 1.1, 0.9]), np.arange(4), np.arange(4))

    assert len(pairs.above(threshold)) == count


def test_first_selects_the_given_number_of_pairs_from_the_beginning():
    pairs = MinedPairs(np.float32([1.2, 1.1, 1.1, 0.9]), np.arange(4), np.arange(4))

    assert pairs.first(2).source.tolist() == [0, 1]


def test_rows_that_occur_twice_on_both_sides_are_mined_with_their_copies_each_once():
    num_rows = 20
    rows = np.random.default_rng(1).standard_normal((num_rows, 8))
    # Row i is the same as row i + 20.
    rows_twice = np.concatenate([rows, rows])

    mined = mine(rows_twice, rows_twice)

    assert len(set(mined.source.tolist())) == len(mined)
    assert sorted(mined.source.tolist()) == sorted(mined.target.tolist())
    # Every pair is a row with itself or with its copy.
    assert ((mined.source - mined.target) % num_rows == 0).all()


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


@pytest.mark.parametrize(
    ("num_rows", "k"),
    [
        pytest.param(40, 4, id="even"),
        pytest.param(33, 2, id="odd"),
        # A row of three has two neighbours at most.
        pytest.param(3, 2, id="fewest"),
    ],
)
@pytest.mark.parametrize("retrieval", ["max", "intersect", "fwd", "bwd", "all"])
def test_pairs_within_one_set_are_those_of_the_slow_reference(retrieval, num_rows, k):
    rng = np.random.default_rng(num_rows)
    rows = rng.standard_normal((num_rows, 6)) + 1
    # Rows of the second half are near rows of the first.
    num_near = num_rows - num_rows // 2
    rows[-num_near:] = rows[:num_near] + 0.3 * rng.standard_normal((num_near, 6))

    mined = mine(rows, k=k, retrieval=retrieval)

    expected_pairs, expected_scores = slow_mine_within(rows, k, retrieval)
    assert pairs_of(mined) == expected_pairs
    np.testing.assert_allclose(mined.scores, expected_scores, rtol=1e-5)


def test_of_equal_rows_each_is_in_a_pair_with_another_and_none_with_itself():
    """A row need not be among its own nearest if there are more equal rows than neighbours."""
    num_rows = 9

    mined = mine(np.ones((num_rows, 3)), k=2, retrieval="all")

    # Within one set, the smaller number of a pair is its source.
    assert (mined.source < mined.target).all()
    rows_in_pairs = set(mined.source.tolist() + mined.target.tolist())
    assert rows_in_pairs == set(range(num_rows))


def test_more_neighbours_than_rows_of_the_smaller_side_are_refused():
    """The default number of neighbours is 4, and there are 3 targets."""
    with pytest.raises(InputError, match=r"k is 4; .*3"):
        mine(np.eye(5), np.eye(5)[:3])


def test_an_unknown_retrieval_is_refused():
    with pytest.raises(InputError, match="retrieval 'best'"):
        mine(np.eye(5), np.eye(5)[:3], k=2, retrieval="best")


@pytest.mark.parametrize("k", [0, 3])
def test_within_one_set_the_neighbours_are_one_to_all_other_rows(k):
    """A row is no neighbour of itself, so that a row of three has two at most."""
    with pytest.raises(InputError, match=f"k is {k}; .*2"):
        mine(np.eye(3), k=k)


def test_mining_within_a_single_row_is_refused():
    """It has 0 neighbours."""
    with pytest.raises(InputError, match=r"k is 1, .*0"):
        mine(np.eye(1), k=1)


@pytest.mark.parametrize(
    ("num_queries", "num_candidates", "count"),
    [
        pytest.param(7, 5, 7 * 5, id="all pairs"),
        pytest.param(40, 30, 25, id="some"),
        pytest.param(1, 1, 1, id="one"),
        # More queries than are compared at once.
        pytest.param(1100, 90, 200, id="blocks"),
        # Nearly all pairs of several blocks.
        pytest.param(1100, 2, 2100, id="nearly all"),
    ],
)
def test_csls_pairs_are_different_and_the_best_of_the_whole_matrix(
    num_queries, num_candidates, count
):
    """CSLS is twice the cosine minus the mean cosines of both vectors to their k nearest."""
    rng = np.random.default_rng(num_queries)
    queries = rng.standard_normal((num_queries, 6)).astype(np.float32)
    candidates = rng.standard_normal((num_candidates, 6)).astype(np.float32)
    k = min(10, num_queries, num_candidates)

    scores, rows, columns = csls_pairs(queries, candidates, count, k)

    cosines = all_cosines(queries, candidates)
    query_means = np.sort(cosines, axis=1)[:, -k:].mean(axis=1)
    candidate_means = np.sort(cosines, axis=0)[-k:].mean(axis=0)
    all_scores = 2 * cosines - query_means[:, None] - candidate_means
    largest_scores = np.sort(all_scores, axis=None)[::-1][:count]
    np.testing.assert_allclose(scores, largest_scores, atol=1e-5)
    np.testing.assert_allclose(all_scores[rows, columns], scores, atol=1e-5)
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == count
