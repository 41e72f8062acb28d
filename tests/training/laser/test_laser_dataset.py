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
    french = 1
    data = dataset(PairCorpus("en-fr", source, target), languages=[french], max_positions=2)

    batch = data.collater([data[0], data[1]])

    assert batch["id"].tolist() == [0, 1]
    assert batch["nsentences"] == 2
    assert batch["net_input"]["src_tokens"].tolist() == [[5, 6], [7, PAD]]
    assert batch["net_input"]["target_language"].tolist() == [french, french]
    # The second target is cut to two pieces. The decoder reads each piece after EOS or its
    # predecessor, and predicts EOS at the end.
    assert batch["net_input"]["prev_output_tokens"].tolist() == [[EOS, 8, PAD], [EOS, 9, 10]]
    assert batch["target"].tolist() == [[8, EOS, PAD], [9, 10, EOS]]
    # The encoder reads the target without EOS.
    assert batch["target_tokens"].tolist() == [[8, PAD], [9, 10]]
    # The places in `target`, flattened, that are not padding.
    assert batch["target_positions"].tolist() == [0, 1, 3, 4, 5]
    assert batch["ntokens"] == 5


def test_a_batch_without_samples_is_empty():
    assert dataset(corpus("en-fr", 3), languages=[0]).collater([]) == {}


def test_a_target_may_begin_with_symbols_that_the_decoder_predicts():
    bos = 0
    plain_data = dataset(corpus("en-fr", 3), languages=[0])
    data = dataset(corpus("en-fr", 3), languages=[0], target_start=[bos])

    plain_batch = plain_data.collater([plain_data[0], plain_data[1]])
    batch = data.collater([data[0], data[1]])

    # The symbol is predicted first, and then read after EOS.
    assert (batch["target"][:, 0] == bos).all()
    assert torch.equal(batch["target"][:, 1:], plain_batch["target"])
    read = batch["net_input"]["prev_output_tokens"]
    plain_read = plain_batch["net_input"]["prev_output_tokens"]
    assert (read[:, :2] == torch.tensor([EOS, bos])).all()
    assert torch.equal(read[:, 2:], plain_read[:, 1:])
    # The encoder does not read it.
    assert torch.equal(batch["target_tokens"], plain_batch["target_tokens"])
    # It counts as a token of each of the two pairs.
    assert batch["ntokens"] == plain_batch["ntokens"] + 2
    assert data.num_tokens(0) == plain_data.num_tokens(0) + 1


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


@pytest.mark.parametrize(("temperature", "num_french"), [(float("inf"), 40), (1.0, 60)])
def test_a_temperature_draws_directions_evenly(temperature, num_french):
    """60 pairs are to French and 20 to English: inf draws half of the 80 of each."""
    data = dataset(corpus("en-fr", 60), corpus("fr-en", 20, seed=1), temperature=temperature)
    indices = data.ordered_indices()
    # The index of a repetition of a pair is larger by the number of all pairs.
    is_french = indices % 80 < 60
    assert len(indices) == 80
    assert is_french.sum() == num_french
