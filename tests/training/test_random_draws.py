"""Random numbers of samples: they look random, and no training draws others than before."""

import numpy as np

from fairseq_lxsr.training.draws import ContextDraw, Draw, uniform


def test_uniform_numbers_look_uniform_and_differ_by_counter():
    numbers = uniform(1, 1, np.arange(100_000), 0)
    assert abs(numbers.mean() - 0.5) < 0.005
    assert np.abs(np.histogram(numbers, 10, (0, 1))[0] - 10_000).max() < 400
    # seed, epoch, first index, draw
    changes = ((2, 1, 0, 0), (1, 2, 0, 0), (1, 1, 0, 1), (1, 1, 1, 0))
    all_numbers = [
        numbers,
        *(uniform(seed, at, np.arange(100_000) + first, draw) for seed, at, first, draw in changes),
    ]
    off = np.abs(np.corrcoef(all_numbers))
    assert off[0, 1:].max() < 0.02
    assert off[1, 2] < 0.02  # seed and epoch do not change places


def test_every_draw_keeps_its_number():
    """A training that is resumed by a newer version draws the same; that no two are equal, the
    class itself checks.
    """
    assert [draw.value for draw in Draw] == [*range(8), *range(10, 17)]
    assert [draw.value for draw in ContextDraw] == [0, 1]
    assert (
        uniform(1, 2, np.arange(3), Draw.WORD_DROPOUT).tolist()
        == uniform(1, 2, np.arange(3), 7).tolist()
    )
