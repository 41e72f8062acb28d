"""Files of an index segment: their names, and the checks when they are opened."""

from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import open_file, sha256, stamp
from fairseq_lxsr.files.records import is_count, open_array
from fairseq_lxsr.search.lexical import LEXICAL_FILES

VECTORS_FILE = "index.faiss"
SENTENCES_FILE = "sentences.txt"
# Byte offset of each sentence in the sentence file, followed by the file size.
OFFSETS_FILE = "offsets.npy"
# Zero-based line index of each sentence in the corpus.
LINES_FILE = "lines.npy"
# One id per line for each document; absent if the ids are the line numbers.
IDS_FILE = "ids.txt"
# For each row, the index of its document in the segment, and the start and end byte of its text in
# that document [R, 3]; absent in a plain index.
ROWS_FILE = "rows.npy"
# Dictionary ids of the word pieces of each sentence, and the end of the pieces of each row; absent
# if the model has no word piece vectors.
PIECES_FILE = "pieces.bin"
PIECE_ENDS_FILE = "piece-ends.npy"
PIECE_TYPE = np.dtype("<i4")
# Number of the guessed language of each document in `common_words.LABELS`; absent in a plain index.
LANGUAGES_FILE = "languages.npy"
# Sketch of the vectors of windows, or of all vectors if each document has one row; absent unless
# the vectors are rounded and many.
SKETCH_FILE = "windows.faiss"


def file_names(description: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Return the names of the files of a segment.

    Args:
        description: entry of the segment in index.json.
        config: content of index.json.
    """
    names = [VECTORS_FILE, SENTENCES_FILE, OFFSETS_FILE, LINES_FILE]
    if config["ids"]:
        names.append(IDS_FILE)
    if not config["plain"]:
        names += [ROWS_FILE, LANGUAGES_FILE, *LEXICAL_FILES]
    if description["pieces"]:
        names += [PIECES_FILE, PIECE_ENDS_FILE]
    if description["sketch"]:
        names.append(SKETCH_FILE)
    return names


def checksums_of(folder: Path) -> dict[str, Any]:
    """Return the SHA-256 of the files of a folder, and their sizes and change times.

    Returns:
        The fields `files` and `stamps` of a segment in index.json.
    """
    paths = sorted(folder.iterdir())
    return {
        "files": {path.name: sha256(path) for path in paths},
        "stamps": {path.name: stamp(path) for path in paths},
    }


def check_description(description: Any) -> None:
    """Check the types of a segment in index.json.

    Raises:
        TypeError: if a field has the wrong type.
        KeyError: if a field is missing.
    """
    expected_types = {
        "folder": str,
        "kind": str,
        "pieces": bool,
        "sketch": bool,
        "files": dict,
        "stamps": dict,
    }
    for name, expected in expected_types.items():
        # Not isinstance, because True is an int.
        if type(description[name]) is not expected:
            raise TypeError(f"invalid {name}: {description[name]!r:.40}")
    for name in ("documents", "rows"):
        if not is_count(description[name]) or not description[name]:
            raise TypeError(f"invalid {name}: {description[name]!r:.40}")


def open_unchanged(path: Path, checksum: Any, stored_stamp: Any = None) -> BinaryIO:
    """Open a file, and check its SHA-256.

    Hashing takes longer than a search, so a file is hashed only if its size or change time has
    changed.

    Args:
        path: the file.
        checksum: its SHA-256 in index.json.
        stored_stamp: its size and change time in index.json, if any.

    Raises:
        InputError: if the file is missing or changed.
    """
    with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
        stream = open_file(path)
        if stamp(stream) == stored_stamp:
            return stream
        if sha256(stream) == checksum:
            return stream
        stream.close()
    raise InputError(f"{path}: missing or changed since the index was built; build it again")


def map_numbers(
    stream: BinaryIO, shape: tuple[int | None, ...], dtype: type[np.generic] = np.int64
) -> np.ndarray:
    """Memory-map a stored array of numbers.

    Args:
        stream: open .npy file.
        shape: expected shape; None for an axis of any length.
        dtype: expected type.

    Raises:
        InputError: if the file does not contain such an array.
    """
    try:
        array = open_array(stream)
    except ValueError as error:
        raise InputError(
            f"{stream.name}: not a .npy file of numbers ({error}); build the index again"
        ) from None
    is_expected = array.ndim == len(shape) and array.dtype == dtype
    if is_expected:
        pairs = zip(array.shape, shape, strict=True)
        is_expected = all(expected in (None, size) for size, expected in pairs)
    if not is_expected:
        raise InputError(
            f"{stream.name} contains {array.dtype} of shape {array.shape}; expected "
            f"{np.dtype(dtype)} of shape {shape}: build the index again"
        )
    return array
