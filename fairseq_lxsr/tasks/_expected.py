"""Validation of the model that `lxsr export` writes: with the expected row of each piece, see `segmentations`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from fairseq_lxsr.modules import SentenceNetwork
from fairseq_lxsr.segmentations import IntArray, expected_rows


class ExpectedRows:
    """The rows that `lxsr export` writes for a model as it is, to be put in the place of those that are trained.

    Args:
        model: the model, or what wraps it for several workers; one that does not sum rows keeps them.
        halves: [V, 2] the two parts of each piece, see `merged_from`.
        probability: [V] with which training splits each piece.
    """

    def __init__(self, model: nn.Module, halves: IntArray, probability: Sequence[float]):
        network = next(module for module in model.modules() if isinstance(module, SentenceNetwork))
        self._weight = self._rows = network.embed_tokens.weight
        if getattr(network.config, "sums_rows", False):
            table = self._weight.detach().float().cpu().numpy()
            rows = expected_rows(table, halves, np.array(probability, np.float32))
            self._rows = torch.from_numpy(rows).to(self._weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have these rows until the context ends."""
        trained = self._weight.data
        self._weight.data = self._rows.data
        try:
            yield
        finally:
            self._weight.data = trained
