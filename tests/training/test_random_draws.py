"""Random numbers of samples: they are uniform, and a resumed training draws the same."""

import numpy as np

from fairseq_lxsr.training.draws import ContextDraw, Draw, uniform


def test_numbers_are_uniform_and_independent_of_those_of_another_seed_epoch_index_or_draw():
    indices = np.arange(100_000)
    numbers = uniform(1, 1, indices, 0)
    assert abs(numbers.mean() - 0.5) < 0.005
    assert np.abs(np.histogram(numbers, 10, (0, 1))[0] - 10_000).max() < 400
    with_another_seed = uniform(2, 1, indices, 0)
    with_another_epoch = uniform(1, 2, indices, 0)
    with_another_draw = uniform(1, 1, indices, 1)
    with_other_indices = uniform(1, 1, indices + 1, 0)
    correlations = np.corrcoef(
        [numbers, with_another_seed, with_another_epoch, with_another_draw, with_other_indices]
    )
    assert np.abs(correlations[0, 1:]).max() < 0.02
    # Seed 2 of epoch 1 is not epoch 2 of seed 1.
    assert abs(correlations[1, 2]) < 0.02


def test_the_numbers_of_draws_do_not_change():
    """A training that is resumed by a newer version draws the same."""
    assert [draw.value for draw in Draw] == [*range(8), *range(10, 17)]
    assert [draw.value for draw in ContextDraw] == [0, 1]
    numbers = uniform(1, 2, np.arange(3), Draw.WORD_DROPOUT)
    assert numbers.tolist() == uniform(1, 2, np.arange(3), 7).tolist()
