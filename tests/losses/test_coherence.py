import math

import pytest
import torch

from fairseq_lxsr.losses import coherence_regression_loss, context_classification_loss


def test_the_classification_loss_equals_a_value_worked_out_by_hand():
    # sigmoid(0) = 1/2, sigmoid(log 3) = 3/4
    scores = torch.tensor([0.0, math.log(3), math.log(3)])
    loss = context_classification_loss(scores, torch.tensor([1.0, 1.0, 0.0]))
    assert loss.item() == pytest.approx(math.log(2) + math.log(4 / 3) + math.log(4))


def test_the_regression_loss_equals_a_value_worked_out_by_hand():
    loss = coherence_regression_loss(torch.tensor([0.5, -1.0]), torch.tensor([0.75, 1.0]))
    assert loss.item() == pytest.approx(0.0625 + 4)


def test_the_loss_of_scores_far_from_the_label_is_finite():
    scores = torch.tensor([1000.0, -1000.0]).requires_grad_()
    loss = context_classification_loss(scores, torch.tensor([0.0, 1.0]))
    loss.backward()
    assert loss.item() == pytest.approx(2000)
    assert scores.grad.isfinite().all()


def test_scores_and_labels_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 1\).*\(3,\)"):
        coherence_regression_loss(torch.ones(3, 1), torch.ones(3))
