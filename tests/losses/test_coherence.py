import math

import pytest
import torch

from fairseq_lxsr.losses import coherence_regression_loss, context_classification_loss


def test_the_classification_loss_equals_a_value_worked_out_by_hand():
    # Their probabilities are sigmoid(0) = 1/2 and sigmoid(log 3) = 3/4.
    scores = torch.tensor([0.0, math.log(3), math.log(3)])
    labels = torch.tensor([1.0, 1.0, 0.0])

    loss = context_classification_loss(scores, labels)

    probabilities_of_labels = [1 / 2, 3 / 4, 1 - 3 / 4]
    assert loss.item() == pytest.approx(-math.log(math.prod(probabilities_of_labels)))


def test_the_regression_loss_equals_a_value_worked_out_by_hand():
    scores = torch.tensor([0.5, -1.0])
    labels = torch.tensor([0.75, 1.0])

    loss = coherence_regression_loss(scores, labels)

    assert loss.item() == pytest.approx((0.75 - 0.5) ** 2 + (1 - -1) ** 2)


def test_loss_and_gradient_of_scores_far_from_the_label_are_finite():
    scores = torch.tensor([1000.0, -1000.0]).requires_grad_()
    labels = torch.tensor([0.0, 1.0])

    loss = context_classification_loss(scores, labels)

    # For a score s far from the label, -log sigmoid(-|s|) = log(1 + exp |s|), which is nearly |s|.
    assert loss.item() == pytest.approx(1000 + 1000)
    loss.backward()
    assert scores.grad.isfinite().all()


def test_scores_and_labels_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 1\).*\(3,\)"):
        coherence_regression_loss(torch.ones(3, 1), torch.ones(3))
