"""Linear layers whose weights are laid out once, against torch's own."""

import pytest
import torch
from torch import nn

from fairseq_lxsr.modules.packed_linear import PackedLinear, can_pack, pack_linears

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (3, 5, 24), (2, 64, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_same_products(dtype, shape, bias):
    if not can_pack(dtype):
        pytest.skip("this processor or build of torch packs nothing")
    torch.manual_seed(1)
    linear, x = nn.Linear(24, 40, bias).to(dtype), torch.randn(shape).to(dtype)
    with torch.inference_mode():
        found, exact = PackedLinear(linear)(x), nn.functional.linear(x, linear.weight, linear.bias)
    assert found.dtype is dtype
    torch.testing.assert_close(found, exact, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.skipif(
    not can_pack(torch.float32), reason="this processor or build of torch packs nothing"
)
def test_input_with_gaps():
    linear, x = nn.Linear(24, 40), torch.randn(3, 9, 24)[:, :4]  # as T-LASER has it
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(x), linear(x), atol=1e-5, rtol=1e-5)


def test_other_layers_stay(monkeypatch):
    class Other(nn.Linear):
        pass

    network = nn.Sequential(
        nn.Linear(4, 4), Other(4, 4), nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 4).double())
    )
    pack_linears(network)
    packed = PackedLinear if can_pack(torch.float32) else nn.Linear
    assert [type(part) for part in network] == [packed, Other, nn.LayerNorm, nn.Sequential]
    assert type(network[3][0]) is nn.Linear  # torch computes double
    # nor is anything packed without the operations
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    network = nn.Sequential(nn.Linear(4, 4))
    pack_linears(network)
    assert type(network[0]) is nn.Linear
