"""fairseq checkpoints, read without running code."""

import contextlib
import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import stamp
from fairseq_lxsr.files.records import check_archive

# a task stores the hash of its dictionary and its target languages in every checkpoint under these
# keys
DICTIONARY_HASH, LANGUAGES = "dictionary_sha256", "target_languages"
DATA_HASH = "data_sha256"  # key for the hash of the text that it trains and validates on
FROM_LANG_PAIRS = "from_lang_pairs"  # key for the language pairs of the model that it went on from
SPLIT_PROBABILITY = "split_probability"  # key for that of each piece in training [V]
ARCHITECTURE = "architecture"  # key for the name of the network, one of `all_networks`

ENCODER_PREFIX, NETWORK_PREFIX = (
    "encoder.",
    "network.",
)  # prefixes of weight names; (T-)LASER has both
TOKEN_EMBEDDINGS = "embed_tokens.weight"


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint with weights_only, after checking its CRC; tensors stay on disk until they
    are used.
    """
    path = Path(path)
    if path.is_dir():
        best = path / "checkpoint_best.pt"
        known = best if best.is_file() else newest_checkpoint(path)
        there = f"for example {known}" if known else "and it has none"
        raise InputError(f"{path}: is a folder; expected a checkpoint in it, {there}")
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint{_other_checkpoint(path)}")
    try:
        state = _load(path)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL (\S+)", str(error))
        what = (
            f"it calls {name[1]}" if name else "its pickle holds more than tensors and plain values"
        )
        raise InputError(
            f"{path}: refused, {what}, which could run code{_other_checkpoint(path)}"
        ) from None
    except (
        Exception
    ) as error:  # torch raises errors of many kinds for a file that is something else
        if isinstance(error, OSError) and error.filename:
            raise
        what = "cut off or damaged, not a whole checkpoint: delete it"
        raise InputError(f"{path}: {what}{_other_checkpoint(path)}") from None
    return _checked(state, path)


def _load(path: Path) -> Any:
    is_archive = zipfile.is_zipfile(path)
    if is_archive:
        _check_once(path, *stamp(path))
    # fairseq saves its options as a Namespace; the class itself is harmless
    with torch.serialization.safe_globals([Namespace]):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not is_archive:  # torch finds an archive where the directory of its records is damaged
        raise zipfile.BadZipFile
    return state


@lru_cache
def _check_once(path: Path, *stamp: int) -> None:
    """Check an archive; training reads one several times, and a file of the same stamp is the
    same.
    """
    check_archive(path)


def _checked(state: Any, path: Path) -> dict[str, Any]:
    """Return the parts of a checkpoint that we read, after checking their types; optional parts may
    be empty.
    """
    if not isinstance(state, dict) or not isinstance(state.get("cfg"), dict):
        raise InputError(
            f"{path}: no checkpoint of fairseq-train, it has no model and cfg; choose another file"
        )
    # options of fairseq's older models and tasks
    cfg = {
        name: vars(part) if isinstance(part, Namespace) else part
        for name, part in state["cfg"].items()
    }
    parts = {name: cfg.get(name) for name in ("model", "task")}
    parts |= {
        name: {} if cfg.get(name) is None else cfg[name] for name in ("criterion", "common", "ema")
    }
    empty: dict[str, Any] = {"task_state": {}, "extra_state": {}, "optimizer_history": []}
    state = state | {name: value for name, value in empty.items() if state.get(name) is None}
    weights, history = state.get("model"), state["optimizer_history"]
    found: dict[str, Any] = {f"cfg.{name}": part for name, part in parts.items()} | {
        "task_state": state["task_state"]
    }
    good = {
        name: _has_values(part, lambda value: not isinstance(value, Tensor))
        for name, part in found.items()
    }
    good["extra_state"] = isinstance(
        state["extra_state"], dict
    )  # of several processes it holds tensors too
    good["optimizer_history"] = isinstance(history, list) and all(
        isinstance(part, dict) for part in history
    )
    good["model"] = bool(weights) and _has_values(weights, lambda value: isinstance(value, Tensor))
    for name, is_good in good.items():
        if not is_good:
            raise InputError(
                f"{path}: its {name} is not as fairseq-train writes it; choose another file"
            )
    return {**state, "optimizer_history": history or [{}], "cfg": cfg | parts}


def _has_values(part: Any, fit: Callable[[Any], bool]) -> bool:
    return isinstance(part, dict) and all(
        isinstance(name, str) and fit(value) for name, value in part.items()
    )


def newest_checkpoint(folder: Path, without: str = "", finite: bool = False) -> Path | None:
    """Return the newest checkpoint of a folder that is whole, and has only `finite` weights on
    demand.

    `without` is the name of one to leave out.
    """
    names = sorted(
        folder.glob("checkpoint*.pt"), key=lambda other: other.stat().st_mtime, reverse=True
    )
    for other in (path for path in names if path.name != without):
        with contextlib.suppress(Exception):
            weights = _checked(_load(other), other)["model"].values()
            if not finite or all(bool(value.isfinite().all()) for value in weights):
                return other
    return None


def _other_checkpoint(path: Path) -> str:
    """Name the checkpoint to use instead, as the end of a message."""
    other = newest_checkpoint(path.parent, path.name)
    if other is None:
        return "; there is no other checkpoint beside it"
    return f"; the newest other one is {other}: take that (in training --restore-file {other})"
