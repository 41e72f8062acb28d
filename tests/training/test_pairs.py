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


def test_eos_is_stripped_long_sentences_cut_and_empty_ones_skipped():
    text = corpus("en-fr", 20)
    data = dataset(text, max_positions=5)
    for index in range(20):
        item = data[index]
        for side in (item["source"], item["target"]):
            assert EOS not in side
            assert 1 <= len(side) <= 5
    lengths = np.array(
        [[len(side[row]) - 1 for side in (text.source, text.target)] for row in range(20)]
    )
    assert data.num_cut == (lengths > 5).any(axis=1).sum() > 0
    assert dataset(text, max_positions=int(lengths.max())).num_cut == 0
    data = dataset(corpus("en-fr", 20, empty=[3, 7]))
    assert data.num_empty == 2
    assert sorted(data.ordered_indices()) == [index for index in range(20) if index not in (3, 7)]


def test_the_two_sides_of_a_pair_are_split_by_draws_of_their_own():
    ids = torch.tensor([4] * 40 + [EOS])
    text = PairCorpus("en-fr", *(ListDataset([ids], np.array([41])) for _ in range(2)))
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "ab", "a", "b"]
    data = dataset(text, parts=[], subword_dropout=SubwordDropout(symbols, 4, 0.5))
    batch = data.collater([data[0]])["net_input"]
    assert batch["source"].tolist() != batch["target"].tolist()


def test_batches_are_exact_similar_in_length_and_of_one_language_pair():
    data = dataset(corpus("en-fr", 100), corpus("en-de", 60, seed=1))
    batches = batches_of(data, max_sentences=16)
    assert sorted(itertools.chain(*batches)) == list(range(160))
    assert sorted(map(len, batches)) == [4, 12, *[16] * 9]
    for batch, following in itertools.pairwise(batches):
        assert len({index < 100 for index in batch}) == 1
        if (batch[0] < 100) == (following[0] < 100):
            assert data.lengths[batch].max() <= data.lengths[following].max(axis=1).min()


def test_order_is_new_every_epoch_and_a_function_of_seed_and_epoch():
    data, again, other = (
        dataset(corpus("x-y", 50)),
        dataset(corpus("x-y", 50)),
        dataset(corpus("x-y", 50), seed=2),
    )
    first = batches_of(data, max_sentences=8)
    assert first == batches_of(again, max_sentences=8)
    assert first != batches_of(other, max_sentences=8)
    data.set_epoch(2)
    assert first != batches_of(data, max_sentences=8)
    data.set_epoch(1)
    assert first == batches_of(data, max_sentences=8)


def test_shuffled_batches_hold_any_lengths_and_the_same_pairs():
    data, again = (
        dataset(corpus("en-fr", 100), corpus("en-de", 60, seed=1), by_length=False)
        for _ in range(2)
    )
    batches = batches_of(data, max_sentences=16)
    assert sorted(itertools.chain(*batches)) == list(range(160))
    assert all(len({index < 100 for index in batch}) == 1 for batch in batches)
    spread = [np.ptp(data.lengths[batch].max(axis=1)) for batch in batches if len(batch) == 16]
    assert min(spread) >= 4  # lengths are 1 to 12
    assert batches == batches_of(again, max_sentences=16)
    again.set_epoch(2)
    assert batches != batches_of(again, max_sentences=16)
    limited = batches_of(data, max_sentences=16, max_tokens=60)
    assert sorted(itertools.chain(*limited)) == list(range(160))
    assert all(data.lengths[batch].max() * len(batch) <= 60 for batch in limited)


def test_validation_order_never_changes_and_is_that_of_the_text_where_lengths_do_not_matter():
    data, as_is = (
        dataset(corpus("x-y", 50), shuffle=False, by_length=by_length)
        for by_length in (True, False)
    )
    first = batches_of(data, max_sentences=8)
    data.set_epoch(5)
    assert first == batches_of(data, max_sentences=8)
    assert list(itertools.chain(*batches_of(as_is, max_sentences=8))) == list(range(50))


@pytest.mark.parametrize("by_length", [True, False])
def test_the_last_batch_is_dropped_unless_it_is_full(by_length):
    data = dataset(
        corpus("en-fr", 100), corpus("en-de", 64, seed=1), by_length=by_length, drop_last=True
    )
    assert list(map(len, batches_of(data, max_sentences=16))) == [16] * 10
    limits, whole = (
        {"max_sentences": 16, "max_tokens": 60},
        dataset(*data.corpora, by_length=by_length),
    )
    assert len(batches_of(data, **limits)) == len(batches_of(whole, **limits)) - 2
    with pytest.raises(InputError, match=r"164 .*--batch-size 200"):
        batches_of(data, max_sentences=200)
    with pytest.raises(InputError, match="--batch-size"):
        batches_of(data, max_tokens=60)


def test_of_many_rounds_of_a_small_corpus_only_the_last_batch_is_dropped():
    sizes = {"en-fr": 1000, "en-de": 30, "en-es": 10}
    corpora = [corpus(name, size, seed=seed) for seed, (name, size) in enumerate(sizes.items())]
    plain, data = (dataset(*corpora, temperature=np.inf, drop_last=drop) for drop in (False, True))
    kept, found = (dict.fromkeys(sizes, 0) for _ in range(2))
    for counts, one in ((kept, plain), (found, data)):
        for batch in batches_of(one, max_sentences=16):
            counts[corpora[one.corpus_of(batch[0])].name] += len(batch)
    assert all(0 <= kept[name] - found[name] < 16 for name in sizes), (kept, found)
    assert kept != found


def test_temperature_draws_more_of_the_smaller_pair():
    data = dataset(corpus("en-fr", 81), corpus("en-de", 1), temperature=2.0)
    indices = data.ordered_indices()
    assert ((indices % 82 == 81).sum(), len(indices)) == (8, 82)
    data = dataset(
        corpus("en-fr", 400), corpus("en-de", 20, seed=1), temperature=5.0, parts=[PairNumbers()]
    )
    batch = data.collater([data[index] for index in (3, 405, 406, 405 + 420, 405 + 5 * 420)])
    # equal for a pair that is drawn again
    assert batch["pair_number"].tolist() == [3, 405, 406, 405, 405]


def test_a_pair_that_is_drawn_again_is_in_another_batch_with_another_mask():
    data = dataset(corpus("en-fr", 400), corpus("en-de", 20, seed=1), temperature=5.0)
    batches = batches_of(data, max_sentences=8)
    drawn = [index for index in itertools.chain(*batches) if index % 420 >= 400]
    assert 6 <= max(drawn) // 420 <= 7  # 147 of 20 pairs
    assert len(drawn) == len(set(drawn))
    for batch in batches:
        assert len({index % 420 for index in batch}) == len(batch)
        assert len({index % 420 < 400 for index in batch}) == 1
    again = [405 + 420 * number for number in range(6)]
    batch = data.collater([data[index] for index in again])
    assert batch["id"].tolist() == again
    assert (batch["source_tokens"] == batch["source_tokens"][0]).all()
    assert len(batch["net_input"]["source"].unique(dim=0)) > 1
    assert data.num_tokens(again[-1]) == data.num_tokens(405)
    assert data.size(again[-1]) == data.size(405)


NAMED = {"law": 340, "none": 0, "speech": 60}


@pytest.mark.parametrize("by_length", [True, False])
def test_source_temperature_draws_more_of_the_smaller_source(by_length):
    text = corpus("en-fr", 400, sources=NAMED, empty=[3, 399]), corpus("en-de", 100, seed=1)
    data = dataset(*text, source_temperature=np.inf, by_length=by_length)
    drawn = data.ordered_indices()
    pair = drawn % 500
    # 398 pairs are not empty
    assert np.bincount(np.digitize(pair, [340, 400])).tolist() == [199, 199, 100]
    assert len(set(drawn.tolist())) == len(drawn)
    cut = batches_of(data, max_sentences=20)
    assert all(len({index % 500 for index in batch}) == len(batch) for batch in cut)
    assert all(len({index % 500 < 400 for index in batch}) == 1 for batch in cut)
    mixed = [
        np.mean([index % 500 >= 340 for index in batch]) for batch in cut if batch[0] % 500 < 400
    ]
    assert 0.2 < np.median(mixed) < 0.8  # both sources are in a batch
    assert drawn.tolist() == data.ordered_indices().tolist()


def test_both_temperatures_hold_and_change_nothing_at_one():
    text = corpus("en-fr", 400, sources=NAMED), corpus("en-de", 100, seed=1)
    data = dataset(*text, temperature=np.inf, source_temperature=2.0)
    drawn = np.bincount(np.digitize(data.ordered_indices() % 500, [340, 400]))
    assert drawn.tolist() == [176, 74, 250]  # 250 by sqrt(340) : sqrt(60)
    unnamed = corpus("en-fr", 400)
    plain, named = (dataset(first, text[1], temperature=5.0) for first in (unnamed, text[0]))
    assert plain.ordered_indices().tolist() == named.ordered_indices().tolist()
    other = dataset(unnamed, source_temperature=5.0)  # a text without sources is one
    assert other.ordered_indices().tolist() == dataset(unnamed).ordered_indices().tolist()


@pytest.mark.parametrize("masking", ["one", "tokens", "none"])
def test_collated_batch(masking):
    parts = [] if masking == "none" else [Masking(masking, VOCABULARY)]
    data = dataset(corpus("x-y", 30), parts=parts)
    samples = [data[index] for index in (4, 9, 2, 17)]
    batch = data.collater(samples)
    assert batch["nsentences"] == 4
    assert batch["id"].tolist() == [4, 9, 2, 17]
    assert batch["ntokens"] == sum(
        len(sample[side]) for sample in samples for side in ("source", "target")
    )
    for side in ("source", "target"):
        original, read = batch[f"{side}_tokens"], batch["net_input"][side]
        for row, sample in enumerate(samples):
            assert original[row][original[row] != PAD].tolist() == sample[side].tolist()
        assert read.shape == original.shape
        assert torch.equal(read == PAD, original == PAD)
        if masking == "tokens":
            masked = batch[f"{side}_masked_ids"].flatten()[batch[f"{side}_masked_index"]]
            assert original.flatten()[batch[f"{side}_positions"]].tolist() == masked.tolist()
            assert (masked != PAD).all()
    changed = sum(
        (batch["net_input"][side] != batch[f"{side}_tokens"]).sum().item()
        for side in ("source", "target")
    )
    assert {"one": changed == 4, "tokens": changed >= 1, "none": changed == 0}[masking]
    with pytest.raises(ValueError, match="'words'"):
        Masking("words", VOCABULARY)
    for row, sample in enumerate(samples):  # whatever else is in the batch
        alone = data.collater([sample])["net_input"]
        for side in ("source", "target"):
            assert torch.equal(
                batch["net_input"][side][row, : alone[side].shape[1]], alone[side][0]
            )


def test_subword_dropout_gives_other_pieces_every_epoch_and_never_too_many():
    symbols = [chr(0x4E00 + number) for number in range(MASK)]
    symbols[30:MASK] = [
        symbols[4 + number % 5] + symbols[10 + number % 7] for number in range(MASK - 30)
    ]
    drop = SubwordDropout(symbols, 4, 0.5)
    plain, data = (
        dataset(corpus("en-fr", 20), max_positions=14, subword_dropout=way) for way in (None, drop)
    )

    def spelt(item, side):
        return "".join(symbols[piece] for piece in item[side])

    seen = []
    for epoch in (1, 2):
        data.set_epoch(epoch)
        items = data.resegmented([data[index] for index in range(20)])
        assert all(len(item[side]) <= 14 for item in items for side in ("source", "target"))
        for item, whole in zip(items, map(plain.__getitem__, range(20)), strict=True):
            assert spelt(whole, "source").startswith(spelt(item, "source"))
        seen.append([item["source"].tolist() for item in items])
    assert seen[0] != seen[1]
    assert any(len(long) > len(plain[index]["source"]) for index, long in enumerate(seen[0]))
    read = data.collater([data[index] for index in range(20)])["source_tokens"].tolist()
    assert [[piece for piece in row if piece != PAD] for row in read] == seen[1]
