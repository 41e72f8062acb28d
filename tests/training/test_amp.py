"""`--amp`: fairseq's optimizer around one of ours takes the steps of a run without loss scale."""

import pytest
import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from test_adam import optimizer

# The import patches AMPOptimizer.
from fairseq_lxsr.training import fairseq_patches  # noqa: F401


def after_step(scale: float, gradient: float) -> torch.Tensor:
    """A weight of ones after a step with a gradient and a loss scale."""
    weight = torch.nn.Parameter(torch.ones(3))
    # The constructor requires CUDA.
    amp = AMPOptimizer.__new__(AMPOptimizer)
    amp.fp32_optimizer = optimizer("torch_adam", [weight])
    amp._grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    amp.min_loss_scale = 1e-4
    amp.backward((weight * gradient).sum())
    amp.clip_grad_norm(0)
    amp.step()
    return weight.detach()


@pytest.mark.parametrize("scale", [128, 2.0**20])
def test_the_loss_scale_changes_no_step(scale):
    weight = after_step(scale, 1e-4)
    assert (weight != 1).all()
    torch.testing.assert_close(weight, after_step(1, 1e-4), rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [128, 2.0**20])
def test_a_gradient_that_is_not_finite_makes_no_step(scale):
    assert (after_step(scale, float("inf")) == 1).all()
