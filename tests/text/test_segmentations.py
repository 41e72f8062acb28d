"""Splitting of word pieces into the pieces that they were merged from, in training."""

import numpy as np
import pytest

from fairseq_lxsr.text.segmentations import expected_rows, merged_from, split_probability
from fairseq_lxsr.training.subword_dropout import SubwordDropout

PIECES = ["th", "the", "er", "ther", "there", "t", "h", "e", "r", "▁", "▁t", "▁the"]
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", *PIECES]
ID = {symbol: number for number, symbol in enumerate(SYMBOLS)}
HALVES = merged_from(SYMBOLS, 4)


def halves_of(piece):
    return [SYMBOLS[number] for number in HALVES[ID[piece]]]


def test_a_piece_is_merged_from_the_earliest_pieces():
    assert halves_of("the") == ["th", "e"]
    # It could also be merged from "th" and "er", but "er" is later than "the".
    assert halves_of("ther") == ["the", "r"]
    assert halves_of("there") == ["ther", "e"]
    assert halves_of("▁the") == ["▁", "the"]
    for single_letter_or_symbol in ("t", "▁", "<s>", "<unk>"):
        assert HALVES[ID[single_letter_or_symbol]].tolist() == [-1, -1]


def test_the_rarer_a_piece_the_more_often_it_is_split():
    counts = np.array([0, 1, 3, 9_997])
    assert split_probability(counts, 0, 3).tolist() == pytest.approx([1, 0.75, 0.5, 0.0003])
    assert split_probability(counts, 0.1, 0).tolist() == pytest.approx([0.1] * 4)
    assert split_probability(counts, 0.5, 3).tolist() == pytest.approx([1, 0.875, 0.75, 0.50015])


def test_pieces_that_an_earlier_training_has_learned_are_not_split_more_often():
    counts = np.array([0, 0, 1, 9_997])
    before = np.array([0, 0.2, 1, 1], np.float32)
    probabilities = split_probability(counts, 0, 3, before)
    assert probabilities.tolist() == pytest.approx([0, 0.2, 0.75, 0.0003])
    probabilities = split_probability(counts, 0.5, 3, before)
    assert probabilities.tolist() == pytest.approx([0.5, 0.5, 0.875, 0.50015])


def test_a_resumed_training_splits_as_before():
    counts = np.array([0, 1, 100, 10_000])
    before = np.array([0.05, 0.3, 0.6, 0], np.float32)
    for options in ((0, 3), (0.1, 3), (0.1, 0)):
        started = split_probability(counts, *options, before)
        resumed = split_probability(counts, *options, started)
        assert resumed.tolist() == started.tolist()


def test_expected_rows_are_those_of_the_recursion():
    rng = np.random.default_rng(1)
    table = rng.normal(size=(len(SYMBOLS), 3))
    probability = rng.random(len(SYMBOLS))

    def expected(piece):
        if HALVES[piece][0] < 0:
            return table[piece]
        first, second = HALVES[piece]
        share = probability[piece]
        return (1 - share) * table[piece] + share * (expected(first) + expected(second))

    rows = expected_rows(table, HALVES, probability)
    for piece in range(len(SYMBOLS)):
        np.testing.assert_allclose(rows[piece], expected(piece), rtol=1e-12)
    assert (expected_rows(table, HALVES, np.zeros(len(SYMBOLS))) == table).all()


def test_expected_rows_are_the_mean_of_the_rows_that_training_reads():
    rng = np.random.default_rng(1)
    table = rng.normal(size=(len(SYMBOLS), 3))
    probability = rng.random(len(SYMBOLS)).astype(np.float32)
    drop = SubwordDropout(SYMBOLS, 4, probability)
    sentence = np.array([ID["there"], ID["▁the"], ID["h"]])
    num_draws = 20_000
    drawn_sentences = drop([sentence] * num_draws, 1, np.arange(num_draws), 0)
    mean = np.mean([table[ids].sum(axis=0) for ids in drawn_sentences], axis=0)
    expected = expected_rows(table, HALVES, probability)[sentence].sum(axis=0)
    np.testing.assert_allclose(mean, expected, atol=0.05)


def test_training_and_expected_rows_split_the_longest_piece_into_characters():
    """The piece of 40 characters is merged from left to right, in 39 steps."""
    characters = [chr(0x4E00 + number) for number in range(40)]
    symbols = ["<s>", *characters]
    for length in range(2, 41):
        symbols.append("".join(characters[:length]))
    longest = len(symbols) - 1
    drop = SubwordDropout(symbols, 1, 1.0)
    [parts] = drop([np.array([longest])], 1, np.zeros(1, np.int64), 0)
    assert parts.tolist() == list(range(1, 41))
    table = np.eye(len(symbols))
    rows = expected_rows(table, merged_from(symbols, 1), np.ones(len(symbols)))
    assert rows[longest].tolist() == table[parts].sum(axis=0).tolist()
