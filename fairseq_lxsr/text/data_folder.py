"""Checks data folders from fairseq-preprocess and counts their sentences, without fairseq."""

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
    words_model_of,
)

# First bytes of an .idx file in fairseq's memory-mapped format.
INDEX_MAGIC = b"MMIDIDX\x00\x00"
# File in every data folder that this package writes; it records the inputs and the SHA-256
# checksums of all files.
STAGE_FILE = "stage.json"
# Matches the names of the files that training or validation uses.
TRAINED_ON = re.compile(r"(train|valid).*\.(bin|idx|documents\.npy)")


def check_data_folder(folder: Path) -> None:
    """Check that a data folder exists.

    Raises:
        InputError: if the folder does not exist.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such data folder; expected the output of fairseq-preprocess or "
            "`lxsr prepare`"
        )


def split_shards(data: str) -> list[Path]:
    """Split fairseq's data argument, folders joined by `os.pathsep`, into paths.

    Args:
        data: value of the data argument.

    Returns:
        Paths of the folders, in the given order.

    Raises:
        InputError: if the whole string is the name of an existing folder, which fairseq would
            split.
    """
    if os.pathsep in data and Path(data).is_dir():
        raise InputError(
            f"{data}: the folder name contains {os.pathsep!r}, which separates data folders; "
            "rename the folder"
        )
    return [Path(name) for name in data.split(os.pathsep)]


def check_files(folder: Path, only: Collection[str] = ()) -> dict[str, str]:
    """Verify the files of a data folder against the checksums in `stage.json`.

    Missing files, unlisted files and a missing `stage.json` are not errors.

    Args:
        folder: a data folder, or a shard, whose `stage.json` is in the parent folder.
        only: names of the files to verify; empty for all files.

    Returns:
        SHA-256 checksums of the training and validation files among them, keyed by file name.

    Raises:
        InputError: if a file does not match its checksum.
    """
    expected = _listed_hashes(folder)
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    training_hashes = {}
    for name in names:
        if only and name not in only:
            continue
        is_trained_on = TRAINED_ON.fullmatch(name) is not None
        if name not in expected and not is_trained_on:
            continue
        checksum = sha256(folder / name)
        if expected.get(name, checksum) != checksum:
            raise InputError(
                f"{folder / name}: damaged or changed: its SHA-256 does not match {STAGE_FILE}; "
                f"delete {folder} and create it again, or delete {STAGE_FILE} if the change was "
                "intended"
            )
        if is_trained_on:
            training_hashes[name] = checksum
    return training_hashes


def _listed_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 checksums of a folder's files, keyed by file name.

    They come from the `stage.json` of the folder or of its parent; empty if there is neither.
    """
    manifest = folder / STAGE_FILE
    if manifest.is_file():
        hashes = read_hashes(manifest)
        if hashes:
            return hashes
    manifest = folder.parent / STAGE_FILE
    if not manifest.is_file():
        return {}
    prefix = f"{folder.name}/"
    return {
        name.removeprefix(prefix): checksum
        for name, checksum in read_hashes(manifest).items()
        if name.startswith(prefix)
    }


def read_hashes(manifest: Path) -> dict[str, str]:
    """Read the SHA-256 checksums in a `stage.json` file, keyed by file name.

    Raises:
        InputError: if the file cannot be read, or contains no checksums.
    """
    try:
        return dict(parse_json(manifest.read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{manifest}: not a valid checksum list ({error!r:.150}); delete "
            f"{manifest.parent} and create it again"
        ) from None


def count_pairs(folder: Path, lang_pairs: str | None = None) -> dict[str, int]:
    """Count the training pairs of each language pair.

    Args:
        folder: a data folder.
        lang_pairs: comma-separated language pairs to count, in either order; None for all pairs.

    Returns:
        Number of pairs by language pair; empty if the folder does not exist.
    """
    requested = None
    if lang_pairs:
        requested = {frozenset(name.strip().split("-")) for name in lang_pairs.split(",")}
    counts = {}
    for index in sorted(folder.glob("train.*-*.*.idx")):
        name = index.name.split(".")[1]
        if requested is None or frozenset(name.split("-")) in requested:
            counts[name] = count_sentences(index)
    return counts


def count_sentences(index: Path) -> int:
    """Return the number of sentences in a memory-mapped fairseq dataset.

    Args:
        index: the .idx file of the dataset.

    Returns:
        The number stored in the header; 0 if the file has another format.
    """
    with index.open("rb") as stream:
        # Magic bytes (9 bytes), version (8), data type of the ids (1), number of sentences (8).
        header = stream.read(26)
    if not header.startswith(INDEX_MAGIC):
        return 0
    return int.from_bytes(header[18:], "little")


def count_sources(sources: Mapping[str, int], is_kept: np.ndarray) -> dict[str, int]:
    """Return the number of kept pairs for each source.

    Args:
        sources: number of pairs per source, in the order of the pairs.
        is_kept: whether each pair is kept, bool [pairs].
    """
    parts = np.split(is_kept, np.cumsum(list(sources.values()))[:-1])
    return {name: int(np.count_nonzero(part)) for name, part in zip(sources, parts, strict=True)}


def write_sources(path: Path, sources: Mapping[str, int]) -> None:
    """Write the number of pairs per source as JSON."""
    path.write_text(json.dumps(sources, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_sources(path: Path, count: int) -> dict[str, int]:
    """Read the number of pairs per source, in the order of the pairs.

    Args:
        path: a file written by `write_sources`.
        count: total number of pairs, which the sources must add up to.

    Returns:
        Number of pairs per source; empty if the file does not exist.

    Raises:
        InputError: if the file is invalid, or its numbers do not add up to `count`.
    """
    if not path.is_file():
        return {}
    try:
        sources = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{path}: not a JSON object ({error}); expected the number of pairs per source"
        ) from None
    for name, number in sources.items():
        if not is_count(number):
            raise InputError(
                f"{path}: {shown(name)} is {shown(number)}; expected the number of pairs from "
                "this source"
            )
    if sum(sources.values()) != count:
        raise InputError(
            f"{path}: lists {sum(sources.values()):,} pairs instead of {count:,}; run "
            "`lxsr prepare` again, or delete the file"
        )
    return sources


# Folder next to the checkpoints, with the files needed to convert text to ids.
TEXT_FOLDER = "text"


@dataclass(frozen=True)
class TextFiles:
    """Files and options needed to convert text to a model's dictionary ids."""

    dictionary: Path
    sentencepiece_model: Path
    options: TextOptions


def collect_text(data: Path, sentencepiece_model: str | Path | None = None) -> dict[str, bytes]:
    """Read the dictionary, SentencePiece model and text options that `lxsr export` needs.

    fairseq-preprocess writes only the dictionary. In this case, the text options are derived from
    the dictionary, and for a dictionary of words, a SentencePiece model that splits text at spaces
    is generated.

    Args:
        data: a data folder.
        sentencepiece_model: model given by the user; None for the model in the data folder.

    Returns:
        File contents keyed by file name. The SentencePiece model is left out if the dictionary
        consists of SentencePiece pieces, but their model is neither given nor stored.

    Raises:
        InputError: if the model does not match the dictionary, or differs from the model in the
            data folder.
    """
    dictionary = find_dictionary(data)
    symbols = read_dictionary(dictionary)
    stored_model = data / SENTENCEPIECE_FILE
    stored_options = data / TEXT_FILE
    model = Path(sentencepiece_model or stored_model)
    if stored_options.is_file():
        options = TextOptions.load(stored_options)
        options_content = stored_options.read_bytes()
    else:
        options = TextOptions(is_lowercased(symbols))
        options_content = options.dumps().encode()
    if sentencepiece_model or stored_model.is_file():
        _check_same(model, stored_model)
        # This raises an error if the model does not match the dictionary.
        Tokenizer(model, options, symbols)

    contents = {DICTIONARY_FILE: dictionary.read_bytes(), TEXT_FILE: options_content}
    model_content = model.read_bytes() if model.is_file() else words_model_of(symbols)
    if model_content is not None:
        contents[SENTENCEPIECE_FILE] = model_content
    return contents


def _check_same(model: Path, stored_model: Path) -> None:
    """Check that a SentencePiece model equals the model in the data folder, if both exist."""
    if not stored_model.is_file() or not model.is_file():
        return
    if sha256(stored_model) != sha256(model):
        raise InputError(
            f"{model}: differs from {stored_model}, which prepared the data; omit "
            "--sentencepiece-model"
        )


def keep_text(data: Path, save_dir: Path, sentencepiece_model: str | Path | None = None) -> None:
    """Save the files from `collect_text` next to the checkpoints, with their checksums.

    Checkpoints can then be exported even if the data folder is moved or deleted.
    """
    contents = collect_text(data, sentencepiece_model)
    folder = save_dir / TEXT_FOLDER
    restore_folder(folder)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    if _are_kept(folder, hashes):
        return
    with atomic_folder(folder, DICTIONARY_FILE) as work:
        for name, content in contents.items():
            (work / name).write_bytes(content)
        manifest = json.dumps(sealed({"files": hashes})) + "\n"
        (work / STAGE_FILE).write_text(manifest, encoding="utf-8")


def _are_kept(folder: Path, hashes: Mapping[str, str]) -> bool:
    """Return whether a folder contains exactly these files, with matching checksums."""
    try:
        check_files(folder)
        if read_hashes(folder / STAGE_FILE) != hashes:
            return False
        return all((folder / name).is_file() for name in hashes)
    except (InputError, OSError):
        return False


def find_shards(checkpoint: Path, named: str) -> list[Path]:
    """Return the data folders recorded in a checkpoint.

    Relative paths are tried in the working directory, then in each parent folder of the checkpoint.

    Args:
        checkpoint: path of the checkpoint.
        named: the data folders as recorded in the checkpoint, joined by `os.pathsep`.

    Returns:
        Paths of the folders, as recorded if the first one is not found.
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
    """Find the files needed to convert text to a model's dictionary ids.

    The SentencePiece model and the text options come from the first folder that contains them.

    Args:
        folders: folders to search; the first one must contain the dictionary.
        sentencepiece_model: SentencePiece model given by the user; None to use the stored model.
        lowercase: whether the data is lowercased; None to use the stored option.

    Raises:
        InputError: if a file is missing or damaged, or the given model differs from the stored
            model.
    """
    dictionary = find_dictionary(folders[0])
    stored_model = _first_with(folders, SENTENCEPIECE_FILE)
    stored_options = _first_with(folders, TEXT_FILE)
    is_case_known = lowercase is not None or stored_options.is_file()
    model = Path(sentencepiece_model or stored_model)
    if not model.is_file():
        message = f"{model}: no such file; specify the model with --sentencepiece-model"
        if not is_case_known:
            message += (
                ", and add --lowercase or --no-lowercase, depending on how the data was prepared"
            )
        raise InputError(message)
    for path in (dictionary, stored_model, stored_options):
        if path.is_file():
            check_files(path.parent, [path.name])
    _check_same(model, stored_model)
    if not is_case_known:
        raise InputError(
            f"{stored_options}: no such file; add --lowercase or --no-lowercase, depending on "
            "how the data was prepared"
        )
    options = TextOptions.load(stored_options) if stored_options.is_file() else TextOptions()
    if lowercase is not None:
        options = replace(options, lowercase=lowercase)
    return TextFiles(dictionary, model, options)


def _first_with(folders: list[Path], name: str) -> Path:
    """Return the path of a file in the first folder that contains it.

    If no folder contains it, return the path that it would have in the last folder.
    """
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    return folders[-1] / name


def kept_text(checkpoint: Path, dictionary_hash: str | None) -> list[Path]:
    """Return the folder that `keep_text` wrote next to a checkpoint, as a list of one path.

    Args:
        checkpoint: path of the checkpoint.
        dictionary_hash: expected hash of the dictionary (see `hash_symbols`).

    Returns:
        The folder; an empty list if its dictionary is missing or has another hash.
    """
    folder = checkpoint.parent / TEXT_FOLDER
    restore_folder(folder)
    dictionary = folder / DICTIONARY_FILE
    if not dictionary.is_file() or hash_symbols(read_dictionary(dictionary)) != dictionary_hash:
        return []
    return [folder]


def find_dictionary(data: Path) -> Path:
    """Return the path of a data folder's dictionary.

    It is dict.txt, or the first of the dict.LANG.txt files, which are all equal because all
    languages share one dictionary.

    Raises:
        InputError: if the folder or the dictionary does not exist.
    """
    check_data_folder(data)
    for path in (data / DICTIONARY_FILE, *sorted(data.glob("dict.*.txt"))):
        if path.is_file():
            return path
    raise InputError(
        f"{data}: no dict.txt or dict.LANG.txt; expected the output of fairseq-preprocess"
    )
