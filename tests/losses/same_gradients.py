"""Compares a loss and its gradients with those of a reference."""

import torch


def assert_same_with_gradients(found, expected, tensors):
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(loss, tensors) for loss in (found, expected))
    torch.testing.assert_close(*gradients)
