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
]
SYMBOLS += ["<mask>"]
ID = {symbol: number for number, symbol in enumerate(SYMBOLS)}


def spell(ids):
    return "".join(SYMBOLS[i] for i in ids)


def one(drop, ids, epoch, index, side):
    return drop([ids], epoch, np.array([index]), side)[0]


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_the_text_stays_the_same(probability):
    drop = SubwordDropout(SYMBOLS[:-1], 4, probability)
    ids = np.array([ID["▁the"], ID["▁"], ID["there"], ID["<unk>"], ID["er"]] * 20)
    lengths = set()
    for index in range(20):
        longer = one(drop, ids, 1, index, 0)
        assert spell(longer) == spell(ids)
        lengths.add(len(longer))
    if probability == 0:
        assert lengths == {100}
    elif probability == 1:
        assert lengths == {len(spell(ids).replace("<unk>", "u"))}  # characters only
    else:
        assert len(lengths) > 5


def test_a_function_of_seed_epoch_index_and_side():
    drop, ids = SubwordDropout(SYMBOLS[:-1], 4, 0.5), np.array([ID["there"], ID["▁the"]] * 30)
    same = one(drop, ids, 3, 7, 1)
    assert one(drop, ids, 3, 7, 1).tolist() == same.tolist()
    others = [one(drop, ids, *place) for place in ((4, 7, 1), (3, 8, 1), (3, 7, 0))]
    others.append(one(SubwordDropout(SYMBOLS, 4, 0.5, seed=2), ids, 3, 7, 1))
    assert all(other.tolist() != same.tolist() for other in others)


def test_each_piece_as_often_as_asked():
    drop, ids = SubwordDropout(SYMBOLS[:-1], 4, 0.1), np.full(20_000, ID["er"])
    assert len(one(drop, ids, 1, 0, 0)) - len(ids) == pytest.approx(2_000, abs=150)
    probability = np.zeros(len(SYMBOLS), np.float32)
    probability[[ID["er"], ID["there"]]] = 0.2, 1
    drop, each = SubwordDropout(SYMBOLS, 4, probability), 10_000
    pieces = [
        SYMBOLS[i] for i in one(drop, np.repeat([ID["er"], ID["there"], ID["th"]], each), 1, 0, 0)
    ]
    assert pieces.count("er") == pytest.approx(8_000, abs=150)
    assert pieces.count("ther") == each
    assert pieces.count("th") == each
    assert "there" not in pieces


def test_a_batch_is_split_as_its_sentences_alone():
    drop = SubwordDropout(SYMBOLS[:-1], 4, 0.5)
    rng = np.random.default_rng(1)
    sentences = [rng.integers(4, len(SYMBOLS) - 1, length) for length in (1, 7, 3, 0, 12)]
    index = np.array([8, 2, 30, 4, 11])
    for ids, number, together in zip(sentences, index, drop(sentences, 5, index, 1), strict=True):
        assert together.tolist() == one(drop, ids, 5, number, 1).tolist()
