"""Compares a loss and its gradients with those of a reference."""

import torch


def assert_same_with_gradients(loss, expected, tensors):
    """Check that two losses have the same value, and the same gradients for each of `tensors`."""
    torch.testing.assert_close(loss, expected)
    gradients = torch.autograd.grad(loss, tensors)
    expected_gradients = torch.autograd.grad(expected, tensors)
    torch.testing.assert_close(gradients, expected_gradients)
