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


def test_a_batch_worked_out_by_hand():
    sides = ([[5, 6, EOS], [7, EOS]], [[8, EOS], [9, 10, 11, EOS]])
    lists = [
        ListDataset([torch.tensor(row) for row in side], np.array([len(row) for row in side]))
        for side in sides
    ]
    data = dataset(PairCorpus("en-fr", *lists), languages=[1], max_positions=2)
    batch = data.collater([data[0], data[1]])
    assert batch["net_input"]["src_tokens"].tolist() == [[5, 6], [7, PAD]]
    assert batch["net_input"]["target_language"].tolist() == [1, 1]
    assert batch["net_input"]["prev_output_tokens"].tolist() == [[EOS, 8, PAD], [EOS, 9, 10]]
    assert batch["target"].tolist() == [[8, EOS, PAD], [9, 10, EOS]]  # cut at two pieces
    assert batch["target_tokens"].tolist() == [[8, PAD], [9, 10]]
    assert batch["target_positions"].tolist() == [0, 1, 3, 4, 5]
    assert (batch["ntokens"], batch["nsentences"], batch["id"].tolist()) == (5, 2, [0, 1])
    assert data.collater([]) == {}


def test_a_target_may_begin_with_symbols_that_the_decoder_predicts():
    data = dataset(corpus("en-fr", 3), languages=[0], target_start=[0])
    plain, batch = (
        each.collater([each[0], each[1]]) for each in (dataset(corpus("en-fr", 3)), data)
    )
    assert (batch["target"][:, 0] == 0).all()
    assert torch.equal(batch["target"][:, 1:], plain["target"])
    assert (batch["net_input"]["prev_output_tokens"][:, :2] == torch.tensor([EOS, 0])).all()
    assert torch.equal(
        batch["net_input"]["prev_output_tokens"][:, 2:],
        plain["net_input"]["prev_output_tokens"][:, 1:],
    )
    assert torch.equal(batch["target_tokens"], plain["target_tokens"])
    assert batch["ntokens"] == plain["ntokens"] + 2
    assert data.num_tokens(0) == dataset(corpus("en-fr", 3)).num_tokens(0) + 1


def test_every_batch_is_of_one_direction_and_of_at_most_so_many_tokens():
    data = dataset(corpus("en-fr", 50), corpus("fr-en", 30, seed=1))
    batches = data.batch_by_size(data.ordered_indices(), max_tokens=40)
    assert sorted(np.concatenate(batches)) == list(range(80))
    for indices in batches:
        assert len({index < 50 for index in indices}) == 1
        batch = data.collater([data[index] for index in indices])
        assert set(batch["net_input"]["target_language"].tolist()) == {0 if indices[0] < 50 else 1}
        assert batch["target"].numel() <= 40


@pytest.mark.parametrize(("temperature", "first"), [(float("inf"), 40), (1.0, 60)])
def test_directions_are_drawn_evenly_or_by_size(temperature, first):
    data = dataset(corpus("en-fr", 60), corpus("fr-en", 20, seed=1), temperature=temperature)
    indices = data.ordered_indices()
    assert len(indices) == 80
    assert (indices % 80 < 60).sum() == first
