"""Reads and writes networks in model folders with torch. Loading never runs code."""

import copy
import itertools
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fairseq_lxsr.encoder.model_folder import (
    ADVICE,
    SCALE,
    WEIGHTS_FILE,
    check_weights,
    read_tokenizer,
    read_weights,
    size_of,
    to_int4,
    to_int8,
    write_folder,
)
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.locks import ForksWait, ThreadLock
from fairseq_lxsr.modules import SentenceNetwork, TransformerSentenceEncoder, all_networks
from fairseq_lxsr.modules.cpu import warn_if_slow
from fairseq_lxsr.modules.network import shapes_only
from fairseq_lxsr.modules.packed_linear import pack_linears
from fairseq_lxsr.modules.packing import BATCH_PIECES, FlatPieces
from fairseq_lxsr.text.tokenizer import TextOptions, Tokenizer


def read_model(
    folder: Path, config: dict[str, Any], untrained: bool = False
) -> tuple[SentenceNetwork, Tokenizer]:
    """Read a model folder's network and tokenizer, and check that they are compatible.

    Args:
        folder: path of the model folder.
        config: content of its config.json.
        untrained: use random weights (seed 1) instead of the stored weights.

    Raises:
        InputError: if a file is invalid, or the files do not belong together.
    """
    weights = {name: torch.tensor(value) for name, value in read_weights(folder, config).items()}
    tokenizer = read_tokenizer(folder, config)
    kind = all_networks()[config["architecture"]]
    network = build_network(kind, size_of(config), weights, folder / WEIGHTS_FILE, untrained)
    return network, tokenizer


def build_network(
    kind: type[SentenceNetwork],
    size: Any,
    weights: Mapping[str, Tensor],
    place: str | Path,
    untrained: bool = False,
) -> SentenceNetwork:
    """Build a network and load its weights.

    Args:
        kind: network class.
        size: network sizes, a `kind.Config`.
        weights: maps names to weights.
        place: source of the weights, for messages.
        untrained: keep random weights (seed 1) instead.

    Raises:
        InputError: if names or shapes of the weights do not match the network.
    """
    if size.num_layers > len(weights):
        raise InputError(
            f"{place}: {len(weights)} weights for {size.num_layers:,} layers; {ADVICE}"
        )
    # Check the shapes before allocating memory for the network.
    with shapes_only():
        expected = {name: list(value.shape) for name, value in kind(size).state_dict().items()}
    check_weights(weights, expected, place)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = kind(size)
    if not untrained:
        network.load_state_dict(weights)
    return network


def save_folder(
    folder: str | Path,
    model: SentenceNetwork,
    dictionary: Path,
    sentencepiece_model: Path,
    text: TextOptions,
    training: dict[str, Any],
    dtype: str = "float32",
) -> None:
    """Write a model folder.

    Args:
        folder: output folder.
        model: network to store.
        dictionary: path of the dictionary.
        sentencepiece_model: path of the SentencePiece model.
        text: text normalization options.
        training: description of the training, for config.json.
        dtype: storage type of the weights.
    """
    weights: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        weights |= stored_weight(name, value.detach(), dtype)
    description = {
        "architecture": model.name,
        "encoder": asdict(model.config),
        "text": text.record(),
        "training": training,
    }
    texts = [path.read_bytes() for path in (dictionary, sentencepiece_model)]
    write_folder(folder, texts, description, partial(save, weights))


def stored_weight(name: str, value: Tensor, dtype: str) -> dict[str, Tensor]:
    """Map names to the tensors that store a weight.

    With `int8`, a matrix is stored as codes and scales, whereas vectors stay in float32. With
    `int4`, only piece embeddings are stored in 4 bits, if their width is even; other matrices use
    8 bits.
    """
    if dtype not in ("int8", "int4"):
        return {name: rounded(name, value, dtype)}
    value = rounded(name, value, "float32").cpu()
    if value.dim() != 2:
        return {name: value}
    quantize = to_int8
    # Two 4-bit codes share a byte, so the width must be even.
    if dtype == "int4" and name == TABLE and value.shape[1] % 2 == 0:
        quantize = to_int4
    codes, scales = quantize(value.numpy())
    return {name: torch.from_numpy(codes), name + SCALE: torch.from_numpy(scales)}


def rounded(name: str, value: Tensor, dtype: str) -> Tensor:
    """Convert a weight to another dtype.

    Raises:
        InputError: if a value is too large for this dtype.
    """
    result = value.to(getattr(torch, dtype)).contiguous()
    if not result.isfinite().all():
        raise InputError(
            f"--dtype {dtype}: {name} contains values up to {float(value.abs().max()):.3g}, "
            f"too large for {dtype}; use float32, or another checkpoint"
        )
    return result


# Modules that spend most of their time on matrix multiplication.
PRODUCTS = (torch.nn.Linear, torch.nn.RNNBase)
# Ratio of GPU batch size to CPU batch size, chosen so that the GPU does not wait for the host.
GPU_FACTOR = 32
# torch and its libraries use locks, which must not be held while the process forks.
_RUNNING = ForksWait()


class NetworkCopies:
    """A float32 network, and cached copies on other devices or in other precisions.

    Each copy is created when it is first needed.

    Args:
        network: the float32 network.
        device: device of the network; defaults to a GPU if available.
    """

    def __init__(self, network: SentenceNetwork, device: str | None = None):
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.network: Any = network.to(self.device).eval()
        self._copies: dict[tuple[torch.device, str], Any] = {}
        self._lock = ThreadLock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle. The other process creates its own lock and copies."""
        state = dict(vars(self))
        del state["_copies"]
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _copies={}, _lock=ThreadLock())

    def embed(
        self, pieces: FlatPieces, batch_size: int, device: str | None, dtype: str
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the sentence indices of each batch [n], and their embeddings [n, D].

        Args:
            pieces: word pieces of the sentences.
            batch_size: number of sentences per batch on a CPU. A GPU uses `GPU_FACTOR` times as
                many.
            device: device to compute on; defaults to the network's device.
            dtype: computation precision.
        """
        model = self._model(device, dtype)
        _one_thread_in_forks()
        target = model.embed_tokens.weight.device
        factor = 1
        if target.type != "cpu":
            factor = GPU_FACTOR
        for sentences, inputs in model.batches(pieces, factor * batch_size, factor * BATCH_PIECES):
            with _RUNNING, torch.inference_mode():
                tensors = [torch.from_numpy(values).to(target) for values in inputs]
                vectors = model.embed_batch(*tensors)
            yield sentences, vectors.float().cpu().numpy()

    def _model(self, device: str | None, dtype: str) -> SentenceNetwork:
        """Return the network, or its cached copy for a device and precision.

        Raises:
            InputError: if the network does not support this precision, either in general or on this
                device.
        """
        target = self.device
        if device:
            target = torch.device(device)
        is_cpu = target.type == "cpu"
        if dtype == "int8" and not is_cpu:
            raise InputError(
                f"dtype int8 is not supported on {target}; use cpu, or float16 or bfloat16"
            )
        dtypes = self.network.dtypes
        if dtype not in dtypes:
            raise InputError(
                f"dtype is {dtype}; a {self.network.name} encoder supports {', '.join(dtypes)}"
            )
        # On a CPU, float32 also requires a copy, because the matrices of the copy are packed.
        if target == self.device and dtype == "float32" and not is_cpu:
            return self.network
        key = (target, dtype)
        with self._lock:
            if key not in self._copies:
                self._copies[key] = _converted(self.network, target, dtype)
        return self._copies[key]


@cache
def _one_thread_in_forks() -> None:
    """Limit processes that are forked from now on to a single torch thread.

    OpenMP threads do not exist in a forked process, and torch would wait for them forever.
    """
    # Windows does not support fork.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


def network_of(bag: Bag) -> SentenceNetwork:
    """Build a torch network that shares the weights of a `Bag`."""
    network = TransformerSentenceEncoder(bag.config)
    weights = {name: torch.from_numpy(value) for name, value in bag.weights.items()}
    network.load_state_dict(weights, assign=True)
    return network


def _converted(model: Any, device: torch.device, dtype: str) -> Any:
    """Copy a model to another device or precision."""
    shared: dict[int, Tensor] = {}
    if dtype == "float32" and device == model.embed_tokens.weight.device:
        # The copy shares all weights except for the packed ones.
        weights = itertools.chain(model.parameters(), model.buffers())
        shared = {id(weight): weight for weight in weights}
    model = copy.deepcopy(model, shared).to(device)
    if dtype == "int8":
        return _quantized(model)
    model = model.to(getattr(torch, dtype))
    if device.type == "cpu":
        if any(isinstance(part, PRODUCTS) for part in model.modules()):
            warn_if_slow(dtype)
        pack_linears(model)
    return model


def _quantized(model: Any) -> Any:
    """Quantize the linear layers of a model to int8, with one scale per row."""
    from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

    engine = torch.backends.quantized.engine
    if "onednn" in torch.backends.quantized.supported_engines:
        # This engine is twice as fast as the others on processors with AMX.
        torch.backends.quantized.engine = "onednn"
    try:
        with warnings.catch_warnings():
            # Ignore torch's warnings that these functions will be moved.
            warnings.simplefilter("ignore")
            return quantize_dynamic(model, {torch.nn.Linear: per_channel_dynamic_qconfig})
    finally:
        torch.backends.quantized.engine = engine
