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
        ([900, 90, 10], 1, None, [900, 90, 10]),
        # The shares of 82 are 9 to 1.
        ([81, 1], 2, None, [74, 8]),
        ([500, 0, 500], 5, None, [500, 0, 500]),
        ([10, 10, 10], 0.001, None, [10, 10, 10]),
        ([10, 9, 0], 0.001, None, [19, 0, 0]),
        ([81, 1], 2, 820, [738, 82]),
        ([0, 0], 2, 0, [0, 0]),
    ],
)
def test_a_higher_temperature_draws_more_of_smaller_corpora(sizes, temperature, total, expected):
    assert samples_per_corpus(sizes, temperature, total=total).tolist() == expected


def test_rounds_of_one_source_have_all_indices_before_one_is_repeated():
    first, second, last = rounds([np.arange(10)], [25], np.random.default_rng(0))
    assert sorted(first) == sorted(second) == list(range(10))
    assert len(last) == 5
    # A run that is resumed must draw the same permutations.
    rng = np.random.default_rng(0)
    assert first.tolist() == rng.permutation(10).tolist()
    assert second.tolist() == rng.permutation(10).tolist()
    assert last.tolist() == rng.permutation(10)[:5].tolist()
    assert rounds([np.arange(0)], [0], np.random.default_rng(0)) == []


def test_rounds_have_equal_mixtures_and_no_index_twice():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(0, 60, 5) + np.array([1, 0, 0, 200, 0])
        counts = samples_per_corpus(sizes.tolist(), rng.choice([1.5, 5, np.inf]))
        sources = np.split(np.arange(sizes.sum()), sizes.cumsum()[:-1])
        all_rounds = rounds(sources, counts, rng)
        largest_ratio = np.max(counts[sizes > 0] / sizes[sizes > 0])
        assert len(all_rounds) == np.ceil(largest_ratio)
        for indices in all_rounds:
            assert len(indices) == len(set(indices.tolist()))
        frequencies = np.bincount(np.concatenate(all_rounds), minlength=sizes.sum())
        for source, count in zip(sources, counts, strict=True):
            assert frequencies[source].sum() == count
            if len(source):
                assert np.ptp(frequencies[source]) <= 1
                shares = [np.isin(indices, source).sum() for indices in all_rounds[:-1]]
                # The last round may be shorter.
                if shares:
                    assert max(shares) - min(shares) <= 1


def test_the_order_is_by_the_longer_side_and_then_by_the_source():
    source = np.array([3, 1, 5, 3, 1])
    target = np.array([4, 5, 5, 4, 2])
    # Pairs of equal lengths keep their order.
    order = sort_by_length(np.array([3, 4, 0, 2, 1]), source, target)
    assert order.tolist() == [4, 3, 0, 1, 2]


@pytest.mark.parametrize(
    ("lengths", "pairs", "tokens", "expected"),
    [
        ([1] * 10, 3, None, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
        # A third pair would make the second batch 3 x 4 tokens. The last pair exceeds the limit.
        ([1, 2, 2, 3, 4, 9], None, 8, [[0, 1, 2], [3, 4], [5]]),
        ([1, 1, 1, 4, 4], 2, 8, [[0, 1], [2, 3], [4]]),
        ([], 3, None, []),
        ([], None, 100, []),
    ],
)
def test_batches_have_an_exact_number_of_pairs_or_padded_tokens(lengths, pairs, tokens, expected):
    batches = cut_into_batches(np.arange(len(lengths)), np.array(lengths, dtype=int), pairs, tokens)
    assert [batch.tolist() for batch in batches] == expected
