"""Sentence pairs, their order and their batches."""

import itertools

import numpy as np
import pytest
import torch
from fairseq.data import ListDataset
from pair_batches import EOS, MASK, PAD, VOCABULARY, batches_of, corpus, dataset

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.training.lightweight.parts.masking import Masking
from fairseq_lxsr.training.lightweight.terms.alignment import PairNumbers
from fairseq_lxsr.training.pairs import PairCorpus
from fairseq_lxsr.training.subword_dropout import SubwordDropout


def flat(batches):
    return list(itertools.chain(*batches))


def test_sentences_have_no_eos_and_long_ones_are_cut_and_counted():
    text = corpus("en-fr", 20)
    data = dataset(text, max_positions=5)
    num_cut = 0
    for index in range(20):
        item = data[index]
        for side in (item["source"], item["target"]):
            assert EOS not in side
            assert 1 <= len(side) <= 5
        num_cut += len(text.source[index]) > 6 or len(text.target[index]) > 6
    assert data.num_cut == num_cut > 0
    assert dataset(text, max_positions=12).num_cut == 0


def test_pairs_with_an_empty_side_are_left_out_and_counted():
    data = dataset(corpus("en-fr", 20, empty=[3, 7]))
    assert data.num_empty == 2
    assert sorted(data.ordered_indices()) == [0, 1, 2, 4, 5, 6, *range(8, 20)]


def test_equal_sides_of_a_pair_are_split_differently():
    side = ListDataset([torch.tensor([4] * 40 + [EOS])], np.array([41]))
    text = PairCorpus("en-fr", side, side)
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "ab", "a", "b"]
    data = dataset(text, parts=[], subword_dropout=SubwordDropout(symbols, 4, 0.5))
    batch = data.collater([data[0]])["net_input"]
    assert batch["source"].tolist() != batch["target"].tolist()


def assert_one_language_pair(batches, num_first):
    """All pairs of a batch are of the first corpus, which has `num_first` pairs, or of another."""
    for batch in batches:
        assert len({index < num_first for index in batch}) == 1


def test_batches_have_one_language_pair_and_similar_lengths():
    data = dataset(corpus("en-fr", 100), corpus("en-de", 60, seed=1))
    batches = batches_of(data, max_sentences=16)
    assert sorted(flat(batches)) == list(range(160))
    assert sorted(len(batch) for batch in batches) == [4, 12, *[16] * 9]
    assert_one_language_pair(batches, 100)
    for batch, next_batch in itertools.pairwise(batches):
        if (batch[0] < 100) == (next_batch[0] < 100):
            assert data.lengths[batch].max() <= data.lengths[next_batch].max(axis=1).min()


def test_the_order_depends_only_on_seed_and_epoch():
    data = dataset(corpus("x-y", 50))
    with_same_seed = dataset(corpus("x-y", 50))
    with_another_seed = dataset(corpus("x-y", 50), seed=2)
    first = batches_of(data, max_sentences=8)
    assert first == batches_of(with_same_seed, max_sentences=8)
    assert first != batches_of(with_another_seed, max_sentences=8)
    data.set_epoch(2)
    assert first != batches_of(data, max_sentences=8)
    data.set_epoch(1)
    assert first == batches_of(data, max_sentences=8)


def test_shuffled_batches_have_pairs_of_any_length():
    corpora = corpus("en-fr", 100), corpus("en-de", 60, seed=1)
    data = dataset(*corpora, by_length=False)
    batches = batches_of(data, max_sentences=16)
    assert sorted(flat(batches)) == list(range(160))
    assert_one_language_pair(batches, 100)
    for batch in batches:
        if len(batch) == 16:
            # Lengths are 1 to 12.
            assert np.ptp(data.lengths[batch].max(axis=1)) >= 4
    limited = batches_of(data, max_sentences=16, max_tokens=60)
    assert sorted(flat(limited)) == list(range(160))
    for batch in limited:
        assert data.lengths[batch].max() * len(batch) <= 60
    # They depend only on the epoch.
    copy = dataset(*corpora, by_length=False)
    assert batches == batches_of(copy, max_sentences=16)
    copy.set_epoch(2)
    assert batches != batches_of(copy, max_sentences=16)


def test_batches_of_validation_are_the_same_in_every_epoch():
    data = dataset(corpus("x-y", 50), shuffle=False, by_length=True)
    first = batches_of(data, max_sentences=8)
    data.set_epoch(5)
    assert first == batches_of(data, max_sentences=8)
    in_order_of_text = dataset(corpus("x-y", 50), shuffle=False, by_length=False)
    assert flat(batches_of(in_order_of_text, max_sentences=8)) == list(range(50))


@pytest.mark.parametrize("by_length", [True, False])
def test_drop_last_drops_the_last_batch_unless_it_is_full(by_length):
    corpora = corpus("en-fr", 100), corpus("en-de", 64, seed=1)
    data = dataset(*corpora, by_length=by_length, drop_last=True)
    assert [len(batch) for batch in batches_of(data, max_sentences=16)] == [16] * 10
    limits = {"max_sentences": 16, "max_tokens": 60}
    all_batches = batches_of(dataset(*corpora, by_length=by_length), **limits)
    assert len(batches_of(data, **limits)) == len(all_batches) - 2
    with pytest.raises(InputError, match=r"164 .*--batch-size 200"):
        batches_of(data, max_sentences=200)
    with pytest.raises(InputError, match="--batch-size"):
        batches_of(data, max_tokens=60)


def test_drop_last_drops_only_one_batch_of_a_corpus_with_several_rounds():
    corpora = [corpus("en-fr", 1000), corpus("en-de", 30, seed=1), corpus("en-es", 10, seed=2)]

    def pairs_per_corpus(drop_last):
        data = dataset(*corpora, temperature=np.inf, drop_last=drop_last)
        counts = [0, 0, 0]
        for batch in batches_of(data, max_sentences=16):
            counts[data.corpus_of(batch[0])] += len(batch)
        return counts

    all_counts = pairs_per_corpus(drop_last=False)
    counts = pairs_per_corpus(drop_last=True)
    assert counts != all_counts
    for count, all_count in zip(counts, all_counts, strict=True):
        assert 0 <= all_count - count < 16


def test_temperature_draws_more_of_the_smaller_corpus():
    data = dataset(corpus("en-fr", 81), corpus("en-de", 1), temperature=2.0)
    indices = data.ordered_indices()
    assert len(indices) == 82
    assert (indices % 82 == 81).sum() == 8


def test_repetitions_of_a_pair_have_one_pair_number():
    corpora = corpus("en-fr", 400), corpus("en-de", 20, seed=1)
    data = dataset(*corpora, temperature=5.0, parts=[PairNumbers()])
    # The last two are repetitions of 405.
    batch = data.collater([data[index] for index in (3, 405, 406, 405 + 420, 405 + 5 * 420)])
    assert batch["pair_number"].tolist() == [3, 405, 406, 405, 405]


def test_repetitions_of_a_pair_are_in_several_batches_with_several_masks():
    data = dataset(corpus("en-fr", 400), corpus("en-de", 20, seed=1), temperature=5.0)
    batches = batches_of(data, max_sentences=8)
    drawn = [index for index in flat(batches) if index % 420 >= 400]
    # The 20 pairs are drawn 147 times.
    assert 6 <= max(drawn) // 420 <= 7
    assert len(drawn) == len(set(drawn))
    for batch in batches:
        assert len({index % 420 for index in batch}) == len(batch)
        assert len({index % 420 < 400 for index in batch}) == 1
    repetitions = [405 + 420 * number for number in range(6)]
    batch = data.collater([data[index] for index in repetitions])
    assert batch["id"].tolist() == repetitions
    assert (batch["source_tokens"] == batch["source_tokens"][0]).all()
    assert len(batch["net_input"]["source"].unique(dim=0)) > 1
    assert data.num_tokens(repetitions[-1]) == data.num_tokens(405)
    assert data.size(repetitions[-1]) == data.size(405)


SOURCES = {"law": 340, "none": 0, "speech": 60}


def counts_of_parts(data):
    """Drawn pairs of both sources of the first corpus, and of the second corpus."""
    parts = np.digitize(data.ordered_indices() % 500, [340, 400])
    return np.bincount(parts).tolist()


@pytest.mark.parametrize("by_length", [True, False])
def test_source_temperature_draws_more_of_the_smaller_source(by_length):
    corpora = corpus("en-fr", 400, sources=SOURCES, empty=[3, 399]), corpus("en-de", 100, seed=1)
    data = dataset(*corpora, source_temperature=np.inf, by_length=by_length)
    drawn = data.ordered_indices()
    assert drawn.tolist() == data.ordered_indices().tolist()
    assert len(set(drawn.tolist())) == len(drawn)
    # 398 pairs of the first corpus are not empty.
    assert counts_of_parts(data) == [199, 199, 100]
    shares = []
    for batch in batches_of(data, max_sentences=20):
        pairs = [index % 500 for index in batch]
        assert len(set(pairs)) == len(pairs)
        assert len({pair < 400 for pair in pairs}) == 1
        if pairs[0] < 400:
            shares.append(np.mean([pair >= 340 for pair in pairs]))
    # Both sources are in a batch.
    assert 0.2 < np.median(shares) < 0.8


def test_both_temperatures_apply_together():
    corpora = corpus("en-fr", 400, sources=SOURCES), corpus("en-de", 100, seed=1)
    data = dataset(*corpora, temperature=np.inf, source_temperature=2.0)
    # 250 pairs are drawn of each corpus, those of the sources as sqrt(340) to sqrt(60).
    assert counts_of_parts(data) == [176, 74, 250]


def test_a_source_temperature_of_one_or_a_text_without_sources_changes_no_order():
    without_sources = corpus("en-fr", 400)
    with_sources = corpus("en-fr", 400, sources=SOURCES)
    german = corpus("en-de", 100, seed=1)
    expected = dataset(without_sources, german, temperature=5.0).ordered_indices()
    order = dataset(with_sources, german, temperature=5.0).ordered_indices()
    assert order.tolist() == expected.tolist()
    order = dataset(without_sources, source_temperature=5.0).ordered_indices()
    assert order.tolist() == dataset(without_sources).ordered_indices().tolist()


@pytest.mark.parametrize("masking", ["one", "tokens", "none"])
def test_a_batch_has_the_ids_and_masks_of_its_pairs(masking):
    parts = []
    if masking != "none":
        parts = [Masking(masking, VOCABULARY)]
    data = dataset(corpus("x-y", 30), parts=parts)
    samples = [data[index] for index in (4, 9, 2, 17)]
    batch = data.collater(samples)
    assert batch["nsentences"] == 4
    assert batch["id"].tolist() == [4, 9, 2, 17]
    num_tokens = 0
    num_masked = 0
    for side in ("source", "target"):
        original = batch[f"{side}_tokens"]
        masked = batch["net_input"][side]
        for row, sample in enumerate(samples):
            assert original[row][original[row] != PAD].tolist() == sample[side].tolist()
            num_tokens += len(sample[side])
            # The masks do not depend on the other pairs of the batch.
            [single] = data.collater([sample])["net_input"][side]
            assert torch.equal(masked[row, : len(single)], single)
        assert masked.shape == original.shape
        assert torch.equal(masked == PAD, original == PAD)
        num_masked += (masked != original).sum().item()
        if masking == "tokens":
            masked_ids = batch[f"{side}_masked_ids"].flatten()[batch[f"{side}_masked_index"]]
            assert original.flatten()[batch[f"{side}_positions"]].tolist() == masked_ids.tolist()
            assert (masked_ids != PAD).all()
    assert batch["ntokens"] == num_tokens
    if masking == "one":
        assert num_masked == 4
    elif masking == "tokens":
        assert num_masked >= 1
    else:
        assert num_masked == 0


def test_an_unknown_masking_is_refused():
    with pytest.raises(ValueError, match="'words'"):
        Masking("words", VOCABULARY)


def test_subword_dropout_splits_differently_in_every_epoch_within_the_length_limit():
    symbols = [chr(0x4E00 + number) for number in range(MASK)]
    for number in range(MASK - 30):
        symbols[30 + number] = symbols[4 + number % 5] + symbols[10 + number % 7]
    drop = SubwordDropout(symbols, 4, 0.5)
    unsplit = dataset(corpus("en-fr", 20), max_positions=14)
    data = dataset(corpus("en-fr", 20), max_positions=14, subword_dropout=drop)

    def spell(ids):
        return "".join(symbols[number] for number in ids)

    sources_by_epoch = []
    for epoch in (1, 2):
        data.set_epoch(epoch)
        sources = []
        for item in data.resegmented([data[index] for index in range(20)]):
            assert len(item["source"]) <= 14
            assert len(item["target"]) <= 14
            sources.append(item["source"].tolist())
        sources_by_epoch.append(sources)
    lengths = []
    for index, source in enumerate(sources_by_epoch[0]):
        # The end may be cut off.
        assert spell(unsplit[index]["source"]).startswith(spell(source))
        lengths.append(len(source) - len(unsplit[index]["source"]))
    for index, source in enumerate(sources_by_epoch[1]):
        assert spell(unsplit[index]["source"]).startswith(spell(source))
    assert max(lengths) > 0
    assert sources_by_epoch[0] != sources_by_epoch[1]
    # A batch has the pieces of its epoch.
    tokens = data.collater([data[index] for index in range(20)])["source_tokens"]
    assert [row[row != PAD].tolist() for row in tokens] == sources_by_epoch[1]
