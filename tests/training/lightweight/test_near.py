"""Groups of near pairs, and batches of such groups."""

import itertools

import numpy as np
import pytest
from pair_batches import batches_of, corpus, dataset

from fairseq_lxsr.training.lightweight import near
from fairseq_lxsr.training.lightweight.near import NearPairs, whole_numbers
from fairseq_lxsr.training.lightweight.parts.teacher import TeacherEmbeddings

TOPICS, OF_TOPIC, WIDTH = 40, 30, 16


def embeddings(seed=0, width=WIDTH) -> np.ndarray:
    """Sentences around 40 directions, in random order; row i is of topic `topics()[i]`."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((TOPICS, width))
    return (centres[topics()] + 0.05 * rng.standard_normal((TOPICS * OF_TOPIC, width))).astype(
        np.float32
    )


def topics() -> np.ndarray:
    return np.random.default_rng(1).permutation(np.repeat(np.arange(TOPICS), OF_TOPIC))


def near_pairs(size=10, **changes) -> NearPairs:
    rows = changes.get("rows", embeddings())
    return NearPairs(TeacherEmbeddings(rows, 3 * rows), len(rows), size, seed=1)


@pytest.fixture
def small_cells(monkeypatch):
    monkeypatch.setattr(near, "CELL", 60)
    monkeypatch.setattr(near, "LARGEST_CELL", 200)
    monkeypatch.setattr(near, "NUMBERS_AT_ONCE", 500)


@pytest.mark.usefixtures("small_cells")
def test_every_pair_is_in_one_group_with_pairs_of_its_topic():
    groups = near_pairs().groups(np.random.default_rng(2).permutation(TOPICS * OF_TOPIC))
    assert sorted(itertools.chain(*groups)) == list(range(TOPICS * OF_TOPIC))
    assert max(map(len, groups)) == 10
    alike = [len(set(topics()[group])) == 1 for group in groups]
    # at random: none; pairs at the border of a cell may be left with others
    assert np.mean(alike) > 0.8


@pytest.mark.usefixtures("small_cells")
def test_a_group_is_a_pair_and_its_nearest_of_those_left():
    """The slow reference: one pair after the other, by cosines in float64."""
    found = near_pairs(size=4)
    vectors = found.vectors.astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = np.random.default_rng(3).permutation(len(vectors))
    left = dict.fromkeys(rows.tolist())
    for group in sorted(found.groups(rows), key=lambda group: rows.tolist().index(group[0])):
        here = [
            row for row in left if row != group[0] and found.cells[row] == found.cells[group[0]]
        ]
        nearest = sorted(here, key=lambda row: -vectors[row] @ vectors[group[0]])[:3]
        cosines = vectors @ vectors[group[0]]
        np.testing.assert_allclose(sorted(cosines[group[1:]]), sorted(cosines[nearest]))
        for row in group:
            del left[row]


@pytest.mark.usefixtures("small_cells")
def test_groups_do_not_depend_on_the_order_of_sums():
    """Another order of the units stands for another machine; cells are drawn by the seed."""
    vectors = embeddings()
    one, same, other = (
        NearPairs(TeacherEmbeddings(vectors, None), len(vectors), 10, seed).cells
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    rows = np.random.default_rng(2).permutation(TOPICS * OF_TOPIC)
    units = np.random.default_rng(4).permutation(WIDTH)
    both = (
        near_pairs(rows=vectors).groups(rows) for vectors in (embeddings(), embeddings()[:, units])
    )
    for first, second in zip(*both, strict=True):
        np.testing.assert_array_equal(first, second)


def test_products_of_the_widest_embeddings_are_exact():
    for width in (256, 1024, 4096):
        vectors = whole_numbers(np.ones((1, width)), np.ones((1, width))).astype(np.int64)
        assert (vectors @ vectors.T).max() <= 2**24
    both = whole_numbers(np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([[0.0, 5.0], [0.0, -1.0]]))
    assert both.tolist() == [[127, 127], [0, -127]]  # sides count alike whatever their length


@pytest.mark.usefixtures("small_cells")
@pytest.mark.parametrize("rows", [np.ones((900, 4), np.float32), np.zeros((900, 4), np.float32)])
def test_embeddings_that_are_all_alike(rows):
    found = near_pairs(rows=rows)
    assert np.bincount(found.cells).max() <= 200
    assert sorted(itertools.chain(*found.groups(np.arange(900)))) == list(range(900))


def test_batches_hold_groups_of_similar_length():
    rows = embeddings()
    first = NearPairs(TeacherEmbeddings(rows[:9], None), 9, 10, seed=1)
    text = corpus("en-fr", 9), corpus("en-de", len(rows), seed=1)
    data = dataset(*text, near=[first, near_pairs()])
    batches = batches_of(data, max_sentences=60)
    assert sorted(itertools.chain(*batches)) == list(range(9 + len(rows)))
    kinds = [len({topics()[index - 9] for index in batch}) for batch in batches if min(batch) >= 9]
    assert np.mean(kinds) < 12  # of 60 pairs drawn at random: 31
    means = [data.lengths[batch].max(axis=1).mean() for batch in batches if min(batch) >= 9]
    assert means == sorted(means)
    assert batches == batches_of(data, max_sentences=60)
    data.set_epoch(2)
    assert batches != batches_of(data, max_sentences=60)


def test_the_largest_are_the_first_of_equal_ones():
    """Whatever the processor; the slow reference sorts."""
    rng = np.random.default_rng(5)
    for count in range(1, 12):
        values = rng.integers(4, size=10).astype(np.float32)
        expected = np.sort(np.argsort(-values, kind="stable")[:count])
        np.testing.assert_array_equal(near.places_of_largest(values, count), expected)


@pytest.mark.parametrize(
    "limits", [{"max_sentences": 60}, {"max_sentences": 60, "max_tokens": 300}]
)
def test_repeated_sources_are_near_in_each_round(limits):
    """A pair is never twice in a batch, and an epoch has what it has without groups."""
    sources = {"large": 1100, "small": 100}
    text = corpus("en-fr", TOPICS * OF_TOPIC, sources=sources)
    options = {"source_temperature": 5.0, "drop_last": "max_tokens" not in limits}
    plain, grouped = (dataset(text, **options, **more) for more in ({}, {"near": [near_pairs()]}))
    batches = batches_of(grouped, **limits)
    assert all(len({index % len(grouped) for index in batch}) == len(batch) for batch in batches)
    assert sorted(grouped.ordered_indices()) == sorted(plain.ordered_indices())
    assert max(grouped.ordered_indices()) > len(grouped)  # the small source has several rounds
