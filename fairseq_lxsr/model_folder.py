"""A model folder on disk: weights, options, dictionary and SentencePiece model; nothing in it can run code."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import atomic_folder, restore_folder, sha256
from fairseq_lxsr.modules import (
    LaserConfig,
    LaserSentenceEncoder,
    TLaserConfig,
    TLaserSentenceEncoder,
    TransformerConfig,
    TransformerSentenceEncoder,
)
from fairseq_lxsr.text import DICTIONARY_FILE, SENTENCEPIECE_FILE, TextOptions

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
FILES = (CONFIG_FILE, WEIGHTS_FILE, DICTIONARY_FILE, SENTENCEPIECE_FILE)
FORMAT_VERSION = 1
# what config.json calls an architecture; each network has a config with padding_idx, output_dim and max_positions
NETWORKS: dict[str, tuple[Any, Any]] = {
    "transformer": (TransformerConfig, TransformerSentenceEncoder),
    "laser": (LaserConfig, LaserSentenceEncoder),
    "tlaser": (TLaserConfig, TLaserSentenceEncoder),
}
DEFAULT_ARCHITECTURE = "transformer"  # of folders that do not say


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder, after checking that every file is there and the one it names."""
    restore_folder(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such model folder; make one with `lxsr export-model`")
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        version, files = config["format_version"], config["files"]
        config_class, _ = NETWORKS[config.setdefault("architecture", DEFAULT_ARCHITECTURE)]
        config_class(**config["encoder"])
        TextOptions(**config["text"])
        if not (isinstance(files, dict) and isinstance(config["training"], dict)):
            raise TypeError("files and training are not objects")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / CONFIG_FILE}: not the description of a model folder ({error!r})") from None
    if version != FORMAT_VERSION:
        raise InputError(f"{folder / CONFIG_FILE}: format {version}; this version reads format {FORMAT_VERSION}")
    for name in (WEIGHTS_FILE, DICTIONARY_FILE, SENTENCEPIECE_FILE):
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: no such file, the model folder is not whole; export or copy it again")
        if sha256(path) != files.get(name):
            raise InputError(f"{path}: differs from the file that was exported; export or copy the folder again")
    return config


def load_weights(model: torch.nn.Module, path: Path) -> None:
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: not the weights of this encoder ({reason}); export the model again") from None


def save_folder(
    folder: str | Path,
    model: Any,
    dictionary: Path,
    sentencepiece_model: Path,
    text: TextOptions,
    training: dict[str, Any],
    dtype: str = "float32",
) -> None:
    """Write a model folder; it appears under its name only when it is complete.

    Args: dtype: of the weights on disk, one of `WEIGHT_TYPES`; an encoder computes in float32 all the same.
    """
    with atomic_folder(folder, CONFIG_FILE, DICTIONARY_FILE) as work:
        weights = {
            name: value.detach().to(getattr(torch, dtype)).contiguous() for name, value in model.state_dict().items()
        }
        (work / WEIGHTS_FILE).write_bytes(save(weights, metadata={"format": "pt"}))
        (work / DICTIONARY_FILE).write_bytes(dictionary.read_bytes())
        (work / SENTENCEPIECE_FILE).write_bytes(sentencepiece_model.read_bytes())
        config = {
            "format_version": FORMAT_VERSION,
            "architecture": next(name for name, (_, network) in NETWORKS.items() if isinstance(model, network)),
            "encoder": asdict(model.config),
            "text": asdict(text),
            "training": training,
            "files": {name: sha256(work / name) for name in (WEIGHTS_FILE, DICTIONARY_FILE, SENTENCEPIECE_FILE)},
        }
        # written last: a folder without it does not load
        (work / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
