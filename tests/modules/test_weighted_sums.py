"""Weighted sums of rows of a table are those of a plain sum, and so is their gradient."""

import pytest
import torch

from fairseq_lxsr.modules.weighted_sums import WeightedBags

PADDING = 1


@pytest.mark.parametrize(
    "tokens", [[[2, 3, 2, 5], [4, 1, 1, 1], [1, 1, 1, 1]], [[1, 1]], [[5], [5], [0]]], ids=str
)
@pytest.mark.parametrize("weightings", [1, 3])
def test_sums_and_gradient_are_those_of_a_product(tokens, weightings):
    torch.manual_seed(0)
    tokens, table = torch.tensor(tokens), torch.randn(6, 8, requires_grad=True)
    weights = torch.randn(weightings, *tokens.shape)
    expected = torch.einsum("krt,rtd->krd", weights * tokens.ne(PADDING), table[tokens])
    found = WeightedBags.apply(table, tokens, weights, PADDING)
    torch.testing.assert_close(found, expected)
    gradient = torch.randn_like(expected).transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(
        torch.autograd.grad(found, table, gradient), torch.autograd.grad(expected, table, gradient)
    )
