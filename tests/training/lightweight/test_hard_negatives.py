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

STARTS_WORD, ALL_START = np.arange(MASK + 1) % 2 == 0, np.ones(MASK + 1, dtype=bool)


def words(*ids):
    return [np.array(word) for word in ids]


def joined(parts):
    return np.concatenate(parts).tolist()


def test_two_words_change_places_or_a_word_is_left_out_replaced_or_added():
    exchanged = [13, 14, 12, 10, 11]
    for draws, expected in (
        ((0, 0), [12, 10, 11, 13, 14]),
        ((0, 0.99), exchanged),
        ((0.99, 0), exchanged),
    ):
        assert (
            joined(hard_negatives.swap_words(words([10, 11], [12], [13, 14]), *draws)) == expected
        )
        assert joined(hard_negatives.swap_words(words([10, 11]), *draws)) == [10, 11]
    own, other = words([10], [12], [14]), words([20], [22, 23])
    edits = {0.1: [10, 14], 0.35: [10, 20, 14], 0.65: [10, 22, 23, 14], 0.7: [10, 20, 12, 14]}
    for second, expected in edits.items():
        assert joined(hard_negatives.edit_words(own, other, 0.5, second)) == expected


def test_all_sentences_together_are_those_one_by_one():
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = [rng.integers(0, 9, size) for size in rng.integers(0, 9, 12)]
        starts = [rng.random(len(row)) < 0.5 for row in rows]
        first, second = rng.random((2, len(rows)))
        lengths = np.array([len(row) for row in rows])
        found = np.concatenate(rows)[
            hard_negatives.swapped_places(np.concatenate(starts), lengths, first, second)
        ]
        parts = np.split(found, lengths.cumsum()[:-1])
        for row, start, *draws, part in zip(rows, starts, first, second, parts, strict=True):
            assert (
                joined(hard_negatives.swap_words(np.split(row, np.flatnonzero(start)[1:]), *draws))
                == part.tolist()
            )


def make(kind, data, samples, epoch=2):
    data.set_epoch(epoch)
    return HardNegatives(kind, STARTS_WORD).make(DrawnPairs(data, samples))


@pytest.mark.parametrize("kind", HARD_NEGATIVES)
def test_a_row_is_a_changed_side_of_its_pair_whatever_the_batch(kind):
    data = dataset(corpus("en-fr", 60), corpus("en-de", 30, seed=1))
    samples = [data[index] for index in range(60)]
    tokens, of = make(kind, data, samples)
    assert all(10 < count < 50 for count in of.sum(axis=0))
    assert not of.all(axis=1).any()
    same_words = 0
    for sample, row, (of_source, of_target) in zip(samples, tokens, of, strict=True):
        row = row[row != PAD]
        if of_source or of_target:
            side = sample["target" if of_source else "source"]
            same_words += sorted(row) == sorted(side)
            assert row.tolist() != side.tolist()
        else:
            assert len(row) == 0
    assert {"swap": same_words == of.sum(), "edit": same_words < 5, "both": 5 < same_words < 50}[
        kind
    ]
    alone, of_alone = make(kind, data, samples[7:8])
    assert alone[0].tolist() == tokens[7, : alone.shape[1]].tolist()
    assert of_alone[0].tolist() == of[7].tolist()
    assert not np.array_equal(make(kind, data, samples, epoch=3)[0], tokens)


def test_words_come_from_the_same_language_and_rows_are_cut():
    data = dataset(corpus("en-fr", 20), corpus("en-de", 30, seed=1))
    for index, drawn, expected in ((3, 0.0, 0), (3, 0.99, 19), (25, 0.0, 20), (25, 0.99, 49)):
        for side in ("source", "target"):
            assert data.other_sentence(index, drawn, side).tolist() == data[expected][side].tolist()
    samples = [data[index] for index in range(20)]
    data.max_positions = 3
    tokens, _ = make("edit", data, samples, epoch=1)
    assert tokens.shape[1] == 3


def test_batches_have_them_on_request():
    data, plain = (
        dataset(corpus("en-fr", 8), parts=parts)
        for parts in ([HardNegatives("both", ALL_START)], [])
    )
    batch, without = (some.collater([some[index] for index in range(8)]) for some in (data, plain))
    negative = batch["net_input"]["negative"]
    assert (len(negative), batch["negative_of"].dtype) == (8, torch.bool)
    assert EOS not in negative
    assert "negative_of" not in without


def same_sentences(pairs, length):
    """Pairs of the same sentence of one-piece words, 10, 11, ..."""
    ids = torch.tensor([*range(10, 10 + length), EOS])
    return PairCorpus(
        "en-fr", *(ListDataset([ids] * pairs, np.full(pairs, length + 1)) for _ in range(2))
    )


def test_sides_and_pairs_of_words_are_drawn_evenly():
    data = dataset(same_sentences(3000, 6))
    samples = [data[index] for index in range(3000)]
    tokens, of = HardNegatives("swap", ALL_START).make(DrawnPairs(data, samples))
    assert np.abs(of.mean(axis=0) - 0.5).max() < 0.03
    changed = [tuple(np.flatnonzero(row != np.arange(10, 16))) for row in tokens]
    counts = Counter(changed)
    assert set(counts) == set(itertools.combinations(range(6), 2))
    assert max(abs(count / 3000 - 1 / 15) for count in counts.values()) < 0.02


def test_both_is_half_of_each():
    data = dataset(corpus("en-fr", 800, longest=40))
    samples = [data[index] for index in range(800)]
    tokens, of = make("both", data, samples)
    swapped = [
        sorted(row[row != PAD]) == sorted(sample["target" if of_source else "source"])
        for sample, row, (of_source, of_target) in zip(samples, tokens, of, strict=True)
        if of_source or of_target
    ]
    assert np.mean(swapped) == pytest.approx(0.5, abs=0.06)


def test_words_that_come_in_are_of_the_same_side_and_language_pair():
    rng, corpora, known = np.random.default_rng(0), [], {}
    for number, name in enumerate(("en-fr", "en-de")):
        sides = []
        for side in range(2):
            first = 4 + 14 * (2 * number + side)
            known[number, side] = set(range(first, first + 14))
            sentences = [
                torch.tensor([*rng.integers(first, first + 14, 5), EOS]) for _ in range(60)
            ]
            sides.append(ListDataset(sentences, np.full(60, 6)))
        corpora.append(PairCorpus(name, *sides))
    data = dataset(*corpora)
    samples = [data[index] for index in range(120)]
    tokens, of = HardNegatives("edit", ALL_START).make(DrawnPairs(data, samples))
    for index, (row, (of_source, of_target)) in enumerate(zip(tokens, of, strict=True)):
        if of_source or of_target:
            assert set(row[row != PAD].tolist()) <= known[index // 60, int(of_source)]
