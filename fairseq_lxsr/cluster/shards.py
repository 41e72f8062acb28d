"""Text shards: their names, their files, and shards.json, which lists them.

A shard name depends on the text of the shard and on the settings of the run.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings.contract import short_hash
from fairseq_lxsr.files.records import sealed
from fairseq_lxsr.files.write import atomic_write

# Lists the shards of embeddings, in the order of the text.
MANIFEST = "shards.json"
MANIFEST_VERSION = 1
# Default number of lines per shard. It is a multiple of the number of lines that are encoded
# together, so that the embeddings are equal to those from one machine.
SHARD_LINES = 1_000_000
SHARD_NAME = re.compile(r"\d{5,}-[0-9a-f]{12}")

Numbers = Sequence[int] | np.ndarray
# Zero-based line indices, and the lines.
Block = tuple[Numbers, list[str]]


@dataclass(frozen=True)
class Shard:
    """Input lines that a worker processes as one task.

    Attributes:
        stem: path in the output folder, without a suffix. The name contains the shard number and a
            hash of the lines, their indices and the settings, so identical runs use the same name.
        numbers: zero-based indices of the lines in the input.
        source: name of the input, for messages.
    """

    stem: Path
    numbers: Numbers
    source: str = ""

    @property
    def name(self) -> str:
        """Description of the shard, for messages."""
        origin = f" of {self.source}" if self.source else ""
        last = int(self.numbers[-1])
        return f"shard {self.stem.name}, lines {self.first + 1:,} to {last + 1:,}{origin}"

    @property
    def first(self) -> int:
        """Zero-based index of the first line."""
        return int(self.numbers[0])

    def path(self, suffix: str) -> Path:
        """Return the path of the shard file with the given suffix."""
        return self.stem.with_name(f"{self.stem.name}{suffix}")

    @property
    def text(self) -> Path:
        """Text file with the lines of the shard."""
        return self.path(".txt")

    def lines(self) -> list[str]:
        """Read the lines of the shard."""
        return self.text.read_bytes().decode("utf-8").split("\n")


def cut_blocks(numbered: Iterable[tuple[int, str]], rows: int) -> Iterator[Block]:
    """Split numbered lines into blocks of `rows` lines. The last block may be shorter."""
    remaining = iter(numbered)
    while block := list(islice(remaining, rows)):
        numbers, lines = zip(*block, strict=True)
        first = numbers[0]
        last = numbers[-1]
        if last - first == len(numbers) - 1:
            # A range stores consecutive numbers without an array.
            yield range(first, last + 1), list(lines)
        else:
            yield np.array(numbers), list(lines)


def make_shard(stem: Path, block: Block, settings: dict[str, Any], source: str = "") -> Shard:
    """Write the lines of a shard to its text file, unless the file already contains them.

    Args:
        stem: path of the shard; a hash is appended to its name.
        block: the lines and their numbers.
        settings: everything else that the output depends on.
        source: name of the input, for messages.

    Returns:
        The shard.
    """
    numbers, lines = block
    text = "\n".join(lines).encode("utf-8")
    number_bytes = np.asarray(numbers, dtype=np.int64).tobytes()
    name = short_hash(
        json.dumps(settings, sort_keys=True),
        hashlib.sha256(text).hexdigest(),
        hashlib.sha256(number_bytes).hexdigest(),
    )
    shard = Shard(stem.with_name(f"{stem.name}-{name}"), numbers, source)
    if not (shard.text.is_file() and shard.text.read_bytes() == text):
        with atomic_write(shard.text, "wb") as stream:
            stream.write(text)
    return shard


def finish_shards(
    folder: Path, fields: dict[str, Any], shards: Sequence[tuple[Shard, dict[str, Any]]]
) -> None:
    """Write the list of shards to shards.json, and remove files that are no longer needed.

    Args:
        folder: folder of the shards.
        fields: fields of the list that apply to all shards.
        shards: shards in the order of the text, with additional fields for each of them.
    """
    rows = []
    for shard, shard_fields in shards:
        rows.append({"name": shard.stem.name, "first_line": shard.first + 1, **shard_fields})
    manifest = sealed({"version": MANIFEST_VERSION, **fields, "shards": rows})
    with atomic_write(folder / MANIFEST) as stream:
        stream.write(json.dumps(manifest, indent=2) + "\n")
    remove_obsolete(folder, [shard for shard, _ in shards])


def remove_obsolete(folder: Path, shards: Sequence[Shard]) -> None:
    """Remove shards of earlier runs, text files of all shards, and files of killed workers."""
    names = {shard.stem.name for shard in shards}
    for path in folder.iterdir():
        if _is_obsolete(path.name, names):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _is_obsolete(file_name: str, names: set[str]) -> bool:
    """Return whether a file or folder belongs to a shard but is not part of the final output."""
    match = SHARD_NAME.match(file_name.removeprefix("."))
    if match is None:
        return False
    # Files are hidden until they are complete.
    if file_name.startswith("."):
        return True
    return match[0] not in names or file_name == f"{match[0]}.txt"
