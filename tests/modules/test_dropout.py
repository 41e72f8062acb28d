import pytest
import torch

from fairseq_lxsr.modules.dropout import Dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.75])
def test_values_are_dropped_with_the_given_probability(p, dtype):
    torch.manual_seed(0)
    # The number of values is not a multiple of four, because the layer draws four at a time.
    is_dropped = Dropout(p)(torch.ones(333, 1001, dtype=dtype)) == 0
    assert is_dropped.float().mean().item() == pytest.approx(p, abs=0.005)
    # The same for the first and the last of four values, and for a row and a column.
    values = is_dropped.flatten()
    for part in (values[0::4], values[3::4], is_dropped[0], is_dropped[:, 0]):
        assert part.float().mean().item() == pytest.approx(p, abs=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.75])
def test_values_that_are_kept_are_scaled_so_that_the_mean_remains(p, dtype):
    torch.manual_seed(0)
    x = torch.ones(333, 1001, dtype=dtype).requires_grad_()

    y = Dropout(p)(x)

    assert y.dtype == dtype
    # A share of 1 - p is kept.
    scale = torch.tensor(1 / (1 - p), dtype=dtype)
    assert torch.allclose(y[y != 0], scale)
    # x is one everywhere, so its gradient is the factor of each value, which is y.
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 64])
def test_a_value_is_dropped_independently_of_another_at_a_distance(distance):
    torch.manual_seed(0)
    is_dropped = (Dropout(0.5)(torch.ones(400_000)) == 0).float()
    # With a mean of zero, the mean product of independent values is zero.
    centred = is_dropped - 0.5
    covariance = (centred[:-distance] * centred[distance:]).mean()
    assert covariance.abs() < 0.003


def test_the_seed_decides_which_values_are_dropped():
    layer = Dropout(0.5)
    x = torch.ones(100)

    def output_with_seed(seed):
        torch.manual_seed(seed)
        return layer(x)

    assert torch.equal(output_with_seed(1), output_with_seed(1))
    assert not torch.equal(output_with_seed(1), output_with_seed(2))


def test_nothing_is_dropped_in_evaluation():
    x = torch.randn(10)
    assert Dropout(0.5).eval()(x) is x


def test_nothing_is_dropped_with_probability_zero():
    x = torch.randn(10)
    assert Dropout(0.0)(x) is x


def test_everything_is_dropped_with_probability_one():
    assert (Dropout(1.0)(torch.randn(10)) == 0).all()
