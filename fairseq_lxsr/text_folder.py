"""Finds dictionary, SentencePiece model and text options in a data folder, and copies them beside checkpoints."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from fairseq_lxsr.atomic import atomic_folder, restore_folder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import sha256
from fairseq_lxsr.text import (
    DICTIONARY_FILE,
    SENTENCEPIECE_FILE,
    TEXT_FILE,
    TextOptions,
    hash_symbols,
    read_dictionary,
)

KEPT = "text"  # name of the folder beside the checkpoints


@dataclass(frozen=True)
class TextFiles:
    """Files and options that map text to the ids that a model was trained on."""

    dictionary: Path
    sentencepiece_model: Path
    options: TextOptions


def keep_text(data: Path, save_dir: Path) -> None:
    """Copy the text files beside the checkpoints: export needs them, and data folders may be moved or removed."""
    named = {DICTIONARY_FILE: find_dictionary(data)} | {name: data / name for name in (SENTENCEPIECE_FILE, TEXT_FILE)}
    wanted = {name: path.read_bytes() for name, path in named.items() if path.is_file()}
    folder = save_dir / KEPT
    restore_folder(folder)
    if {name: (folder / name).read_bytes() for name in named if (folder / name).is_file()} != wanted:
        with atomic_folder(folder, DICTIONARY_FILE) as work:
            for name, content in wanted.items():
                (work / name).write_bytes(content)


def find_shards(checkpoint: Path, named: str) -> list[Path]:
    """Find the data folders that a checkpoint names, from the current folder or from a parent of the checkpoint."""
    shards = [Path(name) for name in named.split(os.pathsep)]
    for start in (Path(), *checkpoint.absolute().parents):
        if (start / shards[0]).is_dir():
            return [start / shard for shard in shards]
    return shards


def find_text(
    folders: list[Path], sentencepiece_model: str | Path | None = None, lowercase: bool | None = None
) -> TextFiles:
    """Take each text file from the first folder that has it.

    Args:
        folders: folders to search; the first must have the dictionary.
        sentencepiece_model: the model that the user names; None takes that of the folders.
        lowercase: whether the data is lower-cased, in place of the stored option; None keeps that option.

    Raises:
        InputError: for a missing file, and for a SentencePiece model that differs from that of the folders.
    """
    dictionary = find_dictionary(folders[0])
    own, options = (
        next((folder / name for folder in folders if (folder / name).is_file()), folders[-1] / name)
        for name in (SENTENCEPIECE_FILE, TEXT_FILE)
    )
    model = Path(sentencepiece_model or own)
    if not model.is_file():
        raise InputError(f"{model}: no such file; name the SentencePiece model with --sentencepiece-model")
    if own.is_file() and sha256(own) != sha256(model):
        raise InputError(
            f"{model}: another one than {own}, which the training data was made with; leave --sentencepiece-model out"
        )
    if lowercase is None and not options.is_file():
        raise InputError(f"{options}: no such file; say --lowercase or --no-lowercase, as the data was made")
    text = TextOptions.load(options) if options.is_file() else TextOptions()
    return TextFiles(dictionary, model, text if lowercase is None else replace(text, lowercase=lowercase))


def kept_text(checkpoint: Path, dictionary_hash: str | None) -> list[Path]:
    """Return the folder of `keep_text` beside a checkpoint where its dictionary has this hash, else an empty list."""
    folder = checkpoint.parent / KEPT
    restore_folder(folder)
    dictionary = folder / DICTIONARY_FILE
    matches = dictionary.is_file() and hash_symbols(read_dictionary(dictionary)) == dictionary_hash
    return [folder] if matches else []


def find_dictionary(data: Path) -> Path:
    """Find dict.txt, or the first of the dict.LANG.txt files (all are equal, because the dictionary is joined)."""
    if not data.is_dir():
        raise InputError(f"{data}: no such data folder; name the output of fairseq-preprocess with --data")
    found = [path for path in (data / DICTIONARY_FILE, *sorted(data.glob("dict.*.txt"))) if path.is_file()]
    if not found:
        raise InputError(f"{data}: has no dict.txt or dict.LANG.txt; expected the output of fairseq-preprocess")
    return found[0]
