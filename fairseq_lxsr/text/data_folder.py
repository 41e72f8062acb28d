"""Checks a data folder of fairseq-preprocess, counts its sentences and those of its sources;
without fairseq.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import is_count, parse_json, sealed
from fairseq_lxsr.files.write import atomic_folder, restore_folder
from fairseq_lxsr.text.tokenizer import (
    DICTIONARY_FILE,
    SENTENCEPIECE_FILE,
    TEXT_FILE,
    TextOptions,
    Tokenizer,
    hash_symbols,
    is_lowercased,
    read_dictionary,
    words_of,
)

INDEX_MAGIC = b"MMIDIDX\x00\x00"  # first bytes of fairseq's memory-mapped datasets
STAGE_FILE = "stage.json"  # in a folder that we made: the SHA-256 of its files (`files`), and what it was made from
TRAINED_ON = re.compile(
    r"(train|valid).*\.(bin|idx|documents\.npy)"
)  # files that a run trains and validates on


def check_data_folder(folder: Path) -> None:
    """Refuse a data folder that does not exist."""
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such data folder; name one that fairseq-preprocess or `lxsr prepare` has made"
        )


def check_files(folder: Path, only: Collection[str] = ()) -> dict[str, str]:
    """Return the SHA-256 of the files that were trained on, after comparing all with `stage.json`,
    where there is one.

    That of a shard is in the folder above it. Files that are gone, or that nobody listed, pass;
    `only` are the names of those to compare.
    """
    expected: dict[str, str] = {}
    for manifest, inside in (
        (folder / STAGE_FILE, ""),
        (folder.parent / STAGE_FILE, f"{folder.name}/"),
    ):
        if manifest.is_file() and not expected:
            listed = read_hashes(manifest)
            expected = {
                name.removeprefix(inside): value
                for name, value in listed.items()
                if name.startswith(inside)
            }
    names = sorted(
        path.name for path in folder.iterdir() if path.is_file() and (not only or path.name in only)
    )
    found = {
        name: sha256(folder / name)
        for name in names
        if name in expected or TRAINED_ON.fullmatch(name)
    }
    for name, value in found.items():
        if expected.get(name, value) != value:
            raise InputError(
                f"{folder / name}: damaged or changed, its SHA-256 is not the one in {STAGE_FILE}; delete {folder} and "
                f"make it again, or delete {STAGE_FILE} where the change was meant"
            )
    return {name: value for name, value in found.items() if TRAINED_ON.fullmatch(name)}


def read_hashes(manifest: Path) -> dict[str, str]:
    """Read the SHA-256 of the files of a folder, by name, from its `stage.json`."""
    try:
        return dict(parse_json(manifest.read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{manifest}: no list of files and their SHA-256 ({error!r:.150}); delete {manifest.parent} and make it "
            "again"
        ) from None


def count_pairs(folder: Path, lang_pairs: str | None = None) -> dict[str, int]:
    """Count the sentence pairs for training by SRC-TGT; none where there is no such folder.

    `lang_pairs` are comma-separated, each in either order; None counts all.
    """
    wanted = (
        {frozenset(name.strip().split("-")) for name in lang_pairs.split(",")}
        if lang_pairs
        else None
    )
    counts = {
        path.name.split(".")[1]: count_sentences(path)
        for path in sorted(folder.glob("train.*-*.*.idx"))
    }
    return {
        name: count
        for name, count in counts.items()
        if wanted is None or frozenset(name.split("-")) in wanted
    }


def count_sentences(index: Path) -> int:
    """Return the number of sentences of a memory-mapped fairseq dataset from its .idx; 0 for
    another format.
    """
    with index.open("rb") as stream:
        head = stream.read(
            26
        )  # format name, version (8 bytes), type (1 byte), number of sentences (8 bytes)
    return int.from_bytes(head[18:], "little") if head.startswith(INDEX_MAGIC) else 0


def count_sources(sources: Mapping[str, int], is_kept: np.ndarray) -> dict[str, int]:
    """Count the kept pairs of each source, whose pairs follow each other: bool [pairs of all]."""
    parts = np.split(is_kept, np.cumsum(list(sources.values()))[:-1])
    return {name: int(np.count_nonzero(part)) for name, part in zip(sources, parts, strict=True)}


def write_sources(path: Path, sources: Mapping[str, int]) -> None:
    """Write the number of pairs of each source of a text."""
    path.write_text(json.dumps(sources, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_sources(path: Path, count: int) -> dict[str, int]:
    """Read the number of pairs of each source (kind of text), whose pairs follow each other in this
    order.

    There is none where there is no such file; `count` is the number of pairs of the text.
    """
    if not path.is_file():
        return {}
    try:
        sources = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{path}: not a JSON object ({error}); expected the number of pairs of each source"
        ) from None
    for name, number in sources.items():
        if not is_count(number):
            raise InputError(
                f"{path}: {shown(name)} is {shown(number)}; expected the number of its pairs"
            )
    if sum(sources.values()) != count:
        raise InputError(
            f"{path}: counts {sum(sources.values()):,} pairs, the text has {count:,}; run `lxsr prepare` again, or "
            "remove the file"
        )
    return sources


TEXT_FOLDER = "text"  # name of the folder beside the checkpoints


@dataclass(frozen=True)
class TextFiles:
    """Files and options that map text to the ids that a model was trained on."""

    dictionary: Path
    sentencepiece_model: Path
    options: TextOptions


def collect_text(data: Path, sentencepiece_model: str | Path | None = None) -> dict[str, bytes]:
    """Read dictionary, SentencePiece model and text options of a data folder, as `lxsr export`
    needs them, by name.

    A folder that fairseq-preprocess has made lacks the last two: the model is the one that the user
    names, or splits at blanks where the dictionary has no pieces of SentencePiece; the options are
    those that the dictionary shows. A model that is neither there nor named is left out.
    """
    dictionary, own, options = find_dictionary(data), data / SENTENCEPIECE_FILE, data / TEXT_FILE
    symbols, model = read_dictionary(dictionary), Path(sentencepiece_model or own)
    text = TextOptions.load(options) if options.is_file() else TextOptions(is_lowercased(symbols))
    if sentencepiece_model or own.is_file():
        _check_same(model, own)
        Tokenizer(model, text, symbols)  # refuses a model that does not fit the dictionary
    pieces = model.read_bytes() if model.is_file() else words_of(symbols)
    return {
        DICTIONARY_FILE: dictionary.read_bytes(),
        TEXT_FILE: options.read_bytes() if options.is_file() else text.dumps().encode(),
        **({} if pieces is None else {SENTENCEPIECE_FILE: pieces}),
    }


def _check_same(model: Path, own: Path) -> None:
    """Refuse a named SentencePiece model where the data folder has another one."""
    if own.is_file() and model.is_file() and sha256(own) != sha256(model):
        raise InputError(
            f"{model}: differs from {own}, which the training data was made with; leave --sentencepiece-model out"
        )


def keep_text(data: Path, save_dir: Path, sentencepiece_model: str | Path | None = None) -> None:
    """Write what `collect_text` reads beside the checkpoints, with the hashes: data folders may be
    moved or removed.
    """
    wanted = collect_text(data, sentencepiece_model)
    folder = save_dir / TEXT_FOLDER
    restore_folder(folder)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in wanted.items()}
    if not _are_kept(folder, hashes):
        with atomic_folder(folder, DICTIONARY_FILE) as work:
            for name, content in wanted.items():
                (work / name).write_bytes(content)
            (work / STAGE_FILE).write_text(
                json.dumps(sealed({"files": hashes})) + "\n", encoding="utf-8"
            )


def _are_kept(folder: Path, hashes: Mapping[str, str]) -> bool:
    try:
        check_files(folder)
        return read_hashes(folder / STAGE_FILE) == hashes and all(
            (folder / name).is_file() for name in hashes
        )
    except (InputError, OSError):
        return False


def find_shards(checkpoint: Path, named: str) -> list[Path]:
    """Find the data folders that a checkpoint names, from the current folder or from a parent of
    the checkpoint.
    """
    shards = [Path(name) for name in named.split(os.pathsep)]
    for start in (Path(), *checkpoint.absolute().parents):
        if (start / shards[0]).is_dir():
            return [start / shard for shard in shards]
    return shards


def find_text(
    folders: list[Path],
    sentencepiece_model: str | Path | None = None,
    lowercase: bool | None = None,
) -> TextFiles:
    """Take each text file from the first folder that has it; the first folder must have the
    dictionary.

    `sentencepiece_model` is the one that the user names; `lowercase` says whether the data is
    lower-cased, in place of the stored option.
    """
    dictionary = find_dictionary(folders[0])
    own, options = (
        next((folder / name for folder in folders if (folder / name).is_file()), folders[-1] / name)
        for name in (SENTENCEPIECE_FILE, TEXT_FILE)
    )
    model = Path(sentencepiece_model or own)
    if not model.is_file():
        case = ", and say --lowercase or --no-lowercase, as the data was made"
        case = "" if options.is_file() or lowercase is not None else case
        raise InputError(
            f"{model}: no such file; name the SentencePiece model with --sentencepiece-model{case}"
        )
    for path in (dictionary, own, options):
        if path.is_file():
            check_files(path.parent, [path.name])
    _check_same(model, own)
    if lowercase is None and not options.is_file():
        raise InputError(
            f"{options}: no such file; say --lowercase or --no-lowercase, as the data was made"
        )
    text = TextOptions.load(options) if options.is_file() else TextOptions()
    return TextFiles(
        dictionary, model, text if lowercase is None else replace(text, lowercase=lowercase)
    )


def kept_text(checkpoint: Path, dictionary_hash: str | None) -> list[Path]:
    """Return the folder of `keep_text` beside a checkpoint where its dictionary has this hash, else
    an empty list.
    """
    folder = checkpoint.parent / TEXT_FOLDER
    restore_folder(folder)
    dictionary = folder / DICTIONARY_FILE
    matches = dictionary.is_file() and hash_symbols(read_dictionary(dictionary)) == dictionary_hash
    return [folder] if matches else []


def find_dictionary(data: Path) -> Path:
    """Find dict.txt, or the first of the dict.LANG.txt files (all are equal, because the dictionary
    is joined).
    """
    check_data_folder(data)
    found = [
        path
        for path in (data / DICTIONARY_FILE, *sorted(data.glob("dict.*.txt")))
        if path.is_file()
    ]
    if not found:
        raise InputError(
            f"{data}: has no dict.txt or dict.LANG.txt; expected the output of fairseq-preprocess"
        )
    return found[0]
