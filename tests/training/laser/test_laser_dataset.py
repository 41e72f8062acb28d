"""Batches of translation: directions, tokens of the decoder, and their limits."""

import numpy as np
import pytest
import torch
from fairseq.data import ListDataset
from pair_batches import EOS, PAD, corpus

from fairseq_lxsr.training.laser.dataset import TranslationDataset
from fairseq_lxsr.training.pairs import PairCorpus


def dataset(*corpora, languages=(0, 1), **options):
    options = {"padding_idx": PAD, "eos_idx": EOS, "max_positions": 50} | options
    return TranslationDataset(corpora, languages, **options)


def side(*sentences):
    lengths = np.array([len(sentence) for sentence in sentences])
    return ListDataset([torch.tensor(sentence) for sentence in sentences], lengths)


def test_a_batch_has_the_tokens_written_out_by_hand():
    source = side([5, 6, EOS], [7, EOS])
    target = side([8, EOS], [9, 10, 11, EOS])
    data = dataset(PairCorpus("en-fr", source, target), languages=[1], max_positions=2)
    batch = data.collater([data[0], data[1]])
    assert batch["net_input"]["src_tokens"].tolist() == [[5, 6], [7, PAD]]
    assert batch["net_input"]["target_language"].tolist() == [1, 1]
    # The second target is cut to two pieces.
    assert batch["net_input"]["prev_output_tokens"].tolist() == [[EOS, 8, PAD], [EOS, 9, 10]]
    assert batch["target"].tolist() == [[8, EOS, PAD], [9, 10, EOS]]
    assert batch["target_tokens"].tolist() == [[8, PAD], [9, 10]]
    assert batch["target_positions"].tolist() == [0, 1, 3, 4, 5]
    assert (batch["ntokens"], batch["nsentences"], batch["id"].tolist()) == (5, 2, [0, 1])
    assert data.collater([]) == {}


def test_a_target_may_begin_with_symbols_that_the_decoder_predicts():
    plain = dataset(corpus("en-fr", 3), languages=[0])
    data = dataset(corpus("en-fr", 3), languages=[0], target_start=[0])
    expected = plain.collater([plain[0], plain[1]])
    batch = data.collater([data[0], data[1]])
    assert (batch["target"][:, 0] == 0).all()
    assert torch.equal(batch["target"][:, 1:], expected["target"])
    previous = batch["net_input"]["prev_output_tokens"]
    assert (previous[:, :2] == torch.tensor([EOS, 0])).all()
    assert torch.equal(previous[:, 2:], expected["net_input"]["prev_output_tokens"][:, 1:])
    assert torch.equal(batch["target_tokens"], expected["target_tokens"])
    assert batch["ntokens"] == expected["ntokens"] + 2
    assert data.num_tokens(0) == plain.num_tokens(0) + 1


def test_a_batch_has_one_direction_and_no_more_tokens_than_the_limit():
    data = dataset(corpus("en-fr", 50), corpus("fr-en", 30, seed=1))
    batches = data.batch_by_size(data.ordered_indices(), max_tokens=40)
    assert sorted(np.concatenate(batches)) == list(range(80))
    for indices in batches:
        batch = data.collater([data[index] for index in indices])
        languages = [int(index >= 50) for index in indices]
        assert batch["net_input"]["target_language"].tolist() == languages
        assert len(set(languages)) == 1
        assert batch["target"].numel() <= 40


@pytest.mark.parametrize(("temperature", "num_first"), [(float("inf"), 40), (1.0, 60)])
def test_a_temperature_draws_directions_evenly(temperature, num_first):
    data = dataset(corpus("en-fr", 60), corpus("fr-en", 20, seed=1), temperature=temperature)
    indices = data.ordered_indices()
    assert len(indices) == 80
    assert (indices % 80 < 60).sum() == num_first
