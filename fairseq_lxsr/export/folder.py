"""From a fairseq checkpoint to a model folder."""

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
    FROM_LANG_PAIRS,
    NETWORK_PREFIX,
    SPLIT_PROBABILITY,
    TOKEN_EMBEDDINGS,
    read_checkpoint,
)
from fairseq_lxsr.encoder.model_folder import DEFAULT_ARCHITECTURE, TEACHER, check_training
from fairseq_lxsr.encoder.torch_network import build_network, save_folder
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.modules import SentenceNetwork, all_networks
from fairseq_lxsr.text.data_folder import count_pairs, find_shards, find_text, kept_text
from fairseq_lxsr.text.segmentations import expected_rows, merged_from
from fairseq_lxsr.text.tokenizer import SPECIAL, Tokenizer, hash_symbols, read_dictionary

# checkpoints of version 0.1 do not name their network: a weight that no other one has does, or the
# task
MARKERS, TASKS = (
    {"layers.0.ahead.weight_hh_l0": "laser", "tag": "tlaser"},
    ("xling_sent", "sent_context"),
)
# options that say where and how long a run was, or that config.json stores elsewhere
OF_ONE_RUN = (
    *(
        "_name",
        "data",
        "teacher_embeddings",
        "lang_pairs",
        "objective",
        "seed",
        "save_dir",
        "restore_file",
    ),
    *(
        "continue_once",
        "finetune_from_model",
        "from_model",
        "reset_optimizer",
        "no_save",
        "persistent_workers",
    ),
    *("mined", "near_embeddings", "sentencepiece_model", "teacher_text"),
)
PADDING_IDX = 1  # the same in every fairseq dictionary


def export_checkpoint(
    checkpoint: str | Path,
    output: str | Path,
    data: str | Path | None = None,
    sentencepiece_model: str | Path | None = None,
    lowercase: bool | None = None,
    dtype: str = "float32",
    ema: bool = False,
) -> Path:
    """Turn a fairseq checkpoint of this plugin into a model folder, and return its path.

    `data` is the folder with the dictionary that fairseq-preprocess wrote; by default what training
    kept beside the checkpoint, then the folder that the checkpoint names. The SentencePiece model
    and whether the data was lower-cased are by default what `lxsr prepare` left beside the
    dictionary. `ema` takes the moving average of the weights (fairseq-train --store-ema), and
    `dtype` is their precision on disk.
    """
    state = read_checkpoint(checkpoint)
    if ema:
        average = state["extra_state"].get("ema")
        if not (isinstance(average, dict) and average):
            advice = "train with --store-ema, or export without"
            raise InputError(f"{checkpoint}: has no moving average of its weights; {advice}")
        state["model"] = average
    named = state["cfg"]["task"].get("data")
    if not data and not (named and isinstance(named, str)):
        raise InputError(f"{checkpoint}: names no data folder; name it with --data")
    shards = [Path(data)] if data else find_shards(Path(checkpoint), named)
    kept = [] if data else kept_text(Path(checkpoint), state["task_state"].get(DICTIONARY_HASH))
    text = find_text([*kept, shards[0]], sentencepiece_model, lowercase)
    symbols = read_dictionary(text.dictionary)
    model = build_encoder(state, symbols, text.dictionary, checkpoint)
    # refuses a model that does not fit the dictionary
    Tokenizer(text.sentencepiece_model, text.options, symbols)
    training = describe_training(state, shards) | (
        {"ema_decay": state["cfg"]["ema"].get("ema_decay")} if ema else {}
    )
    try:
        check_training(training)
    except InputError as error:
        raise InputError(f"{checkpoint}: {error}; choose another file") from None
    save_folder(
        output, model, text.dictionary, text.sentencepiece_model, text.options, training, dtype
    )
    return Path(output)


def describe_training(state: dict[str, Any], shards: Sequence[Path]) -> dict[str, Any]:
    """Describe the training for config.json; data folders of it (`shards`) that no longer exist are
    not counted.
    """
    cfg, task = state["cfg"], state["cfg"]["task"]
    wanted = task.get("lang_pairs")
    pairs: Counter[str] = Counter()
    for shard in shards:
        pairs.update(count_pairs(shard, wanted if isinstance(wanted, str) else None))
    before = state["task_state"].get(FROM_LANG_PAIRS)
    if before and isinstance(before, str):
        wanted = ",".join(
            dict.fromkeys((*before.split(","), *(wanted.split(",") if wanted else pairs)))
        )
    # options of the loss: the criterion held them until version 0.1, the task holds them since
    options = {
        name: value for name, value in (cfg["criterion"] | task).items() if name not in OF_ONE_RUN
    }
    teacher = state["task_state"].get(TEACHER)
    if task.get("teacher_embeddings") is None:
        options = {name: value for name, value in options.items() if not name.startswith("distill")}
    return {
        "lang_pairs": wanted,
        "pairs": dict(sorted(pairs.items())),
        "objective": task.get("objective"),
        "options": options,
        "updates": state["optimizer_history"][-1].get("num_updates"),
        "finetuned": bool(task.get("finetune_from_model") or task.get("from_model")),
        "seed": cfg["common"].get("seed"),
    } | ({TEACHER: teacher} if teacher and task.get("distill_loss") == "contrast" else {})


def build_encoder(
    state: dict[str, Any], symbols: Sequence[str], dictionary: Path, checkpoint: str | Path
) -> SentenceNetwork:
    """Build the encoder of a checkpoint, after checking that the symbols are those of its
    dictionary.
    """
    weights = {
        name.removeprefix(ENCODER_PREFIX).removeprefix(NETWORK_PREFIX): value
        for name, value in state["model"].items()
        if name.startswith(ENCODER_PREFIX)
    }
    cfg, task = state["cfg"]["model"], state["cfg"]["task"].get("_name")
    network = network_class(state, weights, checkpoint)
    sizes = list(weights[TOKEN_EMBEDDINGS].shape) if TOKEN_EMBEDDINGS in weights else []
    if len(sizes) != 2:
        advice = "expected two, choose another file"
        raise InputError(f"{checkpoint}: its token embeddings have the sizes {sizes}; {advice}")
    vocab_size, embed_dim = sizes
    expected = len(symbols) + (task == "xling_sent")  # <mask> is added
    trained = state["task_state"].get(DICTIONARY_HASH)
    if vocab_size != expected or (trained and trained != hash_symbols(symbols)):
        raise InputError(
            f"{dictionary}: {expected:,} entries{' with <mask>' if expected > len(symbols) else ''}, not the "
            f"dictionary that {checkpoint} was trained with ({vocab_size:,}); name the right folder with --data"
        )
    others = {name: cfg[option] for name, option in network.options.items() if option in cfg}
    try:
        size = network.Config(
            vocab_size=vocab_size, padding_idx=PADDING_IDX, embed_dim=embed_dim, **others
        )
    except InputError as error:
        raise InputError(f"{checkpoint}: {error}; choose another file") from None
    splits = state["task_state"].get(SPLIT_PROBABILITY)
    if splits is not None and getattr(size, "sums_rows", False):
        weights[TOKEN_EMBEDDINGS] = expected_embeddings(
            weights[TOKEN_EMBEDDINGS], symbols, splits, checkpoint
        )
    return build_network(network, size, weights, checkpoint).eval()


def expected_embeddings(
    table: Tensor, symbols: Sequence[str], splits: Any, checkpoint: str | Path
) -> Tensor:
    """Replace each row of a table by what its piece is read as on average, see
    `segmentations.expected_rows`.

    `splits` are the probabilities with which training split the V symbols; a row V + 1, of <mask>,
    stays.
    """
    if not (
        isinstance(splits, list)
        and len(splits) == len(symbols)
        and all(isinstance(p, float) for p in splits)
    ):
        raise InputError(
            f"{checkpoint}: has no probability for each of {len(symbols):,} pieces; choose another file"
        )
    rows = expected_rows(
        table.float().numpy(), merged_from(symbols, len(SPECIAL)), np.array(splits, np.float32)
    )
    return torch.from_numpy(rows).to(table.dtype)


def network_class(
    state: dict[str, Any], weights: dict[str, Tensor], checkpoint: str | Path
) -> type[SentenceNetwork]:
    """Return the kind of network from the task's state, or for checkpoints of version 0.1 from the
    weights.
    """
    networks, name = all_networks(), state["task_state"].get(ARCHITECTURE)
    if name is None:
        default = DEFAULT_ARCHITECTURE if state["cfg"]["task"].get("_name") in TASKS else None
        name = next((known for marker, known in MARKERS.items() if marker in weights), default)
    if not isinstance(name, str) or name not in networks:
        arch = name or state["cfg"]["model"].get("_name") or state["cfg"]["model"].get("arch")
        raise InputError(
            f"{checkpoint}: a checkpoint of {shown(arch)}; expected one of {', '.join(sorted(networks))}"
        )
    return networks[name]
