"""Splitting of word pieces into the pieces that they were merged from, in training."""

import numpy as np
import pytest

from fairseq_lxsr.text.segmentations import expected_rows, merged_from, split_probability
from fairseq_lxsr.training.subword_dropout import SubwordDropout

# In the order of their merges. Single characters count as earlier than all merges.
PIECES = ["th", "the", "er", "ther", "there", "t", "h", "e", "r", "▁", "▁t", "▁the"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
NUM_SPECIAL = len(SPECIAL)
SYMBOLS = [*SPECIAL, *PIECES]
ID = {symbol: number for number, symbol in enumerate(SYMBOLS)}
HALVES = merged_from(SYMBOLS, NUM_SPECIAL)


def halves_of(piece):
    return [SYMBOLS[number] for number in HALVES[ID[piece]]]


def test_a_piece_is_merged_from_the_earliest_pieces():
    assert halves_of("the") == ["th", "e"]
    # It could also be merged from "th" and "er", but "er" is later than "the".
    assert halves_of("ther") == ["the", "r"]
    assert halves_of("there") == ["ther", "e"]
    assert halves_of("▁the") == ["▁", "the"]


@pytest.mark.parametrize("symbol", ["t", "▁", "<s>", "<unk>"])
def test_single_characters_and_special_symbols_have_no_halves(symbol):
    assert HALVES[ID[symbol]].tolist() == [-1, -1]


def test_the_rarer_a_piece_the_more_often_it_is_split():
    counts = np.array([0, 1, 3, 9_997])

    probabilities = split_probability(counts, everywhere=0, rare=3)

    # 3 / (3 + count).
    assert probabilities.tolist() == pytest.approx([1, 3 / 4, 1 / 2, 0.0003])


def test_without_a_count_of_rare_pieces_all_pieces_are_split_equally_often():
    counts = np.array([0, 1, 3, 9_997])

    probabilities = split_probability(counts, everywhere=0.1, rare=0)

    assert probabilities.tolist() == pytest.approx([0.1, 0.1, 0.1, 0.1])


def test_a_piece_is_split_if_either_probability_says_so():
    counts = np.array([0, 1, 3, 9_997])

    probabilities = split_probability(counts, everywhere=0.5, rare=3)

    # A piece stays whole with the probability 1 - 0.5, times 1 - 3 / (3 + count).
    whole_probabilities = [0.5 * 0, 0.5 * 1 / 4, 0.5 * 1 / 2, 0.5 * 0.9997]
    assert (1 - probabilities).tolist() == pytest.approx(whole_probabilities)


def test_pieces_that_an_earlier_training_has_learned_are_not_split_more_often():
    counts = np.array([0, 0, 1, 9_997])
    before = np.array([0, 0.2, 1, 1], np.float32)

    probabilities = split_probability(counts, everywhere=0, rare=3, before=before)

    # The counts alone would give 1, 1, 3 / 4 and 0.0003.
    assert probabilities.tolist() == pytest.approx([0, 0.2, 3 / 4, 0.0003])


def test_learned_pieces_are_split_at_least_as_often_as_the_option_for_all_pieces_says():
    counts = np.array([0, 0, 1, 9_997])
    before = np.array([0, 0.2, 1, 1], np.float32)

    probabilities = split_probability(counts, everywhere=0.5, rare=3, before=before)

    # The last two as if there had been no earlier training: 1 - 0.5 x 1 / 4, and 1 - 0.5 x 0.9997.
    assert probabilities.tolist() == pytest.approx([0.5, 0.5, 0.875, 0.50015])


@pytest.mark.parametrize(
    ("everywhere", "rare"),
    [
        pytest.param(0, 3, id="rare pieces"),
        pytest.param(0.1, 3, id="all pieces, rare ones more often"),
        pytest.param(0.1, 0, id="all pieces equally"),
    ],
)
def test_a_resumed_training_splits_as_before(everywhere, rare):
    counts = np.array([0, 1, 100, 10_000])
    before = np.array([0.05, 0.3, 0.6, 0], np.float32)
    started = split_probability(counts, everywhere, rare, before)

    resumed = split_probability(counts, everywhere, rare, before=started)

    assert resumed.tolist() == started.tolist()


def random_table(rng):
    """Embeddings of all symbols, in three dimensions."""
    return rng.normal(size=(len(SYMBOLS), 3))


def test_an_expected_row_is_the_mean_of_the_row_and_its_split_weighted_by_the_probability():
    rng = np.random.default_rng(1)
    table = random_table(rng)
    probability = rng.random(len(SYMBOLS))

    def expected_row(piece):
        first, second = HALVES[piece]
        if first < 0:
            return table[piece]
        whole = table[piece]
        split = expected_row(first) + expected_row(second)
        return (1 - probability[piece]) * whole + probability[piece] * split

    rows = expected_rows(table, HALVES, probability)

    for piece in range(len(SYMBOLS)):
        np.testing.assert_allclose(rows[piece], expected_row(piece), rtol=1e-12)


def test_expected_rows_without_splits_are_the_rows_of_the_table():
    table = random_table(np.random.default_rng(1))
    probability = np.zeros(len(SYMBOLS))

    rows = expected_rows(table, HALVES, probability)

    assert (rows == table).all()


def test_expected_rows_are_the_mean_of_the_rows_that_training_reads():
    rng = np.random.default_rng(1)
    table = random_table(rng)
    probability = rng.random(len(SYMBOLS)).astype(np.float32)
    drop_subwords = SubwordDropout(SYMBOLS, NUM_SPECIAL, probability)
    sentence = np.array([ID["there"], ID["▁the"], ID["h"]])
    num_draws = 20_000

    drawn_sentences = drop_subwords(
        [sentence] * num_draws, epoch=1, index=np.arange(num_draws), side=0
    )

    mean = np.mean([table[ids].sum(axis=0) for ids in drawn_sentences], axis=0)
    expected = expected_rows(table, HALVES, probability)[sentence].sum(axis=0)
    # The standard error of a mean of 20,000 draws is about 0.01.
    np.testing.assert_allclose(mean, expected, atol=0.05)


@pytest.fixture
def long_piece_symbols():
    """40 characters, and their first two, their first three, and so on up to all 40.

    So the last symbol is merged from left to right, in 39 steps.
    """
    characters = [chr(0x4E00 + number) for number in range(40)]
    symbols = ["<s>", *characters]
    for length in range(2, 41):
        symbols.append("".join(characters[:length]))
    return symbols


# The 40 single characters follow one special symbol.
CHARACTER_IDS = list(range(1, 41))


def test_training_splits_the_longest_piece_into_characters_if_it_splits_always(long_piece_symbols):
    longest = len(long_piece_symbols) - 1
    drop_subwords = SubwordDropout(long_piece_symbols, 1, 1.0)

    [parts] = drop_subwords([np.array([longest])], epoch=1, index=np.zeros(1, np.int64), side=0)

    assert parts.tolist() == CHARACTER_IDS


def test_the_expected_row_of_the_longest_piece_is_the_sum_of_its_characters_if_it_is_always_split(
    long_piece_symbols,
):
    longest = len(long_piece_symbols) - 1
    table = np.eye(len(long_piece_symbols))
    halves = merged_from(long_piece_symbols, 1)

    rows = expected_rows(table, halves, probability=np.ones(len(long_piece_symbols)))

    assert rows[longest].tolist() == table[CHARACTER_IDS].sum(axis=0).tolist()
