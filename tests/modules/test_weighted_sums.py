"""Weighted sums of rows of a table, and their gradients, equal those of plain sums."""

import pytest
import torch

from fairseq_lxsr.modules.weighted_sums import WeightedBags

PADDING = 1


@pytest.mark.parametrize(
    "tokens", [[[2, 3, 2, 5], [4, 1, 1, 1], [1, 1, 1, 1]], [[1, 1]], [[5], [5], [0]]], ids=str
)
@pytest.mark.parametrize("weightings", [1, 3])
def test_sums_and_gradients_equal_those_of_einsum(tokens, weightings):
    torch.manual_seed(0)
    tokens = torch.tensor(tokens)
    table = torch.randn(6, 8, requires_grad=True)
    weights = torch.randn(weightings, *tokens.shape)
    expected = torch.einsum("krt,rtd->krd", weights * tokens.ne(PADDING), table[tokens])
    sums = WeightedBags.apply(table, tokens, weights, PADDING)
    torch.testing.assert_close(sums, expected)
    # A gradient that is not contiguous.
    gradient = torch.randn_like(expected).transpose(0, 1).contiguous().transpose(0, 1)
    table_gradient = torch.autograd.grad(sums, table, gradient)
    torch.testing.assert_close(table_gradient, torch.autograd.grad(expected, table, gradient))
