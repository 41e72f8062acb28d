"""Linear layers in training, against torch's own."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairseq_lxsr.modules.linear import _Float32Linear, apply_linear, train_linear
from fairseq_lxsr.modules.packed_linear import can_pack

needs_packing = pytest.mark.skipif(not can_pack(torch.float32), reason="this processor or build of torch lacks them")


def gradients(compute, shape):
    """Returns: x W^T + b, and the gradients of x, W and b."""
    torch.manual_seed(1)
    x, weight, bias = torch.randn(shape), torch.randn(40, shape[-1]), torch.randn(40)
    inputs = [part.requires_grad_() for part in (x, weight, bias)]
    found = compute(*inputs)
    return found, *torch.autograd.grad((found * torch.randn(found.shape)).sum(), inputs)


@needs_packing
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (3, 5, 24), (2, 1, 513)])
def test_values_and_gradients(shape):
    for found, expected in zip(gradients(train_linear, shape), gradients(F.linear, shape), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


@needs_packing
def test_the_gradient_of_a_sum_has_strides_of_zero():
    x, weight, bias = torch.randn(6, 24), torch.randn(40, 24, requires_grad=True), torch.randn(40, requires_grad=True)
    train_linear(x, weight, bias).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(dim=0).expand(40, 24), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(bias.grad, torch.full((40,), 6.0))


@needs_packing
def test_only_training_in_float32_takes_the_other_way():
    layer, x = nn.Linear(4, 4), torch.randn(2, 3, 4)
    half, double = copy.deepcopy(layer).bfloat16(), copy.deepcopy(layer).double()

    def ways(layer, x):
        """Operations of the graph that autograd has of the result."""
        found, left = set(), [apply_linear(layer, x).grad_fn]
        while left:
            node = left.pop()
            if node is not None:
                found.add(type(node).__name__)
                left += [following for following, _ in node.next_functions]
        return found

    name = f"{_Float32Linear.__name__}Backward"
    assert name in ways(layer, x)
    for other, values in ((half, x.bfloat16()), (double, x.double()), (nn.Sequential(layer), x)):
        assert name not in ways(other, values)
    assert name not in ways(copy.deepcopy(layer).eval(), x)
    with torch.no_grad():
        assert not ways(layer, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert name not in ways(layer, x)
