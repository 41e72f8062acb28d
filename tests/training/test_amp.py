"""`--amp`: fairseq's optimizer around one of ours takes the steps of a run without loss scale."""

import pytest
import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from test_adam import optimizer

# The import patches AMPOptimizer.
from fairseq_lxsr.training import fairseq_patches  # noqa: F401


def weight_after_a_step(loss_scale: float, gradient: float) -> torch.Tensor:
    """A weight of ones after a step of `AMPOptimizer` with a gradient and a loss scale."""
    weight = torch.nn.Parameter(torch.ones(3))
    # The constructor requires CUDA.
    amp = AMPOptimizer.__new__(AMPOptimizer)
    amp.fp32_optimizer = optimizer("torch_adam", [weight])
    amp._grad_scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale)
    amp.min_loss_scale = 1e-4
    amp.backward((weight * gradient).sum())
    amp.clip_grad_norm(0)
    amp.step()
    return weight.detach()


@pytest.mark.parametrize("loss_scale", [128, 2.0**20])
def test_a_step_does_not_depend_on_the_loss_scale(loss_scale):
    weight = weight_after_a_step(loss_scale, gradient=1e-4)
    assert (weight != 1).all()
    weight_without_scale = weight_after_a_step(loss_scale=1, gradient=1e-4)
    torch.testing.assert_close(weight, weight_without_scale, rtol=1e-6, atol=0)


@pytest.mark.parametrize("loss_scale", [128, 2.0**20])
def test_a_gradient_that_is_not_finite_makes_no_step(loss_scale):
    weight = weight_after_a_step(loss_scale, gradient=float("inf"))
    assert (weight == 1).all()
