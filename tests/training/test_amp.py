"""`--amp`: fairseq's optimizer around one of ours takes the step that it would take without a loss
scale.
"""

import pytest
import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from test_adam import optimizer

from fairseq_lxsr.training import fairseq_patches as amp  # noqa: F401  what is tested


def scaled(scale: float, gradient: float) -> torch.Tensor:
    """Weights after a step, by a loss of this gradient that is multiplied by the scale."""
    weights = [torch.nn.Parameter(torch.ones(3))]
    wrapped = AMPOptimizer.__new__(AMPOptimizer)  # its constructor asks for CUDA
    wrapped.fp32_optimizer = optimizer("torch_adam", weights)
    wrapped._grad_scaler, wrapped.min_loss_scale = (
        torch.amp.GradScaler("cpu", init_scale=scale),
        1e-4,
    )
    wrapped.backward((weights[0] * gradient).sum())
    wrapped.clip_grad_norm(0)
    wrapped.step()
    return weights[0].detach()


@pytest.mark.parametrize("scale", [128, 2.0**20])
def test_the_loss_scale_changes_no_step(scale):
    torch.testing.assert_close(scaled(scale, 1e-4), scaled(1, 1e-4), rtol=1e-6, atol=0)
    assert (scaled(scale, 1e-4) != 1).all()
    assert (scaled(scale, float("inf")) == 1).all()  # a gradient that is not finite is left out
