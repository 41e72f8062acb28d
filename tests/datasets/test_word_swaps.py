"""Negatives with two words exchanged."""

import numpy as np
import pytest
import torch
from test_pairs import EOS, MASK, PAD, corpus, dataset

from fairseq_lxsr.datasets.masked_pairs import SentencePairDataset
from fairseq_lxsr.datasets.word_swaps import swap_negatives, swap_words


@pytest.mark.parametrize(
    ("draws", "expected"),
    [((0.0, 0.0), [12, 10, 11, 13, 14]), ((0.0, 0.99), [13, 14, 12, 10, 11]), ((0.99, 0.0), [13, 14, 12, 10, 11])],
)
def test_two_words_change_places(draws, expected):
    ids = np.array([10, 11, 12, 13, 14])  # words: 10 11, 12, 13 14
    assert swap_words(ids, np.array([0, 2, 3]), draws).tolist() == expected


def test_equal_words_or_one_give_nothing():
    assert len(swap_words(np.array([5, 5]), np.array([0, 1]), (0.0, 0.0))) == 0
    assert len(swap_words(np.array([5, 6]), np.array([0]), (0.0, 0.0))) == 0
    assert len(swap_words(np.array([5, 6]), np.array([], dtype=int), (0.0, 0.0))) == 0


def test_a_row_is_a_changed_side_of_its_pair_whatever_the_batch():
    starts_word = np.arange(MASK + 1) % 2 == 0
    data = dataset(corpus("en-fr", 60))
    samples = [data[index] for index in range(60)]
    tokens, of = swap_negatives(samples, starts_word, seed=1, epoch=2, padding_idx=PAD)
    assert 10 < of[:, 0].sum() < 50
    assert 10 < of[:, 1].sum() < 50
    assert not of.all(axis=1).any()
    for sample, row, (of_source, of_target) in zip(samples, tokens, of, strict=True):
        row = row[row != PAD]
        if of_source or of_target:
            side = sample["target" if of_source else "source"]
            assert sorted(row) == sorted(side)
            assert row.tolist() != side.tolist()
        else:
            assert len(row) == 0
    alone, of_alone = swap_negatives(samples[7:8], starts_word, seed=1, epoch=2, padding_idx=PAD)
    assert alone[0].tolist() == tokens[7, : alone.shape[1]].tolist()
    assert of_alone[0].tolist() == of[7].tolist()
    other, _ = swap_negatives(samples, starts_word, seed=1, epoch=3, padding_idx=PAD)
    assert not np.array_equal(other, tokens)


def test_batches_have_them_on_request():
    data = dataset(corpus("en-fr", 8), starts_word=np.ones(MASK + 1, dtype=bool))
    assert isinstance(data, SentencePairDataset)
    batch = data.collater([data[index] for index in range(8)])
    assert batch["net_input"]["negative"].shape[0] == 8
    assert batch["negative_of"].dtype == torch.bool
    assert EOS not in batch["net_input"]["negative"]
    assert "negative_of" not in dataset(corpus("en-fr", 8)).collater([data[0]])
