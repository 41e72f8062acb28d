"""Negatives that differ from a translation by two words exchanged, or by one word."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from fairseq.data import ListDataset
from pair_batches import EOS, MASK, PAD, corpus, dataset

from fairseq_lxsr.training.dataset import DrawnPairs
from fairseq_lxsr.training.lightweight.parts import hard_negatives
from fairseq_lxsr.training.lightweight.parts.hard_negatives import HARD_NEGATIVES, HardNegatives
from fairseq_lxsr.training.pairs import PairCorpus

# Which pieces start a word: every second one, or all.
HALF_START = np.arange(MASK + 1) % 2 == 0
ALL_START = np.ones(MASK + 1, dtype=bool)


def words(*ids):
    return [np.array(word) for word in ids]


def swapped(sentence, first, second):
    """The pieces of a sentence whose words are exchanged by two draws."""
    # `swap_words` changes its list.
    return np.concatenate(hard_negatives.swap_words(sentence.copy(), first, second)).tolist()


# A draw is a number from 0 to 1, which selects one of the possible words or changes.


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # The first word with the next one, or with the last one.
        (0, 0, [12, 10, 11, 13, 14]),
        (0, 0.99, [13, 14, 12, 10, 11]),
        # The last word with the first one.
        (0.99, 0, [13, 14, 12, 10, 11]),
    ],
)
def test_two_words_are_exchanged_by_two_draws(first, second, expected):
    sentence = words([10, 11], [12], [13, 14])
    assert swapped(sentence, first, second) == expected


def test_a_single_word_is_not_exchanged():
    assert swapped(words([10, 11]), 0, 0.99) == [10, 11]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        # Left out in the first third, replaced by a word of the other sentence in the second, and
        # preceded by one in the last.
        (0.1, [10, 14]),
        (0.35, [10, 20, 14]),
        (0.65, [10, 22, 23, 14]),
        (0.7, [10, 20, 12, 14]),
    ],
    ids=["left out", "first word", "second word", "added"],
)
def test_a_word_is_left_out_replaced_or_added_by_two_draws(second, expected):
    sentence = words([10], [12], [14])
    another_sentence = words([20], [22, 23])
    # The first draw selects the word in the middle, 12.
    edited = hard_negatives.edit_words(sentence, another_sentence, 0.5, second)
    assert np.concatenate(edited).tolist() == expected


def test_sentences_of_a_batch_are_changed_as_single_sentences():
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = rng.integers(0, 9, 12)
        rows = [rng.integers(0, 9, length) for length in lengths]
        starts = [rng.random(length) < 0.5 for length in lengths]
        first = rng.random(12)
        second = rng.random(12)
        places = hard_negatives.swapped_places(np.concatenate(starts), lengths, first, second)
        batch = np.split(np.concatenate(rows)[places], lengths.cumsum()[:-1])
        for number in range(12):
            sentence = np.split(rows[number], np.flatnonzero(starts[number])[1:])
            expected = swapped(sentence, first[number], second[number])
            assert batch[number].tolist() == expected


def make_negatives(kind, data, samples, epoch=2):
    """Negatives, and for each whether it is one of the source and of the target."""
    data.set_epoch(epoch)
    return HardNegatives(kind, HALF_START).make(DrawnPairs(data, samples))


def changed_rows(samples, tokens, negative_of):
    """Pairs of a negative and the sentence that it was made of."""
    pairs = []
    for sample, row, (of_source, of_target) in zip(samples, tokens, negative_of, strict=True):
        negative = row[row != PAD].tolist()
        # A negative of the source is a changed target.
        if of_source:
            pairs.append((negative, sample["target"].tolist()))
        elif of_target:
            pairs.append((negative, sample["source"].tolist()))
        else:
            assert negative == []
    return pairs


def pairs_and_negatives(kind, epoch=2):
    """A data set, 60 of its samples, and their negatives."""
    data = dataset(corpus("en-fr", 60), corpus("en-de", 30, seed=1))
    samples = [data[index] for index in range(60)]
    return data, samples, *make_negatives(kind, data, samples, epoch)


@pytest.mark.parametrize("kind", HARD_NEGATIVES)
def test_a_negative_is_a_changed_side_of_its_pair(kind):
    _, samples, tokens, negative_of = pairs_and_negatives(kind)
    for count in negative_of.sum(axis=0):
        assert 10 < count < 50
    # It is a negative of one side only.
    assert not negative_of.all(axis=1).any()
    for negative, sentence in changed_rows(samples, tokens, negative_of):
        assert negative != sentence


@pytest.mark.parametrize("kind", HARD_NEGATIVES)
def test_only_exchanged_words_leave_the_pieces_of_a_sentence_the_same(kind):
    _, samples, tokens, negative_of = pairs_and_negatives(kind)
    pairs = changed_rows(samples, tokens, negative_of)
    num_with_same_pieces = 0
    for negative, sentence in pairs:
        num_with_same_pieces += sorted(negative) == sorted(sentence)
    if kind == "swap":
        assert num_with_same_pieces == len(pairs)
    elif kind == "edit":
        # A word may be replaced by the same word.
        assert num_with_same_pieces < 5
    else:
        assert kind == "both"
        assert 5 < num_with_same_pieces < 50


@pytest.mark.parametrize("kind", HARD_NEGATIVES)
def test_a_negative_does_not_depend_on_the_other_pairs_of_a_batch(kind):
    data, samples, tokens, negative_of = pairs_and_negatives(kind)
    single_tokens, single_negative_of = make_negatives(kind, data, samples[7:8])
    assert single_tokens[0].tolist() == tokens[7, : single_tokens.shape[1]].tolist()
    assert single_negative_of[0].tolist() == negative_of[7].tolist()


@pytest.mark.parametrize("kind", HARD_NEGATIVES)
def test_negatives_differ_between_epochs(kind):
    _, _, tokens, _ = pairs_and_negatives(kind, epoch=2)
    _, _, tokens_of_next_epoch, _ = pairs_and_negatives(kind, epoch=3)
    assert not np.array_equal(tokens_of_next_epoch, tokens)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(
    ("index", "draw", "expected"),
    [
        # The first and the last pair of the first corpus, 0 to 19, and of the second, 20 to 49.
        (3, 0.0, 0),
        (3, 0.99, 19),
        (25, 0.0, 20),
        (25, 0.99, 49),
    ],
)
def test_another_sentence_is_drawn_from_the_same_corpus(index, draw, expected, side):
    data = dataset(corpus("en-fr", 20), corpus("en-de", 30, seed=1))
    sentence = data.other_sentence(index, draw, side)
    assert sentence.tolist() == data[expected][side].tolist()


def test_negatives_are_cut_to_the_length_limit():
    data = dataset(corpus("en-fr", 20))
    samples = [data[index] for index in range(20)]
    data.max_positions = 3
    tokens, _ = make_negatives("edit", data, samples, epoch=1)
    assert tokens.shape[1] == 3


def test_a_batch_has_negatives_with_the_option():
    data = dataset(corpus("en-fr", 8), parts=[HardNegatives("both", ALL_START)])
    batch = data.collater([data[index] for index in range(8)])
    negative = batch["net_input"]["negative"]
    assert len(negative) == 8
    assert EOS not in negative
    assert batch["negative_of"].dtype == torch.bool


def test_a_batch_has_no_negatives_without_the_option():
    data = dataset(corpus("en-fr", 8), parts=[])
    assert "negative_of" not in data.collater([data[index] for index in range(8)])


@pytest.fixture
def swaps_of_one_sentence():
    """Negatives of 3,000 pairs that all have the same sentence of six words, 10 to 15."""
    ids = torch.tensor([*range(10, 16), EOS])
    side = ListDataset([ids] * 3000, np.full(3000, 7))
    data = dataset(PairCorpus("en-fr", side, side))
    samples = [data[index] for index in range(3000)]
    return HardNegatives("swap", ALL_START).make(DrawnPairs(data, samples))


def test_sides_of_negatives_are_drawn_evenly(swaps_of_one_sentence):
    _, negative_of = swaps_of_one_sentence
    assert np.abs(negative_of.mean(axis=0) - 1 / 2).max() < 0.03


def test_pairs_of_words_to_exchange_are_drawn_evenly(swaps_of_one_sentence):
    tokens, _ = swaps_of_one_sentence
    # The places of each negative that differ from the sentence.
    counts = Counter(tuple(np.flatnonzero(row != np.arange(10, 16))) for row in tokens)
    pairs_of_places = list(itertools.combinations(range(6), 2))
    assert set(counts) == set(pairs_of_places)
    for count in counts.values():
        assert count / 3000 == pytest.approx(1 / len(pairs_of_places), abs=0.02)


def test_negatives_of_both_kinds_are_half_swaps():
    data = dataset(corpus("en-fr", 800, longest=40))
    samples = [data[index] for index in range(800)]
    pairs = changed_rows(samples, *make_negatives("both", data, samples))
    # Exchanged words leave the pieces the same.
    num_swapped = sum(sorted(negative) == sorted(sentence) for negative, sentence in pairs)
    assert num_swapped / len(pairs) == pytest.approx(1 / 2, abs=0.06)


def test_added_words_are_of_the_same_side_and_language_pair():
    # Each side of each corpus has 14 pieces that no other has.
    rng = np.random.default_rng(0)
    corpora = []
    for name, first_of_source, first_of_target in (("en-fr", 4, 18), ("en-de", 32, 46)):
        sides = []
        for first in (first_of_source, first_of_target):
            sentences = []
            for _ in range(60):
                sentences.append(torch.tensor([*rng.integers(first, first + 14, 5), EOS]))
            sides.append(ListDataset(sentences, np.full(60, 6)))
        corpora.append(PairCorpus(name, *sides))
    data = dataset(*corpora)
    samples = [data[index] for index in range(120)]
    tokens, negative_of = HardNegatives("edit", ALL_START).make(DrawnPairs(data, samples))
    for negative, sentence in changed_rows(samples, tokens, negative_of):
        first = 4 + 14 * ((sentence[0] - 4) // 14)
        assert set(negative) <= set(range(first, first + 14))
