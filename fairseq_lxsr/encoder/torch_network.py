"""Reads and writes the networks of model folders, by torch; nothing in them can run code."""

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
    """Read network and tokenizer of a model folder, or random weights (seed 1); its files must fit
    together.
    """
    weights = {name: torch.tensor(value) for name, value in read_weights(folder, config).items()}
    size, tokenizer = size_of(config), read_tokenizer(folder, config)
    kind = all_networks()[config["architecture"]]
    return build_network(kind, size, weights, folder / WEIGHTS_FILE, untrained), tokenizer


def build_network(
    kind: type[SentenceNetwork],
    size: Any,
    weights: Mapping[str, Tensor],
    where: str | Path,
    untrained: bool = False,
) -> SentenceNetwork:
    """Build a network and load its weights, or keep random ones; the shapes are compared before
    memory is allocated.
    """
    if size.num_layers > len(weights):
        raise InputError(
            f"{where}: {len(weights)} weights; the options ask for {size.num_layers:,} layers; {ADVICE}"
        )
    with shapes_only():
        expected = {name: list(value.shape) for name, value in kind(size).state_dict().items()}
    check_weights(weights, expected, where)
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
    """Write a model folder; `training` as in `folder.TRAINING`, `dtype` is the precision on
    disk.
    """
    weights: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        weights |= stored_weight(name, value.detach(), dtype)
    sizes, options = asdict(model.config), text.record()
    description = {
        "architecture": model.name,
        "encoder": sizes,
        "text": options,
        "training": training,
    }
    texts = [path.read_bytes() for path in (dictionary, sentencepiece_model)]
    write_folder(folder, texts, description, partial(save, weights))


def stored_weight(name: str, value: Tensor, dtype: str) -> dict[str, Tensor]:
    """Return what is stored of a weight: in `int8` the codes and scales of a matrix, and a vector
    as float32.

    In `int4` only the embeddings of pieces, of an even width, have 4 bits; the other matrices have
    8.
    """
    if dtype not in ("int8", "int4"):
        return {name: rounded(name, value, dtype)}
    value = rounded(name, value, "float32").cpu()
    if value.dim() != 2:
        return {name: value}
    halved = dtype == "int4" and name == TABLE and value.shape[1] % 2 == 0
    codes, scales = map(torch.from_numpy, (to_int4 if halved else to_int8)(value.numpy()))
    return {name: codes, name + SCALE: scales}


def rounded(name: str, value: Tensor, dtype: str) -> Tensor:
    """Convert a weight to another precision."""
    result = value.to(getattr(torch, dtype)).contiguous()
    if not result.isfinite().all():
        raise InputError(
            f"--dtype {dtype}: {name} has numbers as large as {float(value.abs().max()):.3g}, which {dtype} has not; "
            "take float32, or another checkpoint"
        )
    return result


# Modules whose time is that of matrix products.
PRODUCTS = (torch.nn.Linear, torch.nn.RNNBase)
# A GPU encodes this many times as many sentences at once as a CPU. With fewer, it waits for the host.
GPU_FACTOR = 32
# torch and its libraries have locks, which must not be held when the process forks.
_RUNNING = ForksWait()


class NetworkCopies:
    """A network in float32, and its copies on other devices and in other precisions, each made once
    and kept.
    """

    def __init__(self, network: SentenceNetwork, device: str | None = None):
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.network: Any = network.to(self.device).eval()
        self._copies: dict[tuple[torch.device, str], Any] = {}
        self._lock = ThreadLock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the lock and the copies, which the other process
        creates itself.
        """
        return {
            name: value for name, value in vars(self).items() if name not in ("_copies", "_lock")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _copies={}, _lock=ThreadLock())

    def embed(
        self, pieces: FlatPieces, batch_size: int, device: str | None, dtype: str
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield numbers of the sentences of a batch [n], and their embeddings [n, D], see
        `Bag.embed`.
        """
        model = self._model(device, dtype)
        _one_thread_in_forks()
        target = model.embed_tokens.weight.device
        factor = 1 if target.type == "cpu" else GPU_FACTOR
        for sentences, inputs in model.batches(pieces, factor * batch_size, factor * BATCH_PIECES):
            with _RUNNING, torch.inference_mode():
                vectors = model.embed_batch(
                    *(torch.from_numpy(values).to(target) for values in inputs)
                )
            yield sentences, vectors.float().cpu().numpy()

    def _model(self, device: str | None, dtype: str) -> SentenceNetwork:
        """Return the network on a device in a precision."""
        key = (torch.device(device) if device else self.device, dtype)
        if dtype == "int8" and key[0].type != "cpu":
            raise InputError(f"dtype int8 on {key[0]}; expected cpu, or float16 or bfloat16")
        name, known = self.network.name, self.network.dtypes
        if dtype not in known:
            raise InputError(f"dtype {dtype} of a {name} encoder; expected {', '.join(known)}")
        if key == (self.device, "float32") and key[0].type != "cpu":
            return self.network
        with self._lock:
            if key not in self._copies:
                self._copies[key] = _converted(self.network, *key)
        return self._copies[key]


@cache
def _one_thread_in_forks() -> None:
    """Let torch compute with one thread in forks from now on: those of OpenMP are gone there, and
    it waits for them.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


def network_of(bag: Bag) -> SentenceNetwork:
    """Make the network of a bag; the two share their weights."""
    network = TransformerSentenceEncoder(bag.config)
    network.load_state_dict(
        {name: torch.from_numpy(value) for name, value in bag.weights.items()}, assign=True
    )
    return network


def _converted(model: Any, device: torch.device, dtype: str) -> Any:
    """Copy a model to another device or precision; int8 quantizes the weights of matrix products by
    row.
    """
    # a copy in float32 on the same device shares all weights, but those that are packed
    shares = dtype == "float32" and device == model.embed_tokens.weight.device
    weights = itertools.chain(model.parameters(), model.buffers()) if shares else ()
    model = copy.deepcopy(model, {id(weight): weight for weight in weights}).to(device)
    if dtype != "int8":
        model = model.to(getattr(torch, dtype))
        if device.type == "cpu":
            if any(isinstance(part, PRODUCTS) for part in model.modules()):
                warn_if_slow(dtype)
            pack_linears(model)
        return model
    from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

    engine = torch.backends.quantized.engine
    if "onednn" in torch.backends.quantized.supported_engines:
        # twice as fast as the other engines on processors with AMX
        torch.backends.quantized.engine = "onednn"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that it will move these functions
            return quantize_dynamic(model, {torch.nn.Linear: per_channel_dynamic_qconfig})
    finally:
        torch.backends.quantized.engine = engine
