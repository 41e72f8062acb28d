"""Groups of near pairs, and batches of such groups."""

import itertools

import numpy as np
import pytest
from pair_batches import batches_of, corpus, dataset

from fairseq_lxsr.training.lightweight import near
from fairseq_lxsr.training.lightweight.near import NearPairs, whole_numbers
from fairseq_lxsr.training.lightweight.parts.teacher import TeacherEmbeddings

NUM_ROWS = 1200
WIDTH = 16
# 40 topics have 30 rows each, in random order.
TOPICS = np.random.default_rng(1).permutation(np.repeat(np.arange(40), 30))


def embeddings() -> np.ndarray:
    """Rows near the direction of their topic."""
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((40, WIDTH))
    noise = 0.05 * rng.standard_normal((NUM_ROWS, WIDTH))
    return (directions[TOPICS] + noise).astype(np.float32)


def near_pairs(size=10, rows=None) -> NearPairs:
    if rows is None:
        rows = embeddings()
    return NearPairs(TeacherEmbeddings(rows, 3 * rows), len(rows), size, seed=1)


@pytest.fixture
def small_cells(monkeypatch):
    monkeypatch.setattr(near, "CELL", 60)
    monkeypatch.setattr(near, "LARGEST_CELL", 200)
    monkeypatch.setattr(near, "NUMBERS_AT_ONCE", 500)


def flat(groups):
    return list(itertools.chain(*groups))


@pytest.mark.usefixtures("small_cells")
def test_every_pair_is_in_one_group_with_pairs_of_its_topic():
    groups = near_pairs().groups(np.random.default_rng(2).permutation(NUM_ROWS))
    assert sorted(flat(groups)) == list(range(NUM_ROWS))
    assert max(len(group) for group in groups) == 10
    # Pairs at the border of a cell may be in a group of another topic.
    num_with_one_topic = sum(len(set(TOPICS[group])) == 1 for group in groups)
    assert num_with_one_topic / len(groups) > 0.8


@pytest.mark.usefixtures("small_cells")
def test_a_group_is_a_pair_and_its_nearest_remaining_pairs_of_the_cell():
    pairs = near_pairs(size=4)
    vectors = pairs.vectors.astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = np.random.default_rng(3).permutation(NUM_ROWS)
    groups = {group[0]: group for group in pairs.groups(rows)}
    remaining = rows.tolist()
    for first in rows.tolist():
        if first not in remaining:
            continue
        group = groups[first]
        cosines = vectors @ vectors[first]
        candidates = []
        for row in remaining:
            if row != first and pairs.cells[row] == pairs.cells[first]:
                candidates.append(row)
        nearest = sorted(candidates, key=lambda row, cosines=cosines: -cosines[row])[:3]
        np.testing.assert_allclose(sorted(cosines[group[1:]]), sorted(cosines[nearest]))
        for row in group:
            remaining.remove(row)
    assert not remaining


@pytest.mark.usefixtures("small_cells")
def test_cells_depend_on_the_seed():
    vectors = TeacherEmbeddings(embeddings(), None)
    cells = NearPairs(vectors, NUM_ROWS, 10, seed=1).cells
    np.testing.assert_array_equal(NearPairs(vectors, NUM_ROWS, 10, seed=1).cells, cells)
    assert (NearPairs(vectors, NUM_ROWS, 10, seed=2).cells != cells).any()


@pytest.mark.usefixtures("small_cells")
def test_groups_do_not_depend_on_the_order_of_sums():
    """Another order of the dimensions stands for another machine."""
    rows = np.random.default_rng(2).permutation(NUM_ROWS)
    dimensions = np.random.default_rng(4).permutation(WIDTH)
    expected = near_pairs(rows=embeddings()).groups(rows)
    groups = near_pairs(rows=embeddings()[:, dimensions]).groups(rows)
    for group, expected_group in zip(groups, expected, strict=True):
        np.testing.assert_array_equal(group, expected_group)


def test_products_of_the_widest_embeddings_are_exact_in_float32():
    for width in (256, 1024, 4096):
        vectors = whole_numbers(np.ones((1, width)), np.ones((1, width))).astype(np.int64)
        assert (vectors @ vectors.T).max() <= 2**24


def test_both_sides_count_equally_whatever_their_lengths():
    # The second pair has a side without a direction.
    source = np.array([[2.0, 0.0], [0.0, 0.0]])
    target = np.array([[0.0, 5.0], [0.0, -1.0]])
    # The directions are added up, and the largest value becomes 127.
    assert whole_numbers(source, target).tolist() == [[127, 127], [0, -127]]


@pytest.mark.usefixtures("small_cells")
@pytest.mark.parametrize("value", [1, 0])
def test_equal_embeddings_are_spread_over_cells(value):
    pairs = near_pairs(rows=np.full((900, 4), value, np.float32))
    assert np.bincount(pairs.cells).max() <= 200
    assert sorted(flat(pairs.groups(np.arange(900)))) == list(range(900))


@pytest.fixture
def grouped_data():
    """A corpus of nine pairs, and one of 1,200 pairs of 40 topics, both in groups of ten."""
    small = NearPairs(TeacherEmbeddings(embeddings()[:9], None), 9, 10, seed=1)
    corpora = corpus("en-fr", 9), corpus("en-de", NUM_ROWS, seed=1)
    return dataset(*corpora, near=[small, near_pairs()])


def test_batches_have_few_topics_and_similar_lengths(grouped_data):
    batches = batches_of(grouped_data, max_sentences=60)
    assert sorted(flat(batches)) == list(range(9 + NUM_ROWS))
    nums_topics = []
    mean_lengths = []
    for batch in batches:
        # Batches of the second corpus.
        if min(batch) >= 9:
            nums_topics.append(len({TOPICS[index - 9] for index in batch}))
            mean_lengths.append(grouped_data.lengths[batch].max(axis=1).mean())
    # 60 random pairs would have 31 topics.
    assert np.mean(nums_topics) < 12
    assert mean_lengths == sorted(mean_lengths)


def test_batches_of_groups_depend_only_on_the_epoch(grouped_data):
    first_epoch = batches_of(grouped_data, max_sentences=60)
    assert batches_of(grouped_data, max_sentences=60) == first_epoch
    grouped_data.set_epoch(2)
    assert batches_of(grouped_data, max_sentences=60) != first_epoch


def test_of_equal_values_the_first_are_the_largest():
    rng = np.random.default_rng(5)
    for count in range(1, 12):
        values = rng.integers(4, size=10).astype(np.float32)
        expected = np.sort(np.argsort(-values, kind="stable")[:count])
        np.testing.assert_array_equal(near.places_of_largest(values, count), expected)


def data_with_repeated_pairs(near, drop_last):
    """A corpus whose small source is drawn several times in an epoch."""
    text = corpus("en-fr", NUM_ROWS, sources={"large": 1100, "small": 100})
    return dataset(text, near=near, source_temperature=5.0, drop_last=drop_last)


@pytest.mark.parametrize(
    ("limits", "drop_last"),
    [({"max_sentences": 60}, True), ({"max_sentences": 60, "max_tokens": 300}, False)],
    ids=["pairs", "tokens"],
)
def test_a_batch_of_groups_has_no_pair_twice(limits, drop_last):
    grouped = data_with_repeated_pairs([near_pairs()], drop_last)
    for batch in batches_of(grouped, **limits):
        pairs = {index % NUM_ROWS for index in batch}
        assert len(pairs) == len(batch)


@pytest.mark.parametrize("drop_last", [True, False])
def test_groups_do_not_change_which_pairs_are_drawn(drop_last):
    grouped = data_with_repeated_pairs([near_pairs()], drop_last)
    plain = data_with_repeated_pairs((), drop_last)
    assert sorted(grouped.ordered_indices()) == sorted(plain.ordered_indices())
    # Indices beyond the number of pairs are repetitions.
    assert max(grouped.ordered_indices()) > NUM_ROWS
