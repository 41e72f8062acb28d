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
        ([81, 1], 2, None, [74, 8]),  # shares 9 : 1 of 82
        ([500, 0, 500], 5, None, [500, 0, 500]),
        ([10, 10, 10], 0.001, None, [10, 10, 10]),
        ([10, 9, 0], 0.001, None, [19, 0, 0]),
        ([81, 1], 2, 820, [738, 82]),
        ([0, 0], 2, 0, [0, 0]),
    ],
)
def test_temperature_evens_out(sizes, temperature, total, expected):
    assert samples_per_corpus(sizes, temperature, total=total).tolist() == expected


def test_impossible_temperature_is_refused():
    with pytest.raises(ValueError, match="temperature is 0"):
        samples_per_corpus([1, 2], 0)


def test_rounds_of_one_source_use_everything_before_they_repeat():
    first, second, rest = rounds([np.arange(10)], [25], np.random.default_rng(0))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first.tolist() != second.tolist()
    assert len(rest) == len(set(rest)) == 5
    rng = np.random.default_rng(0)
    # as in all versions before
    plain = [rng.permutation(10), rng.permutation(10), rng.permutation(10)[:5]]
    assert np.concatenate(plain).tolist() == np.concatenate([first, second, rest]).tolist()
    assert rounds([np.arange(0)], [0], np.random.default_rng(0)) == []


@pytest.mark.parametrize("seed", range(20))
def test_rounds_have_the_same_mixture_and_no_index_twice(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 60, 5) + np.array([1, 0, 0, 200, 0])
    counts = samples_per_corpus(sizes.tolist(), rng.choice([1.5, 5, np.inf]))
    sources = np.split(np.arange(sizes.sum()), sizes.cumsum()[:-1])
    drawn = rounds(sources, counts, rng)
    assert len(drawn) == np.ceil(
        max(count / size for count, size in zip(counts, sizes, strict=True) if size)
    )
    assert all(len(part) == len(set(part.tolist())) for part in drawn)
    times = np.bincount(np.concatenate(drawn), minlength=sizes.sum())
    for source, count in zip(sources, counts, strict=True):
        here = times[source]
        assert here.sum() == count
        assert not len(here) or here.max() - here.min() <= 1  # complete passes, then a part of one
        shares = [np.isin(part, source).sum() for part in drawn[:-1]]  # the last one may be shorter
        assert not shares or max(shares) - min(shares) <= 1


def test_order_is_by_longer_side_then_source_and_keeps_ties():
    source, target = np.array([3, 1, 5, 3, 1]), np.array([4, 5, 5, 4, 2])
    assert sort_by_length(np.array([3, 4, 0, 2, 1]), source, target).tolist() == [4, 3, 0, 1, 2]


@pytest.mark.parametrize(
    ("lengths", "pairs", "tokens", "expected"),
    [
        ([1] * 10, 3, None, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
        # 3 x 2, then 2 x 4 (a third would make 3 x 4 > 8), then 1 x 9: longer than the limit, alone
        ([1, 2, 2, 3, 4, 9], None, 8, [[0, 1, 2], [3, 4], [5]]),
        ([1, 1, 1, 4, 4], 2, 8, [[0, 1], [2, 3], [4]]),
        ([], 3, None, []),
        ([], None, 100, []),
    ],
)
def test_batches_have_an_exact_number_of_pairs_or_padded_tokens(lengths, pairs, tokens, expected):
    batches = cut_into_batches(np.arange(len(lengths)), np.array(lengths, dtype=int), pairs, tokens)
    assert [batch.tolist() for batch in batches] == expected
