"""Word pieces are split at random in training, and each text keeps its characters."""

import numpy as np
import pytest

from fairseq_lxsr.training.subword_dropout import SubwordDropout

SYMBOLS = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    "th",
    "the",
    "er",
    "ther",
    "there",
    "t",
    "h",
    "e",
    "r",
    "▁",
    "▁t",
    "▁the",
    "<mask>",
]
ID = {symbol: number for number, symbol in enumerate(SYMBOLS)}


def spell(ids):
    return "".join(SYMBOLS[number] for number in ids)


def split(drop, ids, epoch=1, index=0, side=0):
    """The pieces of a single sentence."""
    [pieces] = drop([ids], epoch, np.array([index]), side)
    return pieces.tolist()


# 20 times five pieces, of which three may be split: `▁` is one character, and `<unk>` has no parts.
TEXT = np.array([ID["▁the"], ID["▁"], ID["there"], ID["<unk>"], ID["er"]] * 20)


def lengths_after_splitting(probability):
    """The numbers of pieces of a text at 20 indices; the text itself never changes."""
    drop = SubwordDropout(SYMBOLS[:-1], 4, probability)
    lengths = set()
    for index in range(20):
        pieces = split(drop, TEXT, index=index)
        assert spell(pieces) == spell(TEXT)
        lengths.add(len(pieces))
    return lengths


def test_without_probability_no_piece_is_split():
    assert lengths_after_splitting(0.0) == {len(TEXT)}


def test_with_probability_one_all_pieces_are_split_into_characters():
    number_of_characters = len(spell(TEXT).replace("<unk>", "u"))
    assert lengths_after_splitting(1.0) == {number_of_characters}


def test_the_same_text_is_split_differently_at_different_indices():
    numbers_of_pieces = lengths_after_splitting(0.3)

    # Different splits may have the same number of pieces. But of 60 pieces that may be split, on
    # average 18 are, more or less by four, so 20 indices have more than five numbers.
    assert len(numbers_of_pieces) > 5


def test_the_pieces_depend_only_on_seed_epoch_index_and_side():
    symbols = SYMBOLS[:-1]
    drop = SubwordDropout(symbols, 4, 0.5)
    ids = np.array([ID["there"], ID["▁the"]] * 30)

    pieces = split(drop, ids, epoch=3, index=7, side=1)

    assert split(drop, ids, epoch=3, index=7, side=1) == pieces
    assert split(drop, ids, epoch=4, index=7, side=1) != pieces
    assert split(drop, ids, epoch=3, index=8, side=1) != pieces
    assert split(drop, ids, epoch=3, index=7, side=0) != pieces
    with_another_seed = SubwordDropout(symbols, 4, 0.5, seed=2)
    assert split(with_another_seed, ids, epoch=3, index=7, side=1) != pieces


def test_pieces_are_split_with_the_given_probability():
    drop = SubwordDropout(SYMBOLS[:-1], 4, 0.1)
    # Each may be split into `e` and `r` only.
    ids = np.full(20_000, ID["er"])

    number_of_splits = len(split(drop, ids)) - len(ids)

    # Three times the standard deviation, sqrt(20,000 * 0.1 * 0.9) or 42, and a margin.
    assert number_of_splits == pytest.approx(0.1 * len(ids), abs=150)


def test_each_piece_may_have_a_probability_of_its_own():
    probability = np.zeros(len(SYMBOLS), np.float32)
    probability[ID["er"]] = 0.2
    probability[ID["there"]] = 1
    drop = SubwordDropout(SYMBOLS, 4, probability)
    ids = np.repeat([ID["er"], ID["there"], ID["th"]], 10_000)

    pieces = [SYMBOLS[number] for number in split(drop, ids)]

    # Three times the standard deviation, sqrt(10,000 * 0.2 * 0.8) or 40, and a margin.
    assert pieces.count("er") == pytest.approx((1 - 0.2) * 10_000, abs=150)
    # `there` is split into `ther` and `e`, which have a probability of zero.
    assert "there" not in pieces
    assert pieces.count("ther") == 10_000
    assert pieces.count("th") == 10_000


def test_sentences_of_a_batch_are_split_as_single_sentences():
    drop = SubwordDropout(SYMBOLS[:-1], 4, 0.5)
    rng = np.random.default_rng(1)
    sentences = [rng.integers(4, len(SYMBOLS) - 1, length) for length in (1, 7, 3, 0, 12)]
    indices = np.array([8, 2, 30, 4, 11])
    batch = drop(sentences, 5, indices, 1)
    for ids, index, pieces in zip(sentences, indices, batch, strict=True):
        assert pieces.tolist() == split(drop, ids, epoch=5, index=index, side=1)
