"""fairseq checkpoints: read without running code, checked before a run is resumed, exported to a model folder."""

import contextlib
import pickle
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from fairseq_lxsr.encoder import DICTIONARY_FILE, save_folder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.text import SENTENCEPIECE_FILE, TEXT_FILE, TextOptions, Tokenizer, hash_symbols, read_dictionary

# under this name the task keeps the hash of its dictionary in every checkpoint
DICTIONARY_HASH = "dictionary_sha256"


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint with weights_only; tensors stay on disk until they are used.

    Raises: InputError for a missing file, one that is cut off, or one whose pickle would call code.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint{_other_checkpoint(path)}")
    try:
        state = _load(path)
        if not isinstance(state, dict) or "model" not in state or "cfg" not in state:
            raise InputError(f"{path}: no fairseq checkpoint, it has no model and cfg; choose another file")
        return state
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it calls {name[1]}" if name else "its pickle holds more than tensors and plain values"
        raise InputError(f"{path}: refused, {what}, which could run code{_other_checkpoint(path)}") from None
    except (RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cut off or damaged, not a whole checkpoint{_other_checkpoint(path)}") from None


def _load(path: Path) -> Any:
    # fairseq saves its options as a Namespace; the class itself is harmless
    with torch.serialization.safe_globals([Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _other_checkpoint(path: Path) -> str:
    """The newest other checkpoint of the folder that can be read, as the end of a message."""
    others = sorted(path.parent.glob("checkpoint*.pt"), key=lambda other: other.stat().st_mtime, reverse=True)
    for other in others:
        with contextlib.suppress(pickle.UnpicklingError, RuntimeError, EOFError, ValueError):
            if other.name == path.name or "model" not in _load(other):
                continue
            return f"; the checkpoint before it is {other}: pass --restore-file {other}, or remove {path.name}"
    return "; there is no other checkpoint beside it"


def check_resumable(path: Path, vocab_size: int, dictionary_hash: str) -> None:
    """Refuse a checkpoint that training could not go on from, before fairseq tries.

    Raises: InputError as `read_checkpoint`, and for a checkpoint of another dictionary.
    """
    state = read_checkpoint(path)
    embeddings = state["model"].get("encoder.embed_tokens.weight")
    found = state.get("task_state", {}).get(DICTIONARY_HASH)
    if (embeddings is not None and len(embeddings) != vocab_size) or (found and found != dictionary_hash):
        raise InputError(
            f"{path}: trained with another dictionary ({len(embeddings):,} entries; the data's has {vocab_size:,}); "
            "use the data it was trained on, or another --save-dir"
        )


def export_checkpoint(
    checkpoint: str | Path,
    output: str | Path,
    data: str | Path | None = None,
    sentencepiece_model: str | Path | None = None,
    lowercase: bool | None = None,
) -> Path:
    """Turn a fairseq checkpoint of `--arch lxsr*` into a model folder.

    Args:
        data: folder that fairseq-preprocess wrote, for the dictionary; default: the one the checkpoint names.
        sentencepiece_model, lowercase: how the data was made; default: what `lxsr prepare` left beside the dictionary.
    Returns: the model folder.
    Raises: InputError for anything missing or not fitting the checkpoint.
    """
    state = read_checkpoint(checkpoint)
    cfg = state["cfg"]
    data = Path(data or cfg["task"]["data"].split(":")[0])
    dictionary = find_dictionary(data)
    model = encoder_of(state, dictionary, checkpoint)
    spm = Path(sentencepiece_model or data / SENTENCEPIECE_FILE)
    if not spm.is_file():
        raise InputError(f"{spm}: no such file; name the SentencePiece model with --sentencepiece-model")
    if lowercase is not None:
        text = TextOptions(lowercase=lowercase)
    elif (data / TEXT_FILE).is_file():
        text = TextOptions.load(data / TEXT_FILE)
    else:
        raise InputError(f"{data / TEXT_FILE}: no such file; say --lowercase or --no-lowercase, as the data was made")
    Tokenizer(spm, text, read_dictionary(dictionary))  # refuses a model that does not go with the dictionary
    training = {
        "lang_pairs": cfg["task"].get("lang_pairs"),
        "objective": cfg["task"].get("objective"),
        "updates": state["optimizer_history"][-1]["num_updates"],
        "seed": cfg["common"]["seed"],
    }
    save_folder(output, model, dictionary, spm, text, training)
    return Path(output)


def find_dictionary(data: Path) -> Path:
    """dict.txt, or the first of the dict.LANG.txt files (they are equal: the dictionary is joined)."""
    if not data.is_dir():
        raise InputError(f"{data}: no such data folder; name the output of fairseq-preprocess with --data")
    found = [path for path in (data / DICTIONARY_FILE, *sorted(data.glob("dict.*.txt"))) if path.is_file()]
    if not found:
        raise InputError(f"{data}: has no dict.txt or dict.LANG.txt; expected the output of fairseq-preprocess")
    return found[0]


def encoder_of(state: dict[str, Any], dictionary: Path, checkpoint: str | Path) -> TransformerSentenceEncoder:
    """The encoder of a checkpoint, after checking that the dictionary is its own."""
    prefix = "encoder."
    weights = {name.removeprefix(prefix): value for name, value in state["model"].items() if name.startswith(prefix)}
    cfg = state["cfg"]["model"]
    symbols = read_dictionary(dictionary)
    vocab_size = len(symbols) + 1  # and <mask>
    if "embed_tokens.weight" not in weights or "embed_positions.weight" not in weights:
        raise InputError(f"{checkpoint}: a checkpoint of {cfg.get('_name')!r}; expected one of --arch lxsr*")
    trained = state.get("task_state", {}).get(DICTIONARY_HASH)
    if len(weights["embed_tokens.weight"]) != vocab_size or (trained and trained != hash_symbols(symbols)):
        raise InputError(
            f"{dictionary}: {vocab_size:,} entries with <mask>, not the dictionary that {checkpoint} was trained with "
            f"({len(weights['embed_tokens.weight']):,}); name the right folder with --data"
        )
    config = TransformerConfig(
        vocab_size=vocab_size,
        padding_idx=1,
        embed_dim=cfg["encoder_embed_dim"],
        ffn_embed_dim=cfg["encoder_ffn_embed_dim"],
        num_heads=cfg["encoder_attention_heads"],
        num_layers=cfg["encoder_layers"],
        max_positions=len(weights["embed_positions.weight"]),
    )
    model = TransformerSentenceEncoder(config)
    model.load_state_dict(weights)
    return model.eval()
