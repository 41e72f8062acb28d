"""Reads fairseq checkpoints without running code from them."""

import contextlib
import pickle
import re
import zipfile
from argparse import Namespace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import stamp
from fairseq_lxsr.files.records import check_archive

# Keys in a checkpoint's task state: dictionary hash, target languages, hash of training and
# validation text, language pairs and type of the stored weights of the model that training
# continued from, probability of splitting each piece in training [V], and network name (one of
# `all_networks`).
DICTIONARY_HASH = "dictionary_sha256"
LANGUAGES = "target_languages"
DATA_HASH = "data_sha256"
FROM_LANG_PAIRS = "from_lang_pairs"
FROM_DTYPE = "from_dtype"
SPLIT_PROBABILITY = "split_probability"
ARCHITECTURE = "architecture"

# Prefixes of weight names; LASER and T-LASER use both.
ENCODER_PREFIX = "encoder."
NETWORK_PREFIX = "network."
TOKEN_EMBEDDINGS = "embed_tokens.weight"


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a fairseq-train checkpoint without running code from it.

    The checksums of the file are verified first. Tensors are memory-mapped, so they are read from
    disk only when they are used.

    Args:
        path: checkpoint file written by fairseq-train.

    Returns:
        The checkpoint with `cfg`, `model`, `task_state`, `extra_state` and `optimizer_history`.

    Raises:
        InputError: if the file is missing, damaged, not a checkpoint, or would run code.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a checkpoint{_example(path)}")
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint{_other_checkpoint(path)}")
    try:
        state = _load(path)
    except pickle.UnpicklingError as error:
        called_name = re.search(r"GLOBAL (\S+)", str(error))
        reason = "its pickle has more than tensors and plain values"
        if called_name:
            reason = f"it calls {called_name[1]}"
        raise InputError(
            f"{path}: refused, {reason}, which could run code{_other_checkpoint(path)}"
        ) from None
    # For other types of files, torch raises many types of exceptions.
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise
        raise InputError(
            f"{path}: cut off or damaged, not a complete checkpoint: delete it"
            f"{_other_checkpoint(path)}"
        ) from None
    return _checked(state, path)


def _example(folder: Path) -> str:
    """Suggest a checkpoint in a folder, to complete an error message."""
    best = folder / "checkpoint_best.pt"
    checkpoint = best if best.is_file() else newest_checkpoint(folder)
    if checkpoint is None:
        return " file, and the folder contains none"
    return f" file, for example {checkpoint}"


def _load(path: Path) -> Any:
    is_archive = zipfile.is_zipfile(path)
    if is_archive:
        _check_once(path, *stamp(path))
    # fairseq stores its options as a Namespace. This class itself is harmless.
    with torch.serialization.safe_globals([Namespace]):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    # torch also loads archives with a damaged record directory, so verify the checksums.
    if not is_archive:
        raise zipfile.BadZipFile
    return state


@lru_cache
def _check_once(path: Path, *stamp: int) -> None:
    """Verify an archive's checksums only once, because training reads the same file repeatedly."""
    check_archive(path)


def _checked(state: Any, path: Path) -> dict[str, Any]:
    """Check the types of a checkpoint's parts, and return it with empty parts for missing ones."""
    if not isinstance(state, dict) or not isinstance(state.get("cfg"), dict):
        raise InputError(
            f"{path}: not a fairseq-train checkpoint, because it lacks cfg; choose another file"
        )
    cfg = _options(state["cfg"])
    state = dict(state)
    defaults: dict[str, Any] = {"task_state": {}, "extra_state": {}, "optimizer_history": []}
    for name, default in defaults.items():
        if state.get(name) is None:
            state[name] = default

    for name in ("model", "task", "criterion", "common", "ema"):
        _require(_has_plain_values(cfg[name]), f"cfg.{name}", path)
    _require(_has_plain_values(state["task_state"]), "task_state", path)
    # If several processes saved the checkpoint, its extra state also contains tensors.
    _require(isinstance(state["extra_state"], dict), "extra_state", path)
    history = state["optimizer_history"]
    is_list_of_dicts = isinstance(history, list) and all(isinstance(part, dict) for part in history)
    _require(is_list_of_dicts, "optimizer_history", path)
    weights = state.get("model")
    _require(bool(weights) and _has_tensors(weights), "model", path)

    return {**state, "optimizer_history": history or [{}], "cfg": cfg}


def _options(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's options as dictionaries. They are empty for missing parts."""
    cfg = {}
    for name, part in stored.items():
        # Older fairseq models and tasks store their options as a Namespace.
        cfg[name] = vars(part) if isinstance(part, Namespace) else part
    for name in ("model", "task"):
        cfg.setdefault(name, None)
    for name in ("criterion", "common", "ema"):
        if cfg.get(name) is None:
            cfg[name] = {}
    return cfg


def _require(is_valid: bool, name: str, path: Path) -> None:
    if not is_valid:
        raise InputError(
            f"{path}: invalid {name}, so probably not a fairseq-train checkpoint; choose another "
            "file"
        )


def _has_plain_values(part: Any) -> bool:
    return _has_names(part) and not any(isinstance(value, Tensor) for value in part.values())


def _has_tensors(part: Any) -> bool:
    return _has_names(part) and all(isinstance(value, Tensor) for value in part.values())


def _has_names(part: Any) -> bool:
    return isinstance(part, dict) and all(isinstance(name, str) for name in part)


def newest_checkpoint(folder: Path, excluded_name: str = "", finite: bool = False) -> Path | None:
    """Return the newest complete checkpoint in a folder, or None if there is none.

    Args:
        folder: folder to search for `checkpoint*.pt`.
        excluded_name: file name to ignore.
        finite: whether to skip checkpoints whose weights contain NaN or infinity.
    """
    paths = sorted(
        folder.glob("checkpoint*.pt"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    for path in paths:
        if path.name == excluded_name:
            continue
        # Skip unreadable checkpoints.
        with contextlib.suppress(Exception):
            weights = _checked(_load(path), path)["model"].values()
            if not finite or all(bool(value.isfinite().all()) for value in weights):
                return path
    return None


def _other_checkpoint(path: Path) -> str:
    """Suggest another checkpoint to use, to complete an error message."""
    checkpoint = newest_checkpoint(path.parent, path.name)
    if checkpoint is None:
        return "; there is no other checkpoint in its folder"
    return f"; the newest other one is {checkpoint} (in training: --restore-file {checkpoint})"
