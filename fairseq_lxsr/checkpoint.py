"""fairseq checkpoints: read without running code, checked before a run is resumed, exported to a model folder."""

import contextlib
import pickle
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_lxsr.data_folder import count_pairs
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.model_files import DEFAULT_ARCHITECTURE, check_training
from fairseq_lxsr.model_folder import build_network, save_folder
from fairseq_lxsr.modules import SentenceNetwork, all_networks
from fairseq_lxsr.segmentations import expected_rows, merged_from
from fairseq_lxsr.text import SPECIAL, Tokenizer, hash_symbols, read_dictionary
from fairseq_lxsr.text_folder import find_shards, find_text, kept_text

# a task stores the hash of its dictionary and its target languages in every checkpoint under these keys
DICTIONARY_HASH, LANGUAGES = "dictionary_sha256", "target_languages"
SPLIT_PROBABILITY = "split_probability"  # key for that of each piece in training [V]
ARCHITECTURE = "architecture"  # key for the name of the network, one of `all_networks`

ENCODER, NETWORK = "encoder.", "network."  # prefixes of the encoder's weight names; (T-)LASER has the second
TOKEN_EMBEDDINGS = "embed_tokens.weight"
# checkpoints of version 0.1 do not name their network; these tasks trained no other
TRANSFORMER_TASKS = ("xling_sent", "sent_context")
# options that say where and how long a run was, or that config.json stores elsewhere
OF_ONE_RUN = (
    *("_name", "data", "teacher_embeddings", "lang_pairs", "objective", "seed", "save_dir", "restore_file"),
    *("continue_once", "finetune_from_model", "reset_optimizer", "no_save", "persistent_workers", "mined"),
)
PADDING_IDX = 1  # the same in every fairseq dictionary


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint with weights_only; tensors stay on disk until they are used.

    Raises:
        InputError: for a missing file, a folder, a file that is cut off, or one whose pickle would call code.
    """
    path = Path(path)
    if path.is_dir():
        best = path / "checkpoint_best.pt"
        known = best if best.is_file() else newest_other(best)
        there = f"for example {known}" if known else "and it has none"
        raise InputError(f"{path}: is a folder; expected a checkpoint in it, {there}")
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint{_other_checkpoint(path)}")
    try:
        state = _load(path)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it calls {name[1]}" if name else "its pickle holds more than tensors and plain values"
        raise InputError(f"{path}: refused, {what}, which could run code{_other_checkpoint(path)}") from None
    except Exception as error:  # torch raises errors of many kinds for a file that is something else
        if isinstance(error, OSError) and error.filename:
            raise
        raise InputError(f"{path}: cut off or damaged, not a whole checkpoint{_other_checkpoint(path)}") from None
    return _checked(state, path)


def _load(path: Path) -> Any:
    # fairseq saves its options as a Namespace; the class itself is harmless
    with torch.serialization.safe_globals([Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _checked(state: Any, path: Path) -> dict[str, Any]:
    """Return the parts of a checkpoint that we read, after checking their types; optional parts may be empty.

    Raises:
        InputError: for anything that fairseq-train did not write.
    """
    if not isinstance(state, dict) or not isinstance(state.get("cfg"), dict):
        raise InputError(f"{path}: no checkpoint of fairseq-train, it has no model and cfg; choose another file")
    # options of fairseq's older models and tasks
    cfg = {name: vars(part) if isinstance(part, Namespace) else part for name, part in state["cfg"].items()}
    parts = {name: cfg.get(name) for name in ("model", "task")}
    parts |= {name: _or(cfg.get(name), {}) for name in ("criterion", "common", "ema")}
    more = {name: _or(state.get(name), {}) for name in ("task_state", "extra_state")}
    history = _or(state.get("optimizer_history"), [])
    weights = state.get("model")
    found: dict[str, Any] = {f"cfg.{name}": part for name, part in parts.items()} | {"task_state": more["task_state"]}
    wrong = next((name for name, part in found.items() if not _is_plain(part)), None)
    if not isinstance(more["extra_state"], dict):  # of several processes it holds tensors too
        wrong = "extra_state"
    if not (isinstance(history, list) and all(isinstance(part, dict) for part in history)):
        wrong = "optimizer_history"
    if not (isinstance(weights, dict) and weights and all(map(_is_weight, *zip(*weights.items(), strict=True)))):
        wrong = "model"
    if wrong:
        raise InputError(f"{path}: its {wrong} is none that fairseq-train writes; choose another file")
    return {**state, **more, "optimizer_history": history or [{}], "cfg": cfg | parts}


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _is_plain(part: Any) -> bool:
    return isinstance(part, dict) and not any(isinstance(value, Tensor) for value in part.values())


def _is_weight(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, Tensor)


def newest_other(path: Path) -> Path | None:
    """Return the newest other checkpoint of the folder that can be read."""
    others = sorted(path.parent.glob("checkpoint*.pt"), key=lambda other: other.stat().st_mtime, reverse=True)
    for other in others:
        with contextlib.suppress(Exception):
            if other.name != path.name and _checked(_load(other), other):
                return other
    return None


def _other_checkpoint(path: Path) -> str:
    """Name the checkpoint to use instead, as the end of a message."""
    other = newest_other(path)
    if other is None:
        return "; there is no other checkpoint beside it"
    return f"; the newest other one is {other}: take that (in training --restore-file {other})"


def check_resumable(
    path: Path,
    task: str,
    vocab_size: int,
    task_state: dict[str, Any],
    weights: dict[str, Tensor],
    exact: bool = True,
    options_without_shape: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Refuse a checkpoint that training cannot resume from, before fairseq tries.

    Args:
        weights: weights of the model that is to resume.
        exact: require exactly the same weights, because the optimizer resumes as well where its state is kept.
        options_without_shape: see `SentenceNetwork.options_without_shape`.

    Raises:
        InputError: as `read_checkpoint`, and for another task, dictionary, other languages, weights or options.
    """
    state = read_checkpoint(path)
    options = state["cfg"]["task"]
    trained_by = options.get("_name") or options.get("task")
    if trained_by != task:
        raise InputError(f"{path}: trained by --task {trained_by}, not {task}; choose another --save-dir")
    entries = [len(value) for name, value in state["model"].items() if name.endswith(TOKEN_EMBEDDINGS) and value.dim()]
    other = next((count for count in entries if count != vocab_size), None)
    found = state.get("task_state", {})
    if other or found.get(DICTIONARY_HASH, task_state[DICTIONARY_HASH]) != task_state[DICTIONARY_HASH]:
        sizes = f"{other:,} entries; the data's has {vocab_size:,}" if other else "of the same size"
        raise InputError(
            f"{path}: trained with another dictionary ({sizes}); use the data it was trained on, or another --save-dir"
        )
    if found.get(LANGUAGES) != task_state.get(LANGUAGES):
        raise InputError(
            f"{path}: trained to translate into {found.get(LANGUAGES)}, not {task_state.get(LANGUAGES)}; "
            "name the same languages, or another --save-dir"
        )
    shapes, ours = ({name: tuple(value.shape) for name, value in each.items()} for each in (state["model"], weights))
    for name in sorted(shapes.keys() & ours.keys()):
        if shapes[name] != ours[name]:
            raise InputError(
                f"{path}: trained with other sizes, {name} is {shapes[name]} and now {ours[name]}; give the same "
                "options, or another --save-dir"
            )
    if not exact:
        return
    _check_options(path, state["cfg"]["model"], options_without_shape)
    if state.get("last_optimizer_state") is not None and shapes.keys() != ours.keys():
        raise InputError(
            f"{path}: trained with other losses or layers, only one of the two has {min(shapes.keys() ^ ours.keys())}; "
            "give the same options, or begin with --finetune-from-model in another --save-dir"
        )


def _check_options(path: Path, stored: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if stored.get(name, value) != value:  # older checkpoints lack newer options
            raise InputError(
                f"{path}: trained with --{name.replace('_', '-')} {shown(stored[name])}, now {value}; give the same "
                "options, or begin with --finetune-from-model in another --save-dir"
            )


def export_checkpoint(
    checkpoint: str | Path,
    output: str | Path,
    data: str | Path | None = None,
    sentencepiece_model: str | Path | None = None,
    lowercase: bool | None = None,
    dtype: str = "float32",
    ema: bool = False,
) -> Path:
    """Turn a fairseq checkpoint of this plugin into a model folder.

    Args:
        checkpoint: file that fairseq-train wrote.
        output: model folder to write.
        data: folder with the dictionary that fairseq-preprocess wrote; by default what training kept beside the
            checkpoint, then the folder that the checkpoint names.
        sentencepiece_model: the model that split the data; by default what `lxsr prepare` left beside the dictionary.
        lowercase: whether the data was lower-cased; by default what `lxsr prepare` left beside the dictionary.
        dtype: precision of the weights on disk.
        ema: take the moving average of the weights (fairseq-train --store-ema), not the weights of the last update.

    Returns:
        Path of the model folder.

    Raises:
        InputError: for anything that is missing or does not fit the checkpoint.
    """
    state = read_checkpoint(checkpoint)
    if ema:
        state = averaged(state, checkpoint)
    named = state["cfg"]["task"].get("data")
    if not data and not (named and isinstance(named, str)):
        raise InputError(f"{checkpoint}: names no data folder; name it with --data")
    shards = [Path(data)] if data else find_shards(Path(checkpoint), named)
    kept = [] if data else kept_text(Path(checkpoint), state["task_state"].get(DICTIONARY_HASH))
    text = find_text([*kept, shards[0]], sentencepiece_model, lowercase)
    symbols = read_dictionary(text.dictionary)
    model = encoder_of(state, symbols, text.dictionary, checkpoint)
    Tokenizer(text.sentencepiece_model, text.options, symbols)  # refuses a model that does not fit the dictionary
    training = how_trained(state, shards) | ({"ema_decay": state["cfg"]["ema"].get("ema_decay")} if ema else {})
    try:
        check_training(training)
    except InputError as error:
        raise InputError(f"{checkpoint}: {error}; choose another file") from None
    save_folder(output, model, text.dictionary, text.sentencepiece_model, text.options, training, dtype)
    return Path(output)


def averaged(state: dict[str, Any], checkpoint: str | Path) -> dict[str, Any]:
    """Replace the weights of a checkpoint by their moving average."""
    average = state["extra_state"].get("ema")
    if not (isinstance(average, dict) and average):
        raise InputError(
            f"{checkpoint}: has no moving average of its weights; train with --store-ema, or export without"
        )
    return {**state, "model": average}


def how_trained(state: dict[str, Any], shards: Sequence[Path]) -> dict[str, Any]:
    """Describe the training for config.json: the text, the options of the loss and the number of updates.

    Args:
        state: the checkpoint.
        shards: data folders of the training; folders that no longer exist are not counted.
    """
    cfg = state["cfg"]
    distilled = cfg["task"].get("teacher_embeddings") is not None
    wanted = cfg["task"].get("lang_pairs")
    pairs: Counter[str] = Counter()
    for shard in shards:
        pairs.update(count_pairs(shard, wanted if isinstance(wanted, str) else None))
    return {
        "lang_pairs": wanted,
        "pairs": dict(sorted(pairs.items())),
        "objective": cfg["task"].get("objective"),
        # options of the loss: the criterion held them until version 0.1, the task holds them since
        "options": {
            name: value
            for name, value in (cfg["criterion"] | cfg["task"]).items()
            if name not in OF_ONE_RUN and (distilled or not name.startswith("distill"))
        },
        "updates": state["optimizer_history"][-1].get("num_updates"),
        "seed": cfg["common"].get("seed"),
    }


def encoder_of(
    state: dict[str, Any], symbols: Sequence[str], dictionary: Path, checkpoint: str | Path
) -> SentenceNetwork:
    """Build the encoder of a checkpoint, after checking that the symbols are those of its dictionary."""
    weights = {
        name.removeprefix(ENCODER).removeprefix(NETWORK): value
        for name, value in state["model"].items()
        if name.startswith(ENCODER)
    }
    cfg, task = state["cfg"]["model"], state["cfg"]["task"].get("_name")
    network = network_of(state, weights, checkpoint)
    vocab_size, embed_dim = _embedding_sizes(weights, checkpoint)
    expected = len(symbols) + (task == "xling_sent")  # <mask> is added
    trained = state["task_state"].get(DICTIONARY_HASH)
    if vocab_size != expected or (trained and trained != hash_symbols(symbols)):
        raise InputError(
            f"{dictionary}: {expected:,} entries{' with <mask>' if expected > len(symbols) else ''}, not the "
            f"dictionary that {checkpoint} was trained with ({vocab_size:,}); name the right folder with --data"
        )
    sizes = {name: cfg[option] for name, option in network.options.items() if option in cfg}
    try:
        size = network.Config(vocab_size=vocab_size, padding_idx=PADDING_IDX, embed_dim=embed_dim, **sizes)
    except InputError as error:
        raise InputError(f"{checkpoint}: {error}; choose another file") from None
    splits = state["task_state"].get(SPLIT_PROBABILITY)
    if splits is not None and getattr(size, "is_bag", False):
        weights[TOKEN_EMBEDDINGS] = expected_embeddings(weights[TOKEN_EMBEDDINGS], symbols, splits, checkpoint)
    return build_network(network, size, weights, checkpoint).eval()


def expected_embeddings(table: Tensor, symbols: Sequence[str], splits: Any, checkpoint: str | Path) -> Tensor:
    """Replace each row of a table by what its piece is read as on average, see `segmentations.expected_rows`.

    Args:
        table: [V, D], or [V + 1, D] with <mask>, whose row stays.
        symbols: V entries of the dictionary.
        splits: probability with which training split each of them, as the checkpoint has it.
        checkpoint: file of the checkpoint, for messages.

    Raises:
        InputError: for anything but V numbers.
    """
    if not (isinstance(splits, list) and len(splits) == len(symbols) and all(isinstance(p, float) for p in splits)):
        raise InputError(f"{checkpoint}: has no probability for each of {len(symbols):,} pieces; choose another file")
    pieces, probability = table[: len(symbols)].float().numpy(), np.array(splits, np.float32)
    rows = expected_rows(pieces, merged_from(symbols, len(SPECIAL)), probability)
    return torch.cat((torch.from_numpy(rows).to(table.dtype), table[len(symbols) :]))


def network_of(state: dict[str, Any], weights: dict[str, Tensor], checkpoint: str | Path) -> type[SentenceNetwork]:
    """Return the kind of network from the task's state, or for checkpoints of version 0.1 from the weights."""
    networks, options = all_networks(), state["cfg"]
    name = state["task_state"].get(ARCHITECTURE)
    if name is None:
        name = next((known for known, network in networks.items() if network.marker in weights), None)
    if name is None and options["task"].get("_name") in TRANSFORMER_TASKS:
        name = DEFAULT_ARCHITECTURE
    if not isinstance(name, str) or name not in networks:
        arch = name or options["model"].get("_name") or options["model"].get("arch")
        raise InputError(f"{checkpoint}: a checkpoint of {shown(arch)}; expected one of {', '.join(sorted(networks))}")
    return networks[name]


def _embedding_sizes(weights: dict[str, Tensor], checkpoint: str | Path) -> list[int]:
    """Return the number of dictionary entries and the width of the embedding table."""
    sizes = list(weights[TOKEN_EMBEDDINGS].shape) if TOKEN_EMBEDDINGS in weights else []
    if len(sizes) != 2:
        raise InputError(
            f"{checkpoint}: its token embeddings have the sizes {sizes}; expected two, choose another file"
        )
    return sizes
