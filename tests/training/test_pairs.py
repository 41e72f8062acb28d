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


def test_sentences_have_no_eos_and_at_most_the_largest_number_of_pieces():
    data = dataset(corpus("en-fr", 20), max_positions=5)
    for index in range(20):
        item = data[index]
        for sentence in (item["source"], item["target"]):
            assert EOS not in sentence
            assert 1 <= len(sentence) <= 5


def test_pairs_that_are_cut_are_counted():
    text = corpus("en-fr", 20, longest=12)
    num_long_pairs = 0
    for index in range(20):
        # Five pieces and EOS are not cut.
        num_long_pairs += len(text.source[index]) > 6 or len(text.target[index]) > 6
    assert num_long_pairs > 0

    cut_data = dataset(text, max_positions=5)
    for index in range(20):
        cut_data[index]

    assert cut_data.num_cut == num_long_pairs
    assert dataset(text, max_positions=12).num_cut == 0


def test_pairs_with_an_empty_side_are_left_out_and_counted():
    data = dataset(corpus("en-fr", 20, empty=[3, 7]))
    assert data.num_empty == 2
    assert sorted(data.ordered_indices()) == [0, 1, 2, 4, 5, 6, *range(8, 20)]


def test_subword_dropout_splits_equal_sides_of_a_pair_differently():
    # 40 pieces `ab` on both sides, which may be split into `a` and `b`.
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "ab", "a", "b"]
    side = ListDataset([torch.tensor([symbols.index("ab")] * 40 + [EOS])], np.array([41]))
    text = PairCorpus("en-fr", side, side)
    data = dataset(text, parts=[], subword_dropout=SubwordDropout(symbols, 4, 0.5))

    batch = data.collater([data[0]])["net_input"]

    assert batch["source"].tolist() != batch["target"].tolist()


def assert_one_language_pair(batches, num_first):
    """All pairs of a batch are of the first corpus, which has `num_first` pairs, or of another."""
    for batch in batches:
        assert len({index < num_first for index in batch}) == 1


def assert_lengths_ascend(data, batches):
    """No pair is longer than one of the next batch; the length is that of the longer side."""
    for batch, next_batch in itertools.pairwise(batches):
        assert data.lengths[batch].max() <= data.lengths[next_batch].max(axis=1).min()


def test_batches_have_one_language_pair_and_similar_lengths():
    data = dataset(corpus("en-fr", 100), corpus("en-de", 60, seed=1))

    batches = batches_of(data, max_sentences=16)

    assert sorted(flat(batches)) == list(range(160))
    # 100 pairs are 6 x 16 + 4, and 60 are 3 x 16 + 12.
    assert sorted(len(batch) for batch in batches) == [4, 12, *[16] * 9]
    assert_one_language_pair(batches, 100)
    assert_lengths_ascend(data, [batch for batch in batches if batch[0] < 100])
    assert_lengths_ascend(data, [batch for batch in batches if batch[0] >= 100])


@pytest.mark.parametrize("by_length", [True, False])
def test_the_order_depends_only_on_seed_and_epoch(by_length):
    text = corpus("x-y", 50)
    data = dataset(text, by_length=by_length)
    first_epoch = batches_of(data, max_sentences=8)
    data.set_epoch(2)
    second_epoch = batches_of(data, max_sentences=8)
    data.set_epoch(1)
    first_epoch_again = batches_of(data, max_sentences=8)
    same_seed = batches_of(dataset(text, by_length=by_length), max_sentences=8)
    other_seed = batches_of(dataset(text, by_length=by_length, seed=2), max_sentences=8)

    assert first_epoch == first_epoch_again
    assert first_epoch == same_seed
    assert first_epoch != second_epoch
    assert first_epoch != other_seed


def test_batches_that_are_not_by_length_have_pairs_of_any_length():
    data = dataset(corpus("en-fr", 100), corpus("en-de", 60, seed=1), by_length=False)

    batches = batches_of(data, max_sentences=16)

    assert sorted(flat(batches)) == list(range(160))
    assert_one_language_pair(batches, 100)
    for batch in batches:
        if len(batch) == 16:
            # Lengths are 1 to 12.
            assert np.ptp(data.lengths[batch].max(axis=1)) >= 4


def test_batches_that_are_not_by_length_have_no_more_padded_tokens_than_the_limit():
    data = dataset(corpus("en-fr", 100), corpus("en-de", 60, seed=1), by_length=False)

    batches = batches_of(data, max_sentences=16, max_tokens=60)

    assert sorted(flat(batches)) == list(range(160))
    for batch in batches:
        assert data.lengths[batch].max() * len(batch) <= 60


def test_batches_of_validation_are_the_same_in_every_epoch():
    data = dataset(corpus("x-y", 50), shuffle=False, by_length=True)
    first_epoch = batches_of(data, max_sentences=8)
    data.set_epoch(5)
    assert batches_of(data, max_sentences=8) == first_epoch


def test_batches_that_are_neither_shuffled_nor_by_length_are_in_the_order_of_the_text():
    data = dataset(corpus("x-y", 50), shuffle=False, by_length=False)
    assert flat(batches_of(data, max_sentences=8)) == list(range(50))


def two_corpora():
    """Corpora of 100 and of 64 pairs."""
    return corpus("en-fr", 100), corpus("en-de", 64, seed=1)


@pytest.mark.parametrize("by_length", [True, False])
def test_drop_last_drops_the_last_batch_of_a_corpus_unless_it_is_full(by_length):
    data = dataset(*two_corpora(), by_length=by_length, drop_last=True)
    batches = batches_of(data, max_sentences=16)
    # 100 pairs are 6 x 16 + 4, and 64 are 4 x 16.
    assert [len(batch) for batch in batches] == [16] * (6 + 4)


@pytest.mark.parametrize("by_length", [True, False])
def test_drop_last_drops_the_last_batch_of_each_corpus_if_tokens_are_limited(by_length):
    limits = {"max_sentences": 16, "max_tokens": 60}
    all_batches = batches_of(dataset(*two_corpora(), by_length=by_length), **limits)
    data = dataset(*two_corpora(), by_length=by_length, drop_last=True)
    assert len(batches_of(data, **limits)) == len(all_batches) - 2


@pytest.mark.parametrize("by_length", [True, False])
def test_drop_last_is_refused_if_no_batch_would_be_left(by_length):
    data = dataset(*two_corpora(), by_length=by_length, drop_last=True)
    with pytest.raises(InputError, match=r"164 .*--batch-size 200"):
        batches_of(data, max_sentences=200)


@pytest.mark.parametrize("by_length", [True, False])
def test_drop_last_requires_a_batch_size(by_length):
    data = dataset(*two_corpora(), by_length=by_length, drop_last=True)
    with pytest.raises(InputError, match="--batch-size"):
        batches_of(data, max_tokens=60)


def test_drop_last_drops_less_than_a_batch_of_each_corpus_whose_pairs_are_repeated():
    """This temperature draws as many pairs of each corpus, so pairs of small ones are repeated."""
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


# The index of each repetition of a pair is larger by the number of all pairs.


def test_a_temperature_draws_more_of_the_smaller_corpus():
    data = dataset(corpus("en-fr", 81), corpus("en-de", 1), temperature=2.0)
    indices = data.ordered_indices()
    # The shares are as sqrt(81) to sqrt(1), so a tenth of the 82 draws is German.
    is_german = indices % 82 == 81
    assert len(indices) == 82
    assert is_german.sum() == 8


def test_repetitions_of_a_pair_have_its_pair_number():
    corpora = corpus("en-fr", 400), corpus("en-de", 20, seed=1)
    data = dataset(*corpora, temperature=5.0, parts=[PairNumbers()])
    first_repetition = 405 + 420
    fifth_repetition = 405 + 5 * 420
    indices = [3, 405, 406, first_repetition, fifth_repetition]

    batch = data.collater([data[index] for index in indices])

    assert batch["pair_number"].tolist() == [3, 405, 406, 405, 405]


def test_repetitions_of_a_pair_are_in_different_batches():
    data = dataset(corpus("en-fr", 400), corpus("en-de", 20, seed=1), temperature=5.0)

    batches = batches_of(data, max_sentences=8)

    # The shares are as 400^(1/5) to 20^(1/5), so the 20 German pairs are drawn 147 times of 420.
    german_indices = [index for index in flat(batches) if index % 420 >= 400]
    assert 6 <= max(german_indices) // 420 <= 7
    assert len(german_indices) == len(set(german_indices))
    for batch in batches:
        pairs = {index % 420 for index in batch}
        assert len(pairs) == len(batch)
        assert len({pair < 400 for pair in pairs}) == 1


def test_repetitions_of_a_pair_have_its_sentences_and_different_masks():
    data = dataset(corpus("en-fr", 400), corpus("en-de", 20, seed=1), temperature=5.0)
    repetitions = [405 + 420 * number for number in range(6)]

    batch = data.collater([data[index] for index in repetitions])

    assert batch["id"].tolist() == repetitions
    assert (batch["source_tokens"] == batch["source_tokens"][0]).all()
    assert len(batch["net_input"]["source"].unique(dim=0)) > 1


def test_a_repetition_of_a_pair_has_its_length():
    data = dataset(corpus("en-fr", 400), corpus("en-de", 20, seed=1), temperature=5.0)
    repetition = 405 + 5 * 420
    assert data.num_tokens(repetition) == data.num_tokens(405)
    assert data.size(repetition) == data.size(405)


# Pairs 0 to 339 of the corpus are law, and 340 to 399 are speech.
SOURCES = {"law": 340, "none": 0, "speech": 60}


def corpora_with_sources(**options):
    """A corpus of 400 pairs from two sources, and one of 100 pairs without sources."""
    return corpus("en-fr", 400, sources=SOURCES, **options), corpus("en-de", 100, seed=1)


def numbers_of_drawn_pairs(data):
    """How many pairs are drawn of law, of speech and of the second corpus."""
    parts = np.digitize(data.ordered_indices() % 500, [340, 400])
    return np.bincount(parts).tolist()


@pytest.mark.parametrize("by_length", [True, False])
def test_a_source_temperature_draws_more_of_the_smaller_source(by_length):
    # Two pairs of the first corpus are left out because a side is empty.
    corpora = corpora_with_sources(empty=[3, 399])
    data = dataset(*corpora, source_temperature=np.inf, by_length=by_length)
    indices = data.ordered_indices().tolist()
    # Half of 398 pairs of each source, and all of the second corpus.
    assert numbers_of_drawn_pairs(data) == [199, 199, 100]
    assert len(set(indices)) == len(indices)
    assert data.ordered_indices().tolist() == indices


@pytest.mark.parametrize("by_length", [True, False])
def test_batches_have_pairs_of_both_sources_and_none_twice(by_length):
    data = dataset(*corpora_with_sources(), source_temperature=np.inf, by_length=by_length)
    shares_of_speech = []
    for batch in batches_of(data, max_sentences=20):
        pairs = [index % 500 for index in batch]
        assert len(set(pairs)) == len(pairs)
        assert len({pair < 400 for pair in pairs}) == 1
        if pairs[0] < 400:
            shares_of_speech.append(np.mean([pair >= 340 for pair in pairs]))
    # Half of the pairs of the first corpus are speech.
    assert 0.2 < np.median(shares_of_speech) < 0.8


def test_both_temperatures_apply_together():
    data = dataset(*corpora_with_sources(), temperature=np.inf, source_temperature=2.0)
    # Half of the 500 draws are of each corpus; law and speech are as sqrt(340) to sqrt(60).
    law = round(250 * 340**0.5 / (340**0.5 + 60**0.5))
    assert numbers_of_drawn_pairs(data) == [law, 250 - law, 250]


def test_sources_change_no_order_without_a_source_temperature():
    german = corpus("en-de", 100, seed=1)
    with_sources = dataset(corpus("en-fr", 400, sources=SOURCES), german, temperature=5.0)
    without_sources = dataset(corpus("en-fr", 400), german, temperature=5.0)
    assert with_sources.ordered_indices().tolist() == without_sources.ordered_indices().tolist()


def test_a_source_temperature_changes_no_order_of_a_text_without_sources():
    text = corpus("en-fr", 400)
    with_temperature = dataset(text, source_temperature=5.0).ordered_indices()
    assert with_temperature.tolist() == dataset(text).ordered_indices().tolist()


def masked_batch(masking, indices=(4, 9, 2, 17)):
    """A batch of these pairs, four of 30 by default, with a kind of masks, and its samples."""
    parts = [] if masking == "none" else [Masking(masking, VOCABULARY)]
    data = dataset(corpus("x-y", 30), parts=parts)
    samples = [data[index] for index in indices]
    return data.collater(samples), samples


@pytest.mark.parametrize("masking", ["one", "tokens", "none"])
def test_a_batch_has_the_sentences_of_its_pairs(masking):
    batch, samples = masked_batch(masking, indices=[4, 9, 2, 17])
    assert batch["nsentences"] == 4
    assert batch["id"].tolist() == [4, 9, 2, 17]
    num_tokens = 0
    for side in ("source", "target"):
        for row, sample in zip(batch[f"{side}_tokens"], samples, strict=True):
            assert row[row != PAD].tolist() == sample[side].tolist()
            num_tokens += len(sample[side])
    assert batch["ntokens"] == num_tokens


@pytest.mark.parametrize("masking", ["one", "tokens", "none"])
def test_masks_do_not_depend_on_the_other_pairs_of_the_batch(masking):
    indices = [4, 9, 2, 17]
    batch, _ = masked_batch(masking, indices)
    for row, index in enumerate(indices):
        single_batch, _ = masked_batch(masking, [index])
        for side in ("source", "target"):
            [single] = single_batch["net_input"][side]
            assert torch.equal(batch["net_input"][side][row, : len(single)], single)


def numbers_of_changed_tokens(batch) -> list[int]:
    """How many tokens of each pair, on both sides together, its masks have changed."""
    numbers = torch.zeros(4, dtype=torch.long)
    for side in ("source", "target"):
        numbers += (batch["net_input"][side] != batch[f"{side}_tokens"]).sum(dim=1)
    return numbers.tolist()


def test_the_masking_one_changes_a_single_token_of_each_pair():
    batch, _ = masked_batch("one")

    assert numbers_of_changed_tokens(batch) == [1, 1, 1, 1]


def test_the_masking_tokens_changes_some_tokens():
    batch, _ = masked_batch("tokens")

    assert sum(numbers_of_changed_tokens(batch)) >= 1


def test_the_masking_none_changes_no_token():
    batch, _ = masked_batch("none")

    assert numbers_of_changed_tokens(batch) == [0, 0, 0, 0]


@pytest.mark.parametrize("masking", ["one", "tokens", "none"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_masks_neither_add_nor_replace_padding(masking, side):
    batch, _ = masked_batch(masking)

    is_padding = batch[f"{side}_tokens"] == PAD
    assert torch.equal(batch["net_input"][side] == PAD, is_padding)


@pytest.mark.parametrize("side", ["source", "target"])
def test_masked_tokens_have_the_positions_of_their_original_ids(side):
    batch, _ = masked_batch("tokens")
    masked_ids = batch[f"{side}_masked_ids"].flatten()[batch[f"{side}_masked_index"]]
    original_ids = batch[f"{side}_tokens"].flatten()[batch[f"{side}_positions"]]
    assert masked_ids.tolist() == original_ids.tolist()
    assert (masked_ids != PAD).all()


def test_an_unknown_masking_is_refused():
    with pytest.raises(ValueError, match="'words'"):
        Masking("words", VOCABULARY)


# Symbols of one letter, and from 30 on of two letters, which may be split.
LETTERS = [chr(0x4E00 + number) for number in range(30)]
SYMBOLS = list(LETTERS)
for number in range(MASK - 30):
    SYMBOLS.append(LETTERS[4 + number % 5] + LETTERS[10 + number % 7])


def spell(ids):
    return "".join(SYMBOLS[number] for number in ids)


@pytest.fixture
def split_data():
    """20 pairs of up to 12 pieces on a side; at most 14 after half of the long ones are split."""
    drop = SubwordDropout(SYMBOLS, 4, 0.5)
    return dataset(corpus("en-fr", 20), max_positions=14, subword_dropout=drop)


def split_sentences(data, side, epoch):
    """The pieces of all sentences of a side in an epoch."""
    data.set_epoch(epoch)
    samples = data.resegmented([data[index] for index in range(20)])
    return [sample[side].tolist() for sample in samples]


@pytest.mark.parametrize("side", ["source", "target"])
def test_subword_dropout_splits_the_text_within_the_length_limit(split_data, side):
    unsplit_data = dataset(corpus("en-fr", 20), max_positions=14)
    is_longer = []
    for index, pieces in enumerate(split_sentences(split_data, side, epoch=1)):
        unsplit_pieces = unsplit_data[index][side]
        # The end may be cut off.
        assert spell(unsplit_pieces).startswith(spell(pieces))
        assert len(pieces) <= 14
        is_longer.append(len(pieces) > len(unsplit_pieces))
    assert any(is_longer)


def test_subword_dropout_splits_differently_in_every_epoch(split_data):
    first_epoch = split_sentences(split_data, "source", epoch=1)
    assert split_sentences(split_data, "source", epoch=2) != first_epoch


def test_a_batch_has_the_split_pieces_of_its_epoch(split_data):
    expected = split_sentences(split_data, "source", epoch=2)
    tokens = split_data.collater([split_data[index] for index in range(20)])["source_tokens"]
    assert [row[row != PAD].tolist() for row in tokens] == expected
