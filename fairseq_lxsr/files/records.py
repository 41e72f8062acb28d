"""Reads untrusted files: JSON objects, arrays, and records of interrupted work; damage of ours is
noticed.
"""

import json
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.write import atomic_write

if TYPE_CHECKING:
    import numpy as np

MAX_DEPTH = 20  # nesting of lists and objects in JSON
MAX_COUNT = 2**53  # largest count of anything
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
SEAL = "crc32"  # key for the checksum of all other fields of a JSON object


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add the checksum that `parse_json` compares and takes out, so that one flipped bit is
    noticed.
    """
    return {**content, SEAL: _checksum(content)}


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode())


def parse_json(text: str) -> dict[str, Any]:
    """Parse one JSON object of any origin, safe to print and to write as UTF-8; raise ValueError
    for anything else.

    One that is `sealed` must have the checksum that it names, or it is damaged.
    """
    try:
        read = json.loads(text)
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} lists and objects in each other") from None
    if not isinstance(read, dict):
        raise ValueError(f"{type(read).__name__}, not an object")
    level: list[dict[str, Any] | list[Any]] = [read]
    depth = 0
    while level := [
        part for parent in level for part in _parts(parent) if isinstance(part, dict | list)
    ]:
        depth += 1
        if depth == MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} lists and objects in each other")
    if SURROGATE.search(text):
        json.dumps(read, ensure_ascii=False).encode()  # half of a surrogate pair raises ValueError
    if type(read.get(SEAL)) is int and read.pop(SEAL) != _checksum(read):
        raise ValueError(
            f"damaged or edited: its fields have another checksum than its {SEAL}, which an edit removes"
        )
    return read


def _parts(parent: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return parent.values() if isinstance(parent, dict) else parent


def is_count(value: Any) -> bool:
    """Return whether a JSON value is a count."""
    return type(value) is int and 0 <= value < MAX_COUNT


def open_array(file: str | Path | BinaryIO, mode: str = "r") -> "np.memmap":
    """Open a .npy of numbers memory-mapped, `r` to read or `r+` to read and write; nothing in it
    can run code.

    An open file is mapped whatever happens to its name, and is not needed any more. OSError is for
    a file that cannot be read, ValueError for one that is truncated or is not a .npy of numbers.
    """
    from numpy.lib.format import open_memmap  # the command line imports this module

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that Python 2 may have written
            return open_memmap(file, mode) if isinstance(file, str | Path) else _mapped(file)
    except OSError:
        raise
    except (
        Exception
    ) as error:  # numpy reads the header with Python's parser, which raises errors of many kinds
        raise ValueError(f"{type(error).__name__}: {error}") from None


def embeddings_description(path: Path) -> Mapping[str, Any]:
    """Read FILE.json, which `lxsr embed` wrote beside embeddings; empty where there is none."""
    beside = path.with_name(f"{path.name}.json")
    if not beside.is_file():
        return {}
    try:
        return dict(parse_json(beside.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{beside}: {error}; delete it and {path}, and embed the text again"
        ) from None


def check_described(path: Path) -> None:
    """Compare the SHA-256 of embeddings with the one that `lxsr embed` wrote into FILE.json beside
    them, if any.
    """
    if embeddings_description(path).get("sha256") not in (None, sha256(path)):
        raise InputError(
            f"{path}: damaged or changed, its SHA-256 is not the one in {path.name}.json; delete both, and embed the "
            "text again"
        )


def check_archive(path: Path) -> None:
    """Compare the CRC-32 of every record of an uncompressed zip archive, as torch.save writes; it
    reads 1 GB/s.

    ValueError is for an archive that is damaged or compressed, and `zipfile` raises errors of many
    other kinds.
    """
    with zipfile.ZipFile(path) as archive:
        if sum(part.file_size for part in archive.infolist()) > path.stat().st_size:
            raise ValueError("compressed")
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} has another checksum")


def _mapped(stream: BinaryIO) -> "np.memmap":
    import numpy as np
    from numpy.lib import format as npy

    stream.seek(0)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[
        npy.read_magic(stream)
    ]
    shape, is_fortran, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError("objects, not numbers")
    return np.memmap(stream, dtype, "r", stream.tell(), shape, "F" if is_fortran else "C")


@dataclass(frozen=True)
class Record:
    """Progress of a resumable run: a JSON file beside its output, replaced atomically after every
    step.

    It has all settings that the result depends on, the number of finished `lines` and other counts
    over them, and a hash of the text read so far, where text is read only once.
    """

    settings: dict[str, Any]
    counts: dict[str, int]
    text: str = ""

    @classmethod
    def read(cls, path: Path) -> "Record | None":
        """Read a record; return None where the file does not exist."""
        if not path.exists():
            return None
        try:
            read = parse_json(path.read_text(encoding="utf-8"))
            settings, counts, text = read["settings"], read["counts"], read["text"]
            if not (
                isinstance(settings, dict) and isinstance(counts, dict) and isinstance(text, str)
            ):
                raise TypeError("settings and counts are no objects, or text is no text")
            if not all(map(is_count, counts.values())):
                raise TypeError(f"counts {counts!r:.60} are not whole numbers of at least 0")
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}: not the progress of an earlier run ({error!r}); delete it"
            ) from None
        return cls(settings, counts, text)

    @property
    def lines(self) -> int:
        """Number of finished lines, or rows."""
        return self.counts.get("lines", 0)

    def write(self, path: Path) -> None:
        with atomic_write(path) as stream:
            stream.write(json.dumps(sealed(vars(self))))


def difference(found: dict[str, Any], settings: dict[str, Any]) -> str | None:
    """Describe the first setting that differs, for example `k 4, now 5`; return None where all are
    equal.
    """
    for name in settings | found:
        if found.get(name) != settings.get(name):
            return f"{name} {found.get(name)!r:.60}, now {settings.get(name)!r:.60}"
    return None
