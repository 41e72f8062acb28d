"""Random numbers of samples: they are uniform, and a resumed training draws the same."""

import numpy as np
import pytest

from fairseq_lxsr.training.draws import ContextDraw, Draw, uniform

INDICES = np.arange(100_000)
# Arguments: seed, epoch, index and draw.


def test_numbers_are_uniform():
    numbers = uniform(1, 1, INDICES, 0)
    assert abs(numbers.mean() - 0.5) < 0.005
    counts_of_tenths, _ = np.histogram(numbers, 10, (0, 1))
    assert np.abs(counts_of_tenths - len(INDICES) / 10).max() < 400


@pytest.mark.parametrize(
    ("seed", "epoch", "draw", "shift"),
    [(2, 1, 0, 0), (1, 2, 0, 0), (1, 1, 1, 0), (1, 1, 0, 1)],
    ids=["seed", "epoch", "draw", "index"],
)
def test_numbers_are_independent_of_those_of_another(seed, epoch, draw, shift):
    numbers = uniform(1, 1, INDICES, 0)
    other_numbers = uniform(seed, epoch, INDICES + shift, draw)
    correlation = np.corrcoef(numbers, other_numbers)[0, 1]
    assert abs(correlation) < 0.02


def test_seed_and_epoch_cannot_be_exchanged():
    numbers = uniform(2, 1, INDICES, 0)
    exchanged = uniform(1, 2, INDICES, 0)
    correlation = np.corrcoef(numbers, exchanged)[0, 1]
    assert abs(correlation) < 0.02


def test_the_numbers_of_draws_do_not_change():
    """A training that is resumed by a newer version must draw the same; 8 and 9 are not used."""
    assert [draw.value for draw in Draw] == [0, 1, 2, 3, 4, 5, 6, 7, *range(10, 17)]
    assert [draw.value for draw in ContextDraw] == [0, 1]


def test_a_draw_counts_as_its_number():
    indices = np.arange(3)
    assert Draw.WORD_DROPOUT == 7
    expected = uniform(1, 2, indices, 7)
    assert uniform(1, 2, indices, Draw.WORD_DROPOUT).tolist() == expected.tolist()
