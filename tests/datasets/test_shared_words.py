"""Batches of pairs that share a word."""

import itertools

import numpy as np
from test_pairs import EOS, MASK, batches_of, corpus, dataset

from fairseq_lxsr.datasets.shared_words import order_by_shared_word, rare_pieces


def test_the_rarest_pieces_of_each_sentence():
    counts = np.array([0, 0, 0, 9, 5, 7, 1])
    sentences = [np.array([3, 4, 5, 6]), np.array([5]), np.array([], dtype=int), np.array([3, 3, 5])]
    assert rare_pieces(sentences, counts).tolist() == [[6, 4], [5, 5], [0, 0], [5, 3]]


def test_pairs_of_one_word_and_similar_length_are_neighbours():
    rng = np.random.default_rng(0)
    lengths, rare = rng.integers(1, 40, 500), rng.integers(0, 20, (500, 3))
    indices = rng.permutation(500)[:400]
    ordered = order_by_shared_word(indices, lengths, rare, 1, 1)
    assert sorted(ordered) == sorted(indices)
    width = np.ceil(np.log2(lengths[ordered]))
    assert (np.diff(width) >= 0).all()
    neighbours = [len(set(rare[a]) & set(rare[b])) > 0 for a, b in itertools.pairwise(ordered)]
    assert np.mean(neighbours) > 0.7  # by chance 0.4
    assert not np.array_equal(ordered, order_by_shared_word(indices, lengths, rare, 1, 2))


def test_batches_of_the_dataset():
    counts = np.arange(MASK + 1)[::-1]
    options = {"piece_counts": counts, "masking": "none"}
    data, again = (dataset(corpus("en-fr", 200), corpus("en-de", 90, seed=1), **options) for _ in range(2))
    batches = batches_of(data, max_sentences=16)
    assert sorted(index for batch in batches for index in batch) == list(range(290))
    assert all(len({index < 200 for index in batch}) == 1 for batch in batches)
    assert batches == batches_of(again, max_sentences=16)
    for index in (0, 150, 250):
        pair = data[index]
        rarest = [max(pair[side]) for side in ("source", "target")]  # counts fall with the id
        assert [data.rare[index][0], data.rare[index][2]] == rarest
        assert EOS not in data.rare[index]
