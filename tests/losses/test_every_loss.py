"""Properties of all losses: refused options, order of the pairs, and float32 in any precision."""

from functools import partial

import pytest
import torch

from fairseq_lxsr import losses

DISTANCES = [
    partial(losses.distance_constraint, metric=metric)
    for metric in ("norm", "norm_of_mean", "angular")
]
LOSSES_OF_PAIRS = [losses.alignment_loss, losses.similarity_loss, *DISTANCES]
LOSSES_OF_SCORES = [losses.context_classification_loss, losses.coherence_regression_loss]
ONES = torch.ones(2, 3)
IDS = torch.tensor([[7, 5]])
TARGET = (torch.tensor([[7]]), torch.ones(1, 1))
# A call with an unknown option, by the option that the message must name.
CALLS_WITH_UNKNOWN_OPTIONS = {
    "similarity 'l2'": partial(losses.alignment_loss, ONES, ONES, similarity="l2"),
    "metric 'cosine'": partial(losses.distance_constraint, ONES, ONES, metric="cosine"),
    "form 'kl'": partial(losses.distillation_loss, ONES, ONES, "kl"),
    "weighting 'idf'": partial(losses.bag_of_pieces, IDS, 1, "idf"),
    "overlap 'max'": partial(losses.mix, TARGET, TARGET, "max"),
    # `mlm` is an objective of single pieces, not of sentences.
    "objective 'mlm'": partial(losses.sentence_targets, "mlm", (IDS, IDS), (IDS, IDS), 1),
}


@pytest.mark.parametrize("option", CALLS_WITH_UNKNOWN_OPTIONS)
def test_unknown_options_are_refused_by_name(option):
    with pytest.raises(ValueError, match=option):
        CALLS_WITH_UNKNOWN_OPTIONS[option]()


@pytest.mark.parametrize("loss", LOSSES_OF_PAIRS)
def test_the_order_of_the_pairs_makes_no_difference(loss):
    torch.manual_seed(0)
    u, v = torch.randn(2, 6, 4, dtype=torch.double)
    order = torch.randperm(6)
    torch.testing.assert_close(loss(u[order], v[order]), loss(u, v))


@pytest.mark.parametrize("loss", LOSSES_OF_PAIRS + LOSSES_OF_SCORES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_the_loss_of_float32(loss, dtype):
    torch.manual_seed(0)
    # The two sides, or scores and labels.
    first, second = torch.randn(2, 6, 4).to(dtype)
    expected = loss(first.float(), second.float())
    # `assert_close` also compares the types.
    torch.testing.assert_close(loss(first, second), expected, rtol=0, atol=0)


@pytest.mark.parametrize("loss", LOSSES_OF_PAIRS)
def test_losses_inside_autocast_are_those_of_float32(loss):
    torch.manual_seed(0)
    u, v = torch.randn(2, 8, 64)
    with torch.autocast("cpu", torch.bfloat16):
        inside = loss(u, v)
    torch.testing.assert_close(inside, loss(u, v), rtol=0, atol=0)
