"""Converts a fairseq checkpoint into a model folder."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_lxsr.encoder.checkpoint import (
    ARCHITECTURE,
    DICTIONARY_HASH,
    ENCODER_PREFIX,
    FROM_DTYPE,
    FROM_LANG_PAIRS,
    NETWORK_PREFIX,
    SPLIT_PROBABILITY,
    TOKEN_EMBEDDINGS,
    read_checkpoint,
)
from fairseq_lxsr.encoder.model_folder import TEACHER, check_training
from fairseq_lxsr.encoder.torch_network import build_network, save_folder
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.modules import SentenceNetwork, all_networks
from fairseq_lxsr.options import STORED_TYPES
from fairseq_lxsr.text.data_folder import count_pairs, find_shards, find_text, kept_text
from fairseq_lxsr.text.segmentations import expected_rows, merged_from
from fairseq_lxsr.text.tokenizer import SPECIAL, Tokenizer, hash_symbols, read_dictionary

# Options that are omitted from the `options` in config.json: they only say where and how long
# training ran, or are stored elsewhere in config.json.
OPTIONS_OF_RUN = (
    "_name",
    "continue_once",
    "data",
    "finetune_from_model",
    "from_model",
    "lang_pairs",
    "mined",
    "near_embeddings",
    "no_save",
    "objective",
    "persistent_workers",
    "reset_optimizer",
    "restore_file",
    "save_dir",
    "seed",
    "sentencepiece_model",
    "teacher_embeddings",
    "teacher_text",
)
# Index of the padding symbol, the same in every fairseq dictionary.
PADDING_IDX = 1


def export_checkpoint(
    checkpoint: str | Path,
    output: str | Path,
    data: str | Path | None = None,
    sentencepiece_model: str | Path | None = None,
    lowercase: bool | None = None,
    dtype: str | None = None,
    ema: bool = False,
) -> Path:
    """Convert a fairseq checkpoint of this plugin into a model folder.

        export_checkpoint("checkpoints/checkpoint_best.pt", "model")
        SentenceEncoder.from_pretrained("model").encode(["A dog."])

    Args:
        checkpoint: checkpoint from fairseq-train.
        output: output folder.
        data: folder with the dictionary of fairseq-preprocess. By default the copy that training
            stored next to the checkpoint, otherwise the folder recorded in the checkpoint.
        sentencepiece_model: SentencePiece model; by default the file that `lxsr prepare` stored
            next to the dictionary.
        lowercase: whether the data was lower-cased; by default as `lxsr prepare` recorded it next
            to the dictionary.
        dtype: dtype of the stored weights; by default float32, or after training with --from that
            of the model that training continued from.
        ema: export the moving average of the weights (fairseq-train --store-ema).

    Returns:
        The model folder.

    Raises:
        InputError: if the checkpoint cannot be read, or does not match the dictionary.
    """
    state = read_checkpoint(checkpoint)
    if ema:
        state["model"] = _moving_average(state, checkpoint)
    recorded = state["cfg"]["task"].get("data")
    if not data and not (recorded and isinstance(recorded, str)):
        raise InputError(f"{checkpoint} does not record a data folder; specify one with --data")
    if data:
        shards = [Path(data)]
        text_folders = shards
    else:
        shards = find_shards(Path(checkpoint), recorded)
        copies = kept_text(Path(checkpoint), state["task_state"].get(DICTIONARY_HASH))
        text_folders = [*copies, shards[0]]
    text = find_text(text_folders, sentencepiece_model, lowercase)
    symbols = read_dictionary(text.dictionary)
    model = build_encoder(state, symbols, text.dictionary, checkpoint)
    # Building the tokenizer checks that the SentencePiece model matches the dictionary.
    Tokenizer(text.sentencepiece_model, text.options, symbols)
    training = describe_training(state, shards)
    if ema:
        training["ema_decay"] = state["cfg"]["ema"].get("ema_decay")
    try:
        check_training(training)
    except InputError as error:
        raise InputError(f"{checkpoint}: {error}; choose another file") from None
    save_folder(
        output,
        model,
        text.dictionary,
        text.sentencepiece_model,
        text.options,
        training,
        dtype or _starting_dtype(state),
    )
    return Path(output)


def _starting_dtype(state: dict[str, Any]) -> str:
    """Return the weight type of the model that training continued from, or float32."""
    dtype = state["task_state"].get(FROM_DTYPE)
    if dtype in STORED_TYPES:
        return dtype
    return "float32"


def describe_update(checkpoint: str | Path) -> str:
    """Describe which update a checkpoint is from, and whether its validation result is the best.

        describe_update("checkpoints/checkpoint_best.pt")
        # "update 285 (lowest validation loss, 2.5505)"

    Args:
        checkpoint: a file that fairseq-train wrote.

    Raises:
        InputError: if the checkpoint cannot be read.
    """
    state = read_checkpoint(checkpoint)
    update = f"update {state['optimizer_history'][-1].get('num_updates')}"
    value = state["extra_state"].get("val_loss")
    best = state["extra_state"].get("best")
    if not isinstance(value, float) or not isinstance(best, float):
        return f"{update} (without validation)"
    options = state["cfg"].get("checkpoint")
    if not isinstance(options, dict):
        options = {}
    metric = options.get("best_checkpoint_metric", "loss")
    superlative = "lowest"
    if options.get("maximize_best_checkpoint_metric"):
        superlative = "highest"
    if value == best:
        return f"{update} ({superlative} validation {metric}, {value:.5g})"
    return f"{update} (validation {metric} {value:.5g}; {superlative} {best:.5g})"


def _moving_average(state: dict[str, Any], checkpoint: str | Path) -> dict[str, Tensor]:
    average = state["extra_state"].get("ema")
    if not isinstance(average, dict) or not average:
        raise InputError(
            f"{checkpoint} contains no moving average of the weights; train with --store-ema, "
            "or export without --ema"
        )
    return average


def describe_training(state: dict[str, Any], shards: Sequence[Path]) -> dict[str, Any]:
    """Describe the training for config.json.

    Args:
        state: checkpoint content; see `read_checkpoint`.
        shards: data folders of the training; pairs of folders that no longer exist are not
            counted.

    Returns:
        The value of `training` in config.json.
    """
    cfg = state["cfg"]
    task = cfg["task"]
    pairs = _count_all_pairs(shards, task.get("lang_pairs"))
    training = {
        "lang_pairs": _all_lang_pairs(state, pairs),
        "pairs": dict(sorted(pairs.items())),
        "objective": task.get("objective"),
        "options": _training_options(cfg),
        "updates": state["optimizer_history"][-1].get("num_updates"),
        "finetuned": bool(task.get("finetune_from_model") or task.get("from_model")),
        "seed": cfg["common"].get("seed"),
    }
    teacher = state["task_state"].get(TEACHER)
    # Only the contrastive loss makes embeddings of student and teacher comparable.
    if teacher and task.get("distill_loss") == "contrast":
        training[TEACHER] = teacher
    return training


def _count_all_pairs(shards: Sequence[Path], lang_pairs: Any) -> Counter[str]:
    pairs: Counter[str] = Counter()
    for shard in shards:
        pairs.update(count_pairs(shard, lang_pairs if isinstance(lang_pairs, str) else None))
    return pairs


def _all_lang_pairs(state: dict[str, Any], pairs: Counter[str]) -> Any:
    """Return the language pairs of this training and of the training that it started from."""
    lang_pairs = state["cfg"]["task"].get("lang_pairs")
    earlier = state["task_state"].get(FROM_LANG_PAIRS)
    if not earlier or not isinstance(earlier, str):
        return lang_pairs
    current = lang_pairs.split(",") if lang_pairs else list(pairs)
    return ",".join(dict.fromkeys([*earlier.split(","), *current]))


def _training_options(cfg: dict[str, Any]) -> dict[str, Any]:
    """Return the training options that affected the model."""
    # The loss options belong to the task or to the criterion.
    options = cfg["criterion"] | cfg["task"]
    has_teacher = cfg["task"].get("teacher_embeddings") is not None
    effective = {}
    for name, value in options.items():
        if name in OPTIONS_OF_RUN:
            continue
        if name.startswith("distill") and not has_teacher:
            continue
        effective[name] = value
    return effective


def build_encoder(
    state: dict[str, Any], symbols: Sequence[str], dictionary: Path, checkpoint: str | Path
) -> SentenceNetwork:
    """Build the encoder network from a checkpoint.

    Args:
        state: checkpoint content; see `read_checkpoint`.
        symbols: symbols of the dictionary.
        dictionary: dictionary file, for error messages.
        checkpoint: checkpoint file, for error messages.

    Returns:
        The network, in evaluation mode.

    Raises:
        InputError: if the checkpoint was trained with another dictionary, or not written by this
            plugin.
    """
    weights = _encoder_weights(state)
    network = network_class(state, checkpoint)
    shape: list[int] = []
    if TOKEN_EMBEDDINGS in weights:
        shape = list(weights[TOKEN_EMBEDDINGS].shape)
    if len(shape) != 2:
        raise InputError(
            f"{checkpoint}: token embeddings have shape {shape}; expected 2 dimensions: choose "
            "another file"
        )
    vocab_size, embed_dim = shape
    _check_dictionary(state, vocab_size, symbols, dictionary, checkpoint)
    cfg = state["cfg"]["model"]
    sizes = {name: cfg[option] for name, option in network.options.items() if option in cfg}
    try:
        size = network.Config(
            vocab_size=vocab_size, padding_idx=PADDING_IDX, embed_dim=embed_dim, **sizes
        )
    except InputError as error:
        raise InputError(f"{checkpoint}: {error}; choose another file") from None
    probabilities = state["task_state"].get(SPLIT_PROBABILITY)
    if probabilities is not None and getattr(size, "sums_rows", False):
        weights[TOKEN_EMBEDDINGS] = expected_embeddings(
            weights[TOKEN_EMBEDDINGS], symbols, probabilities, checkpoint
        )
    return build_network(network, size, weights, checkpoint).eval()


def _encoder_weights(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights of the encoder, by their names in the network."""
    weights = {}
    for name, value in state["model"].items():
        if name.startswith(ENCODER_PREFIX):
            weights[name.removeprefix(ENCODER_PREFIX).removeprefix(NETWORK_PREFIX)] = value
    return weights


def _check_dictionary(
    state: dict[str, Any],
    vocab_size: int,
    symbols: Sequence[str],
    dictionary: Path,
    checkpoint: str | Path,
) -> None:
    """Check that a checkpoint was trained with this dictionary."""
    num_entries = len(symbols)
    counted = "entries"
    if state["cfg"]["task"].get("_name") == "xling_sent":
        # The task adds <mask> to the dictionary.
        num_entries += 1
        counted = "entries with <mask>"
    trained_hash = state["task_state"].get(DICTIONARY_HASH)
    is_same = not trained_hash or trained_hash == hash_symbols(symbols)
    if vocab_size != num_entries or not is_same:
        raise InputError(
            f"{dictionary} has {num_entries:,} {counted}; {checkpoint} was trained with another "
            f"dictionary ({vocab_size:,} entries): specify its data folder with --data"
        )


def expected_embeddings(
    table: Tensor, symbols: Sequence[str], probabilities: Any, checkpoint: str | Path
) -> Tensor:
    """Replace each piece's embedding with its expected value under the random splits of training.

    Args:
        table: embeddings of the V symbols [V, D], or [V + 1, D] with <mask>, whose row is kept.
        symbols: the V symbols of the dictionary.
        probabilities: probability that training split each of the V pieces; see
            `segmentations.expected_rows`.
        checkpoint: checkpoint file, for error messages.

    Returns:
        The expected embeddings, in the shape and type of `table`.

    Raises:
        InputError: if there is not one valid probability for each symbol.
    """
    is_valid = (
        isinstance(probabilities, list)
        and len(probabilities) == len(symbols)
        and all(isinstance(probability, float) for probability in probabilities)
    )
    if not is_valid:
        raise InputError(
            f"{checkpoint} contains invalid split probabilities; expected one for each of "
            f"{len(symbols):,} pieces: choose another file"
        )
    rows = expected_rows(
        table.float().numpy(),
        merged_from(symbols, len(SPECIAL)),
        np.array(probabilities, np.float32),
    )
    return torch.from_numpy(rows).to(table.dtype)


def network_class(state: dict[str, Any], checkpoint: str | Path) -> type[SentenceNetwork]:
    """Return the class of the network in a checkpoint.

    Args:
        state: checkpoint content; see `read_checkpoint`.
        checkpoint: checkpoint file, for error messages.

    Raises:
        InputError: if the network is unknown.
    """
    networks = all_networks()
    name = state["task_state"].get(ARCHITECTURE)
    if not isinstance(name, str) or name not in networks:
        cfg = state["cfg"]["model"]
        arch = name or cfg.get("_name") or cfg.get("arch")
        raise InputError(
            f"{checkpoint}: unknown architecture {shown(arch)}; choose from "
            f"{', '.join(sorted(networks))}"
        )
    return networks[name]
