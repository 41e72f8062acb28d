"""Reads and writes the networks of model folders, by torch; nothing in them can run code."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.model_files import (
    AGAIN,
    SCALE,
    WEIGHTS_FILE,
    check_weights,
    read_tokenizer,
    read_weights,
    size_of,
    to_int8,
    write_folder,
)
from fairseq_lxsr.modules import SentenceNetwork, all_networks
from fairseq_lxsr.modules.shapes import shapes_only
from fairseq_lxsr.text import TextOptions, Tokenizer


def read_model(folder: Path, config: dict[str, Any], untrained: bool = False) -> tuple[SentenceNetwork, Tokenizer]:
    """Read the network and the tokenizer of a model folder, and check that its files fit together.

    Args:
        folder: the model folder.
        config: the result of `read_config`.
        untrained: use random weights (seed 1).

    Raises:
        InputError: naming the file, and the weight, that does not fit the others.
    """
    weights = read_weights(folder, config)
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
    """Build a network and load its weights; memory is allocated only after their shapes were compared.

    Args:
        kind: class of the network, one of `all_networks`.
        size: config of the network.
        weights: tensors by name.
        where: file of the weights, for messages.
        untrained: keep the initial random weights (seed 1).

    Raises:
        InputError: naming the weight that is missing, has another shape or is not finite.
    """
    if size.num_layers > len(weights):
        raise InputError(f"{where}: {len(weights)} weights; the options ask for {size.num_layers:,} layers; {AGAIN}")
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
    """Write a model folder; it appears under its name only when it is complete.

    Args:
        folder: the folder to write.
        model: the network.
        dictionary: fairseq dictionary file.
        sentencepiece_model: SentencePiece model file.
        text: how text is treated before SentencePiece.
        training: description of the training, see `model_files.TRAINING`.
        dtype: precision of the weights on disk, one of `STORED_TYPES`; encoders still compute in float32 by default.

    Raises:
        InputError: for a weight that is not finite, or that overflows in `dtype`.
    """
    weights: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        weights |= stored_weight(name, value.detach(), dtype)
    description = {
        "architecture": model.name,
        "encoder": asdict(model.config),
        "text": asdict(text),
        "training": training,
    }
    write_folder(folder, [dictionary, sentencepiece_model], description, partial(save, weights))


def stored_weight(name: str, value: Tensor, dtype: str) -> dict[str, Tensor]:
    """Return what is stored of a weight: in `int8` the codes and scales of a matrix, and a vector as float32."""
    if dtype != "int8":
        return {name: rounded(name, value, dtype)}
    value = rounded(name, value, "float32").cpu()
    if value.dim() != 2:
        return {name: value}
    codes, scales = map(torch.from_numpy, to_int8(value.numpy()))
    return {name: codes, name + SCALE: scales}


def rounded(name: str, value: Tensor, dtype: str) -> Tensor:
    """Convert a weight to another precision.

    Raises:
        InputError: where a value has no finite number in that precision.
    """
    result = value.to(getattr(torch, dtype)).contiguous()
    if not result.isfinite().all():
        raise InputError(
            f"--dtype {dtype}: {name} has numbers as large as {float(value.abs().max()):.3g}, which {dtype} has not; "
            "take float32, or another checkpoint"
        )
    return result
