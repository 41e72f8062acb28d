import numpy as np
import pytest

from fairseq_lxsr.text.segmentations import expected_rows, merged_from, split_probability
from fairseq_lxsr.training.subword_dropout import SubwordDropout

PIECES = ["th", "the", "er", "ther", "there", "t", "h", "e", "r", "▁", "▁t", "▁the"]
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", *PIECES]
ID = {symbol: number for number, symbol in enumerate(SYMBOLS)}
HALVES = merged_from(SYMBOLS, 4)


def test_pieces_come_from_the_earliest_merges():
    assert [SYMBOLS[i] for i in HALVES[ID["the"]]] == ["th", "e"]
    # th + er was possible, er is later than the
    assert [SYMBOLS[i] for i in HALVES[ID["ther"]]] == ["the", "r"]
    assert [SYMBOLS[i] for i in HALVES[ID["there"]]] == ["ther", "e"]
    assert [SYMBOLS[i] for i in HALVES[ID["▁the"]]] == ["▁", "the"]
    for alone in ("t", "▁", "<s>", "<unk>"):
        assert HALVES[ID[alone]].tolist() == [-1, -1]


def test_the_rarer_a_piece_the_more_often_it_is_split():
    counts = np.array([0, 1, 3, 9_997])
    assert split_probability(counts, 0, 3).tolist() == pytest.approx([1, 0.75, 0.5, 0.0003])
    assert split_probability(counts, 0.1, 0).tolist() == pytest.approx([0.1] * 4)
    assert split_probability(counts, 0.5, 3).tolist() == pytest.approx([1, 0.875, 0.75, 0.50015])


def test_what_another_text_has_taught_is_not_split_more_often():
    counts, before = np.array([0, 0, 1, 9_997]), np.array([0, 0.2, 1, 1], np.float32)
    assert split_probability(counts, 0, 3, before).tolist() == pytest.approx([0, 0.2, 0.75, 0.0003])
    assert split_probability(counts, 0.5, 3, before).tolist() == pytest.approx(
        [0.5, 0.5, 0.875, 0.50015]
    )


@pytest.mark.parametrize("options", [(0, 3), (0.1, 3), (0.1, 0)])
def test_training_that_is_resumed_splits_as_before(options):
    counts, before = np.array([0, 1, 100, 10_000]), np.array([0.05, 0.3, 0.6, 0], np.float32)
    once = split_probability(counts, *options, before)
    assert split_probability(counts, *options, once).tolist() == once.tolist()


def test_expected_rows_are_those_of_the_recursion():
    rng = np.random.default_rng(1)
    table, probability = rng.normal(size=(len(SYMBOLS), 3)), rng.random(len(SYMBOLS))

    def expected(piece):
        if HALVES[piece][0] < 0:
            return table[piece]
        share = probability[piece]
        return (1 - share) * table[piece] + share * sum(expected(part) for part in HALVES[piece])

    found = expected_rows(table, HALVES, probability)
    np.testing.assert_allclose(
        found, [expected(piece) for piece in range(len(SYMBOLS))], rtol=1e-12
    )
    assert (expected_rows(table, HALVES, np.zeros(len(SYMBOLS))) == table).all()


def test_expected_rows_are_the_mean_of_what_training_reads():
    rng = np.random.default_rng(1)
    table, probability = (
        rng.normal(size=(len(SYMBOLS), 3)),
        rng.random(len(SYMBOLS)).astype(np.float32),
    )
    drop = SubwordDropout(SYMBOLS, 4, probability)
    sentence, draws = np.array([ID["there"], ID["▁the"], ID["h"]]), 20_000
    read = drop([sentence] * draws, 1, np.arange(draws), 0)
    mean = np.mean([table[ids].sum(axis=0) for ids in read], axis=0)
    np.testing.assert_allclose(
        mean, expected_rows(table, HALVES, probability)[sentence].sum(axis=0), atol=0.05
    )


def test_training_takes_the_longest_piece_apart_as_far_as_the_expected_rows_do():
    """Merged from left to right, one character after the other: 40 characters take 39 rounds."""
    symbols = ["<s>", *(chr(0x4E00 + number) for number in range(40))]
    symbols += ["".join(symbols[1 : 1 + length]) for length in range(2, 41)]
    longest, halves = len(symbols) - 1, merged_from(symbols, 1)
    parts = SubwordDropout(symbols, 1, 1.0)([np.array([longest])], 1, np.zeros(1, np.int64), 0)[0]
    assert parts.tolist() == list(range(1, 41))
    table = np.eye(len(symbols))
    assert (
        expected_rows(table, halves, np.ones(len(symbols)))[longest].tolist()
        == table[parts].sum(axis=0).tolist()
    )
