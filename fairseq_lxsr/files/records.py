"""Reads untrusted files: JSON objects, arrays, and progress records of interrupted runs.

Files that this package writes contain a checksum, which reveals damage.
"""

import json
import re
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.write import atomic_write

if TYPE_CHECKING:
    import numpy as np

# Maximum nesting depth of lists and objects in JSON.
MAX_DEPTH = 20
# Counts must be smaller than this value.
MAX_COUNT = 2**53
# Control characters that JSON strings may contain unescaped.
CONTROL = re.compile(r"[\x7f-\x9f]")
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# Key of the checksum over all other fields of a JSON object.
SEAL = "crc32"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum to a JSON object, which `parse_json` verifies and removes."""
    return {**content, SEAL: _checksum(content)}


def _checksum(content: Mapping[str, Any]) -> int:
    # First convert the values to those that JSON stores: it changes tuples and integer keys.
    normalized = json.loads(json.dumps(content))
    return zlib.crc32(json.dumps(normalized, sort_keys=True).encode())


def json_line(content: Mapping[str, Any]) -> str:
    """Serialize an object as one line of JSON, with all control characters escaped.

    Terminals interpret the characters U+0080 to U+009F, but JSON only escapes those below U+0020.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def parse_json(text: str) -> dict[str, Any]:
    """Parse a JSON object from an untrusted source.

    Returns:
        The object without its checksum; it can be printed and written as UTF-8.

    Raises:
        ValueError: if the text is not an object, or the checksum does not match (see `sealed`).
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError(
            f"lists and objects are nested more than {MAX_DEPTH} levels deep"
        ) from None
    if not isinstance(content, dict):
        raise ValueError(f"a value of type {type(content).__name__} instead of an object")
    _check_depth(content)
    if SURROGATE.search(text):
        # Encoding raises ValueError for a lone surrogate.
        json.dumps(content, ensure_ascii=False).encode()
    if type(content.get(SEAL)) is int and content.pop(SEAL) != _checksum(content):
        raise ValueError(
            f"damaged or edited: {SEAL} does not match the checksum of the other fields; if the "
            f"edit was intended, remove {SEAL}"
        )
    return content


def _check_depth(content: dict[str, Any]) -> None:
    level: list[dict[str, Any] | list[Any]] = [content]
    for _ in range(MAX_DEPTH):
        level = _nested_containers(level)
        if not level:
            return
    raise ValueError(f"lists and objects are nested more than {MAX_DEPTH} levels deep")


def _nested_containers(
    containers: Sequence[dict[str, Any] | list[Any]],
) -> list[dict[str, Any] | list[Any]]:
    """Return the lists and objects directly inside the given containers."""
    nested = []
    for container in containers:
        elements = container.values() if isinstance(container, dict) else container
        nested += [element for element in elements if isinstance(element, dict | list)]
    return nested


def is_count(value: Any) -> bool:
    """Return whether a JSON value is an integer from 0 to `MAX_COUNT` (exclusive)."""
    return type(value) is int and 0 <= value < MAX_COUNT


def open_array(file: str | Path | BinaryIO, mode: str = "r") -> "np.ndarray":
    """Memory-map a numeric .npy file without unpickling, which could run code.

    Args:
        file: a path, or an open file, which may be closed, renamed or removed afterwards. The
            array then holds no file descriptor.
        mode: `r` to read, or `r+` to read and write a path.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the file is truncated, or is not a .npy file of numbers.
    """
    # Imported here because every command imports this module.
    from numpy.lib.format import open_memmap

    try:
        with warnings.catch_warnings():
            # numpy warns about headers that Python 2 may have written.
            warnings.simplefilter("ignore")
            if isinstance(file, str | Path):
                return open_memmap(file, mode)
            return _mapped(file)
    except OSError:
        raise
    except Exception as error:
        # numpy parses the header with Python's parser, which raises many types of errors.
        raise ValueError(f"{type(error).__name__}: {error}") from None


def embeddings_description(path: Path) -> Mapping[str, Any]:
    """Read FILE.json, which `lxsr embed` writes next to FILE; return {} if it is missing."""
    description = path.with_name(f"{path.name}.json")
    if not description.is_file():
        return {}
    try:
        return dict(parse_json(description.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{description}: {error}; delete it and {path}, and embed the text again"
        ) from None


def check_described(path: Path) -> None:
    """Verify an embedding file against the SHA-256 in its FILE.json from `lxsr embed`, if any."""
    expected = embeddings_description(path).get("sha256")
    if expected is not None and expected != sha256(path):
        raise InputError(
            f"{path}: damaged or changed: its SHA-256 does not match {path.name}.json; "
            "delete both, and embed the text again"
        )


def check_archive(path: Path) -> None:
    """Verify the CRC-32 of every record in an uncompressed zip archive, the format of torch.save.

    The speed is about 1 GB/s.

    Raises:
        ValueError: if the archive is damaged or compressed. For some kinds of damage, `zipfile`
            raises other types of errors.
    """
    with zipfile.ZipFile(path) as archive:
        if sum(record.file_size for record in archive.infolist()) > path.stat().st_size:
            raise ValueError("compressed")
        if damaged := archive.testzip():
            raise ValueError(f"checksum mismatch in {damaged}")


def _mapped(stream: BinaryIO) -> "np.ndarray":
    import numpy as np
    from numpy.lib import format as npy

    from fairseq_lxsr.files.mapping import map_file

    header_readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    stream.seek(0)
    read_header = header_readers[npy.read_magic(stream)]
    shape, is_fortran, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError("the array contains objects instead of numbers")
    return np.ndarray(
        shape, dtype, map_file(stream), stream.tell(), order="F" if is_fortran else "C"
    )


@dataclass(frozen=True)
class Record:
    """Progress of a resumable run, in a JSON file that is replaced atomically after each step.

    Attributes:
        settings: all settings that affect the result.
        counts: number of finished `lines`, and other counts about these lines.
        text: hash of the text read so far, if the text can be read only once.
    """

    settings: dict[str, Any]
    counts: dict[str, int]
    text: str = ""

    @classmethod
    def read(cls, path: Path) -> "Record | None":
        """Read a record; return None if the file does not exist."""
        if not path.exists():
            return None
        try:
            content = parse_json(path.read_text(encoding="utf-8"))
            record = cls(content["settings"], content["counts"], content["text"])
            record._check()
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}: not a valid progress file from an earlier run ({error!r}); delete it"
            ) from None
        return record

    def _check(self) -> None:
        if not isinstance(self.settings, dict) or not isinstance(self.counts, dict):
            raise TypeError("settings and counts must be objects")
        if not isinstance(self.text, str):
            raise TypeError("text must be a string")
        if not all(map(is_count, self.counts.values())):
            raise TypeError(f"counts {self.counts!r:.60} must be integers of at least 0")

    @property
    def lines(self) -> int:
        """Number of finished lines or rows."""
        return self.counts.get("lines", 0)

    def write(self, path: Path) -> None:
        with atomic_write(path) as stream:
            stream.write(json.dumps(sealed(vars(self))))


def difference(stored: dict[str, Any], settings: dict[str, Any]) -> str | None:
    """Describe the first setting that differs, such as `k 4, now 5`, or return None if all are
    equal."""
    for name in settings | stored:
        if stored.get(name) != settings.get(name):
            return f"{name} {stored.get(name)!r:.60}, now {settings.get(name)!r:.60}"
    return None
