"""How many pairs are drawn from each corpus, and how they are ordered and cut into batches."""

import numpy as np
import pytest

from fairseq_lxsr.training.dataset import (
    cut_into_batches,
    rounds,
    samples_per_corpus,
    sort_by_length,
)


@pytest.mark.parametrize(
    ("sizes", "temperature", "total", "expected"),
    [
        # 1 keeps the sizes.
        ([900, 90, 10], 1, None, [900, 90, 10]),
        # The shares are as sqrt(81) to sqrt(1), 9 to 1; by default of 82.
        ([81, 1], 2, None, [74, 8]),
        ([81, 1], 2, 820, [738, 82]),
        # Empty corpora have no share.
        ([500, 0, 500], 5, None, [500, 0, 500]),
        ([0, 0], 2, 0, [0, 0]),
        # Near zero, the largest has all, and equal ones share.
        ([10, 10, 10], 0.001, None, [10, 10, 10]),
        ([10, 9, 0], 0.001, None, [19, 0, 0]),
    ],
)
def test_a_higher_temperature_draws_more_of_smaller_corpora(sizes, temperature, total, expected):
    assert samples_per_corpus(sizes, temperature, total=total).tolist() == expected


def test_rounds_of_one_source_have_all_indices_before_one_is_repeated():
    first, second, last = rounds([np.arange(10)], [25], np.random.default_rng(0))
    assert sorted(first) == list(range(10))
    assert sorted(second) == list(range(10))
    assert len(last) == 5


def test_rounds_of_one_source_are_permutations_of_the_generator():
    """A run that is resumed by a newer version must draw the same."""
    all_rounds = rounds([np.arange(10)], [25], np.random.default_rng(0))
    rng = np.random.default_rng(0)
    expected = [rng.permutation(10), rng.permutation(10), rng.permutation(10)[:5]]
    for indices, expected_indices in zip(all_rounds, expected, strict=True):
        assert indices.tolist() == expected_indices.tolist()


def test_an_empty_source_has_no_rounds():
    assert rounds([np.arange(0)], [0], np.random.default_rng(0)) == []


@pytest.mark.parametrize("seed", range(20))
def test_rounds_have_equal_mixtures_and_no_index_twice(seed):
    rng = np.random.default_rng(seed)
    # Five sources, of which some may be empty, and one is large.
    sizes = rng.integers(0, 60, 5) + np.array([1, 0, 0, 200, 0])
    counts = samples_per_corpus(sizes.tolist(), rng.choice([1.5, 5, np.inf]))
    sources = np.split(np.arange(sizes.sum()), sizes.cumsum()[:-1])

    all_rounds = rounds(sources, counts, rng)

    # As many as passes over the source that is repeated most often.
    largest_number_of_passes = np.max(counts[sizes > 0] / sizes[sizes > 0])
    assert len(all_rounds) == np.ceil(largest_number_of_passes)
    for indices in all_rounds:
        assert len(indices) == len(set(indices.tolist()))
    # How often each index is drawn.
    frequencies = np.bincount(np.concatenate(all_rounds), minlength=sizes.sum())
    for source, count in zip(sources, counts, strict=True):
        assert frequencies[source].sum() == count
        if len(source):
            assert np.ptp(frequencies[source]) <= 1
            # The last round may be shorter.
            pairs_of_source = [np.isin(indices, source).sum() for indices in all_rounds[:-1]]
            if pairs_of_source:
                assert max(pairs_of_source) - min(pairs_of_source) <= 1


def test_the_order_is_by_the_longer_side_then_the_source_then_the_given_order():
    # The lengths of pairs 0 to 4; pairs 0 and 3 are alike.
    source = np.array([3, 1, 5, 3, 1])
    target = np.array([4, 5, 5, 4, 2])

    order = sort_by_length(np.array([3, 4, 0, 2, 1]), source, target)

    # The longer sides have 2, 4, 4, 5 and 5 pieces; the source of 1 is shorter than that of 2.
    assert order.tolist() == [4, 3, 0, 1, 2]


@pytest.mark.parametrize(
    ("lengths", "max_pairs", "max_tokens", "expected"),
    [
        ([1] * 10, 3, None, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
        # A third pair would make the second batch 3 x 4 tokens. The last pair exceeds the limit.
        ([1, 2, 2, 3, 4, 9], None, 8, [[0, 1, 2], [3, 4], [5]]),
        # Both limits: the first batch is full of pairs, the second of 2 x 4 tokens.
        ([1, 1, 1, 4, 4], 2, 8, [[0, 1], [2, 3], [4]]),
        ([], 3, None, []),
        ([], None, 100, []),
    ],
    ids=["pairs", "tokens", "both", "empty pairs", "empty tokens"],
)
def test_batches_have_as_many_pairs_as_the_limits_of_pairs_and_padded_tokens_allow(
    lengths, max_pairs, max_tokens, expected
):
    indices = np.arange(len(lengths))
    batches = cut_into_batches(indices, np.array(lengths, dtype=int), max_pairs, max_tokens)
    assert [batch.tolist() for batch in batches] == expected
