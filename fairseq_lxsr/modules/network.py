"""The contract of every encoder network, the registry of all networks, and networks without
memory.
"""

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

from fairseq_lxsr.modules.packing import Batches, FlatPieces, padded_batches
from fairseq_lxsr.options import COMPUTE_DTYPES

# fields of a Config that change the embeddings of the same weights, which have the same shapes
WITHOUT_SHAPE = ("append_eos", "prepend_bos", "num_heads", "layer_norm_eps")


class SentenceNetwork(nn.Module):
    """Base class of the networks that map piece ids to sentence embeddings.

    A network is one module of this folder. Sub-classes set the attributes; docs/extend/encoder.md
    adds one.

    Example:
        >>> network = all_networks()["laser"]
        >>> encoder = network(network.Config(20, 1, embed_dim=8, hidden_size=4))
        >>> encoder.embed_padded(torch.tensor([[5, 6, 7]])).shape
        torch.Size([1, 8])

    Attributes:
        name: name of the network in config.json and in the state of a training task.
        Config: a frozen dataclass with `vocab_size`, `padding_idx`, `embed_dim`, `num_layers`,
            `output_dim` (E, the width of an embedding) and `max_positions` (None for any length);
            every field declares its range.
        options: maps a field of `Config` to the option of fairseq-train that states it in a
            checkpoint.
        dtypes: precisions that it computes in, from `options.DTYPES`.
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    options: ClassVar[Mapping[str, str]] = {}
    dtypes: ClassVar[tuple[str, ...]] = COMPUTE_DTYPES
    config: Any
    embed_tokens: nn.Embedding

    @property
    def grown(self) -> tuple[str, ...]:
        """Prefixes of weights that a checkpoint may lack, because their initial values change no
        embedding.
        """
        return ()

    @property
    def options_without_shape(self) -> dict[str, Any]:
        """Values of the options of fairseq-train that no weight shows, though they change the
        embeddings.
        """
        return {
            option: getattr(self.config, field)
            for field, option in self.options.items()
            if field in WITHOUT_SHAPE
        }

    def batches(self, pieces: FlatPieces, batch_size: int) -> Batches:
        """Yield the numbers of at most `batch_size` sentences, and the arrays that `embed_batch`
        takes of them.
        """
        return padded_batches(pieces, batch_size, self.config.padding_idx)

    def embed_batch(self, *inputs: Tensor) -> Tensor:
        """Embed one batch of `batches` as [S, E]."""
        return self(*inputs)

    def embed_padded(self, tokens: Tensor) -> Tensor:
        """Embed ids [B, T], `padding_idx` at the end of shorter sentences, as [B, E]; training can
        use it.
        """
        return self(tokens)


def stacked(batches: Sequence[Tensor], padding_idx: int) -> Tensor:
    """Concatenate batches of ids, each [B, T], as one batch of the width of the longest."""
    width = max(tokens.shape[1] for tokens in batches)
    return torch.cat(
        [F.pad(tokens, (0, width - tokens.shape[1]), value=padding_idx) for tokens in batches]
    )


@functools.cache
def all_networks() -> dict[str, type[SentenceNetwork]]:
    """Import and return all networks by name.

    Example:
        >>> all_networks()["tlaser"].__name__
        'TLaserSentenceEncoder'
    """
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
    return {network.name: network for network in SentenceNetwork.__subclasses__()}


class _NoValues(TorchFunctionMode):
    """Tensors without memory need no values; for some, torch would load its compiler, which takes
    seconds.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Call any function as it is, but random numbers, and products with a plain number."""
        given, name = kwargs or {}, func.__name__
        if name == "randn":
            return torch.empty(*args, **given)
        if name.endswith(("normal_", "uniform_")) or (
            name == "mul" and not isinstance(args[1], Tensor)
        ):
            return args[0] if args else given["tensor"]
        return func(*args, **given)


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Build networks on torch's device without memory inside the block."""
    with torch.device("meta"), _NoValues():
        yield
