import pytest
import torch

from fairseq_lxsr.modules.dropout import Dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.75])
def test_values_are_dropped_with_the_probability_and_the_mean_is_kept(p, dtype):
    torch.manual_seed(0)
    # The number of values is not a multiple of four.
    x = torch.ones(333, 1001, dtype=dtype).requires_grad_()
    y = Dropout(p)(x)
    assert y.dtype == dtype
    dropped = y == 0
    assert dropped.float().mean().item() == pytest.approx(p, abs=0.005)
    # Also in every fourth value, a row and a column.
    for part in (dropped.flatten()[::4], dropped.flatten()[3::4], dropped[0], dropped[:, 0]):
        assert part.float().mean().item() == pytest.approx(p, abs=0.1)
    assert torch.allclose(y[~dropped], torch.tensor(1 / (1 - p), dtype=dtype))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    dropped = (Dropout(0.5)(torch.ones(400_000)) == 0).float() - 0.5
    for distance in (1, 2, 3, 4, 64):
        assert (dropped[:-distance] * dropped[distance:]).mean().abs() < 0.003


def test_the_seed_decides_which_values_are_dropped():
    layer = Dropout(0.5)
    x = torch.ones(100)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(layer(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_nothing_is_dropped_in_evaluation_or_with_probability_zero():
    x = torch.randn(10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert (Dropout(1.0)(x) == 0).all()
