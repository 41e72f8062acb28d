"""The contract of every encoder network, and where they are found."""

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from fairseq_lxsr.choices import DTYPES
from fairseq_lxsr.modules.packing import Batches, padded_batches


class SentenceNetwork(nn.Module):
    """Piece ids to sentence embeddings.

    A network is one module of this folder. Sub-classes set:
        name: what config.json and the state of a training task call it.
        Config: a frozen dataclass with `vocab_size`, `padding_idx`, `embed_dim`, `num_layers`, `output_dim` (E, the
            width of an embedding) and `max_positions` (None for any length); every field with its range.
        options: field of `Config` -> option of fairseq-train that states it in a checkpoint.
        marker: a weight that no other network has, by which checkpoints of version 0.1 are told.
        dtypes: precisions that it computes in, of `choices.DTYPES`.
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    options: ClassVar[Mapping[str, str]] = {}
    marker: ClassVar[str] = ""
    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    config: Any
    embed_tokens: nn.Embedding

    def batches(self, ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, batch_size: int) -> Batches:
        """Batches of the sentences ids[start : start + length], as `embed_batch` takes them.

        Returns: numbers of the sentences, and the arrays.
        """
        return padded_batches(ids, starts, lengths, batch_size, self.config.padding_idx)

    def embed_batch(self, *inputs: Tensor) -> Tensor:
        """A batch of `batches` -> [S, E]."""
        return self(*inputs)


@functools.cache
def all_networks() -> dict[str, type[SentenceNetwork]]:
    """Every network there is, by its name."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
    return {network.name: network for network in SentenceNetwork.__subclasses__()}
