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
        product = PackedLinear(linear)(x)

    expected = nn.functional.linear(x, linear.weight, linear.bias)
    assert product.dtype is dtype
    torch.testing.assert_close(product, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.skipif(
    not can_pack(torch.float32), reason="this processor or build of torch packs nothing"
)
def test_packed_layers_take_input_that_is_not_contiguous():
    """T-LASER has such input."""
    linear = nn.Linear(24, 40)
    x = torch.randn(3, 9, 24)[:, :4]
    assert not x.is_contiguous()

    with torch.inference_mode():
        product = PackedLinear(linear)(x)

    torch.testing.assert_close(product, linear(x), atol=1e-5, rtol=1e-5)


class LinearSubclass(nn.Linear):
    """A layer that may compute something else."""


@pytest.mark.skipif(
    not can_pack(torch.float32), reason="this processor or build of torch packs nothing"
)
def test_linear_layers_are_packed():
    network = nn.Sequential(nn.Linear(4, 4))
    pack_linears(network)
    assert type(network[0]) is PackedLinear


@pytest.mark.parametrize(
    "layer",
    [LinearSubclass(4, 4), nn.LayerNorm(4), nn.Linear(4, 4).double()],
    ids=["subclass", "norm", "float64"],
)
def test_other_layers_and_types_are_not_packed(layer):
    network = nn.Sequential(layer)
    pack_linears(network)
    assert network[0] is layer


def test_nothing_is_packed_on_other_processors(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    network = nn.Sequential(nn.Linear(4, 4))
    pack_linears(network)
    assert type(network[0]) is nn.Linear
