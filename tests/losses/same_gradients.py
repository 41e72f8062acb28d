"""Compares a loss and its gradients with those of a reference."""

import torch


def assert_same_with_gradients(loss, expected, tensors):
    torch.testing.assert_close(loss, expected)
    gradients = torch.autograd.grad(loss, tensors)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, tensors))
