"""Base class and registry of encoder networks; also builds networks without weight values."""

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fairseq_lxsr.modules.packing import BATCH_PIECES, Batches, FlatPieces, padded_batches
from fairseq_lxsr.options import COMPUTE_DTYPES

# Config fields that affect the embeddings, but not the shape of any weight.
WITHOUT_SHAPE = ("append_eos", "prepend_bos", "num_heads", "layer_norm_eps")


class SentenceNetwork(nn.Module):
    """Base class of networks that map word piece ids to sentence embeddings.

    Each module in this folder defines at most one network. Subclasses set the attributes below;
    docs/extend/encoder.md shows how to add a network.

    Example:
        >>> network = all_networks()["laser"]
        >>> encoder = network(network.Config(20, 1, embed_dim=8, hidden_size=4))
        >>> encoder.embed_padded(torch.tensor([[5, 6, 7]])).shape
        torch.Size([1, 8])

    Attributes:
        name: name of the network in config.json and in the training task's state.
        Config: a frozen dataclass with `vocab_size`, `padding_idx`, `embed_dim`, `num_layers`,
            `output_dim` (E, the embedding width) and `max_positions` (None if unlimited). Every
            field declares its range.
        options: maps a `Config` field to the fairseq-train option that stores its value in a
            checkpoint.
        dtypes: supported precisions, from `options.COMPUTE_DTYPES`.
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    options: ClassVar[Mapping[str, str]] = {}
    dtypes: ClassVar[tuple[str, ...]] = COMPUTE_DTYPES
    config: Any
    embed_tokens: nn.Embedding

    @property
    def grown(self) -> tuple[str, ...]:
        """Name prefixes of weights that may be missing from a checkpoint.

        The initial values of these weights do not change any embedding.
        """
        return ()

    @property
    def options_without_shape(self) -> dict[str, Any]:
        """fairseq-train options that affect the embeddings, but not the shape of any weight."""
        values = {}
        for field, option in self.options.items():
            if field in WITHOUT_SHAPE:
                values[option] = getattr(self.config, field)
        return values

    def batches(
        self, pieces: FlatPieces, batch_size: int, batch_pieces: int = BATCH_PIECES
    ) -> Batches:
        """Split sentences into batches for `embed_batch`.

        Args:
            pieces: word pieces of the sentences.
            batch_size: maximum number of sentences per batch.
            batch_pieces: maximum number of pieces per batch, including padding.

        Yields:
            Sentence indices of a batch, and the input arrays for `embed_batch`.
        """
        return padded_batches(pieces, batch_size, self.config.padding_idx, batch_pieces)

    def embed_batch(self, *inputs: Tensor) -> Tensor:
        """Return the embeddings [S, E] of one batch yielded by `batches`."""
        return self(*inputs)

    def embed_padded(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [B, E] of ids [B, T], padded at the end with `padding_idx`.

        Gradients are propagated, so training can use this method.
        """
        return self(tokens)


def stacked(batches: Sequence[Tensor], padding_idx: int) -> Tensor:
    """Pad batches of ids, [B, T] each, to the largest width, and concatenate them."""
    width = max(tokens.shape[1] for tokens in batches)
    return torch.cat(
        [F.pad(tokens, (0, width - tokens.shape[1]), value=padding_idx) for tokens in batches]
    )


@functools.cache
def all_networks() -> dict[str, type[SentenceNetwork]]:
    """Import all networks, and map their names to their classes.

    Example:
        >>> all_networks()["tlaser"].__name__
        'TLaserSentenceEncoder'
    """
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
    return {network.name: network for network in SentenceNetwork.__subclasses__()}


class _NoValues(TorchFunctionMode):
    """Torch mode that skips random draws and multiplications by numbers, because tensors on the
    meta device have no values.

    For some operations torch would otherwise import its compiler, which takes seconds.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Call the function, unless it draws random numbers or multiplies by a Python number."""
        options = kwargs or {}
        name = func.__name__
        if name == "randn":
            return torch.empty(*args, **options)
        draws_numbers = name.endswith(("normal_", "uniform_"))
        if draws_numbers or (name == "mul" and not isinstance(args[1], Tensor)):
            return args[0] if args else options["tensor"]
        return func(*args, **options)


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Context manager that builds networks on the meta device: weights have shapes only."""
    with torch.device("meta"), _NoValues():
        yield
