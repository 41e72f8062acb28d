"""Mends `--amp` of fairseq 0.12.2, which divides the gradients of a step by the loss scale twice.

Its `clip_grad_norm` unscales the gradients of the optimizer of torch, and its `step` gives the scaler the optimizer of
fairseq around it, whose gradients the scaler takes for scaled ones. Adam forgives that until a gradient comes near
`--adam-eps`; with weight decay added to the gradient (L2), decay is all that is left.
"""

from fairseq.optim.amp_optimizer import AMPOptimizer


def step(self: AMPOptimizer) -> None:
    """Update the weights by the gradients that `clip_grad_norm` has unscaled; not where one is not finite."""
    self.scaler.step(self.optimizer)
    self.scaler.update()


AMPOptimizer.step = step
