"""What holds of every loss: refused options, the order of the pairs, and float32 whatever the
precision is.
"""

from functools import partial

import pytest
import torch

from fairseq_lxsr import losses

DISTANCES = [
    partial(losses.distance_constraint, metric=metric)
    for metric in ("norm", "norm_of_mean", "angular")
]
OF_PAIRS = [losses.alignment_loss, losses.similarity_loss, *DISTANCES]
OF_SCORES = [losses.context_classification_loss, losses.coherence_regression_loss]
IDS, TARGET = torch.tensor([[7, 5]]), (torch.tensor([[7]]), torch.ones(1, 1))
UNKNOWN = {
    "similarity 'l2'": partial(
        losses.alignment_loss, torch.ones(2, 2), torch.ones(2, 2), similarity="l2"
    ),
    "metric 'cosine'": partial(
        losses.distance_constraint, torch.ones(2, 3), torch.ones(2, 3), metric="cosine"
    ),
    "form 'kl'": partial(losses.distillation_loss, torch.ones(2, 3), torch.ones(2, 3), "kl"),
    "weighting 'idf'": partial(losses.bag_of_pieces, IDS, 1, "idf"),
    "overlap 'max'": partial(losses.mix, TARGET, TARGET, "max"),
    "objective 'mlm'": partial(losses.sentence_targets, "mlm", (IDS, IDS), (IDS, IDS), 1),
}


@pytest.mark.parametrize("message", UNKNOWN)
def test_unknown_options_are_refused(message):
    with pytest.raises(ValueError, match=message):
        UNKNOWN[message]()


@pytest.mark.parametrize("loss", OF_PAIRS)
def test_order_of_the_pairs_changes_nothing(loss):
    torch.manual_seed(0)
    u, v, order = *torch.randn(2, 6, 4, dtype=torch.double), torch.randperm(6)
    torch.testing.assert_close(loss(u[order], v[order]), loss(u, v))


@pytest.mark.parametrize("loss", OF_PAIRS + OF_SCORES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_the_loss_of_float32(loss, dtype):
    torch.manual_seed(0)
    first, second = torch.randn(2, 6, 4).to(dtype)
    found, expected = loss(first, second), loss(first.float(), second.float())
    torch.testing.assert_close(found, expected, rtol=0, atol=0)  # the types too


@pytest.mark.parametrize("loss", OF_PAIRS)
def test_float32_inside_autocast(loss):
    torch.manual_seed(0)
    u, v = torch.randn(2, 8, 64)
    with torch.autocast("cpu", torch.bfloat16):
        inside = loss(u, v)
    torch.testing.assert_close(inside, loss(u, v), rtol=0, atol=0)
