"""Linear layers with weights that are packed once give the products of torch."""

import pytest
import torch
from torch import nn

from fairseq_lxsr.modules.packed_linear import PackedLinear, can_pack, pack_linears

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (3, 5, 24), (2, 64, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_layers_give_the_products_of_torch(dtype, shape, bias):
    if not can_pack(dtype):
        pytest.skip("this processor or build of torch packs nothing")
    torch.manual_seed(1)
    linear = nn.Linear(24, 40, bias).to(dtype)
    x = torch.randn(shape).to(dtype)
    with torch.inference_mode():
        result = PackedLinear(linear)(x)
        expected = nn.functional.linear(x, linear.weight, linear.bias)
    assert result.dtype is dtype
    torch.testing.assert_close(result, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.skipif(
    not can_pack(torch.float32), reason="this processor or build of torch packs nothing"
)
def test_packed_layers_take_input_that_is_not_contiguous():
    """T-LASER has such input."""
    linear = nn.Linear(24, 40)
    x = torch.randn(3, 9, 24)[:, :4]
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(x), linear(x), atol=1e-5, rtol=1e-5)


class Subclass(nn.Linear):
    pass


def test_only_linear_layers_in_float32_and_half_precision_are_packed():
    double = nn.Sequential(nn.Linear(4, 4).double())
    network = nn.Sequential(nn.Linear(4, 4), Subclass(4, 4), nn.LayerNorm(4), double)
    pack_linears(network)
    packed = PackedLinear if can_pack(torch.float32) else nn.Linear
    assert [type(layer) for layer in network] == [packed, Subclass, nn.LayerNorm, nn.Sequential]
    assert type(double[0]) is nn.Linear


def test_nothing_is_packed_on_other_processors(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    network = nn.Sequential(nn.Linear(4, 4))
    pack_linears(network)
    assert type(network[0]) is nn.Linear
