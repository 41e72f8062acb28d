"""Encodes with a network of torch, on any device and in any precision that it computes in."""

import copy
import itertools
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fairseq_lxsr.bag import Bag
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import SentenceNetwork, TransformerSentenceEncoder
from fairseq_lxsr.modules.cpu import warn_if_slow
from fairseq_lxsr.modules.packed_linear import pack_linears

PRODUCTS = (torch.nn.Linear, torch.nn.RNNBase)  # modules whose time is that of matrix products


class NetworkCopies:
    """A network, and its copies on other devices and in other precisions; each copy is made once and kept.

    Args:
        network: the network, in float32.
        device: device of the computation; None selects CUDA where it is available.
    """

    def __init__(self, network: SentenceNetwork, device: str | None = None):
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.network: Any = network.to(self.device).eval()
        self._copies: dict[tuple[torch.device, str], Any] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the lock and the copies, which the other process creates itself."""
        return {name: value for name, value in vars(self).items() if name not in ("_copies", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _copies={}, _lock=threading.Lock())

    def embed(
        self,
        ids: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        batch_size: int,
        device: str | None,
        dtype: str,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield numbers of the sentences of a batch [n], and their embeddings [n, D], see `Bag.embed`.

        Args:
            ids: [P] ids of all sentences.
            starts: [N] index of the first piece of each sentence.
            lengths: [N] pieces of each sentence.
            batch_size: maximum number of sentences in a batch.
            device: None takes the network's own.
            dtype: one of `choices.DTYPES`.

        Raises:
            InputError: for a precision that the network or the device does not compute in.
        """
        model = self._model(device, dtype)
        target = model.embed_tokens.weight.device
        for sentences, inputs in model.batches(ids, starts, lengths, batch_size):
            yield sentences, _embedded(model, *(torch.from_numpy(values).to(target) for values in inputs))

    def _model(self, device: str | None, dtype: str) -> SentenceNetwork:
        """Return the network on a device in a precision."""
        key = (torch.device(device) if device else self.device, dtype)
        if dtype == "int8" and key[0].type != "cpu":
            raise InputError(f"dtype int8 on {key[0]}; expected cpu, or float16 or bfloat16")
        if dtype not in self.network.dtypes:
            raise InputError(
                f"dtype {dtype} of a {self.network.name} encoder; expected {', '.join(self.network.dtypes)}"
            )
        if key == (self.device, "float32") and key[0].type != "cpu":
            return self.network
        with self._lock:
            if key not in self._copies:
                self._copies[key] = _converted(self.network, *key)
        return self._copies[key]


def network_of(bag: Bag) -> SentenceNetwork:
    """Make the network of a bag; the two share their weights."""
    network = TransformerSentenceEncoder(bag.config)
    network.load_state_dict({name: torch.from_numpy(value) for name, value in bag.weights.items()}, assign=True)
    return network


@torch.inference_mode()
def _embedded(model: Any, *inputs: torch.Tensor) -> np.ndarray:
    return model.embed_batch(*inputs).float().cpu().numpy()


def _converted(model: Any, device: torch.device, dtype: str) -> Any:
    """Copy a model to another device or precision; int8 quantizes the weights of matrix products by row.

    A copy in float32 on the same device shares all weights, but those that are packed.
    """
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
        torch.backends.quantized.engine = "onednn"  # twice as fast as the other engines on processors with AMX
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that it will move these functions
            return quantize_dynamic(model, {torch.nn.Linear: per_channel_dynamic_qconfig})
    finally:
        torch.backends.quantized.engine = engine
