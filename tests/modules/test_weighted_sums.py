"""Weighted sums of rows of a table, and their gradients, equal those of plain sums."""

import pytest
import torch

from fairseq_lxsr.modules.weighted_sums import WeightedBags

PADDING = 1


@pytest.mark.parametrize(
    "tokens",
    [
        # A repeated piece, a single piece, and a sentence without pieces.
        [[2, 3, 2, 5], [4, PADDING, PADDING, PADDING], [PADDING, PADDING, PADDING, PADDING]],
        # No piece in the whole batch.
        [[PADDING, PADDING]],
        # No padding, the same piece in two sentences, and the first row of the table.
        [[5], [5], [0]],
    ],
    ids=["lengths", "empty", "single pieces"],
)
@pytest.mark.parametrize("num_orders", [0, 1, 3])
def test_embeddings_and_gradients_equal_those_of_einsum(tokens, num_orders):
    torch.manual_seed(0)
    tokens = torch.tensor(tokens)
    table = torch.randn(6, 8, requires_grad=True)
    order = torch.randn(num_orders, 8, requires_grad=True)
    weights = torch.randn(num_orders + 1, *tokens.shape)

    embeddings = WeightedBags.apply(table, order, tokens, weights, PADDING)

    sums = torch.einsum("krt,rtd->krd", weights * tokens.ne(PADDING), table[tokens])
    expected = sums[0] + (order[:, None] * sums[1:]).sum(dim=0)
    torch.testing.assert_close(embeddings, expected)
    # torch may hand over a gradient that is not contiguous.
    gradient = torch.randn(8, len(tokens)).T
    gradients = torch.autograd.grad(embeddings, (table, order), gradient)
    expected_gradients = torch.autograd.grad(
        expected, (table, order), gradient, materialize_grads=True
    )
    torch.testing.assert_close(gradients, expected_gradients)
