"""Shards of text: their names, files, and the list of them; a name changes with the text and the
settings.
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
from fairseq_lxsr.search.sharded import MANIFEST, MANIFEST_VERSION

SHARD_LINES = 1_000_000  # a multiple of the lines that one machine encodes together, so that they are the same here
SHARD_NAME = re.compile(r"\d{5,}-[0-9a-f]{12}")

Numbers = Sequence[int] | np.ndarray
Block = tuple[Numbers, list[str]]  # line numbers from 0, and the lines


@dataclass(frozen=True)
class Shard:
    """Lines of the input that one worker takes at a time.

    The name of `stem` has the number of the shard and a hash of its lines, their numbers and the
    settings. So the same work has the same name in every run.
    """

    stem: Path  # in the folder of the output, without an ending
    numbers: Numbers  # of the lines in the input, from 0
    source: str = ""  # name of the input, for messages

    @property
    def name(self) -> str:
        of = f" of {self.source}" if self.source else ""
        return (
            f"shard {self.stem.name}, lines {self.first + 1:,} to {int(self.numbers[-1]) + 1:,}{of}"
        )

    @property
    def first(self) -> int:
        return int(self.numbers[0])

    def path(self, ending: str) -> Path:
        return self.stem.with_name(f"{self.stem.name}{ending}")

    @property
    def text(self) -> Path:
        """The file of its lines."""
        return self.path(".txt")

    def lines(self) -> list[str]:
        return self.text.read_bytes().decode("utf-8").split("\n")


def cut_blocks(numbered: Iterable[tuple[int, str]], rows: int) -> Iterator[Block]:
    """Cut numbered lines into blocks of `rows`; the last may have fewer."""
    remaining = iter(numbered)
    while block := list(islice(remaining, rows)):
        numbers, lines = zip(*block, strict=True)
        consecutive = numbers[-1] - numbers[0] == len(numbers) - 1
        yield range(numbers[0], numbers[-1] + 1) if consecutive else np.array(numbers), list(lines)


def make_shard(stem: Path, block: Block, settings: dict[str, Any], source: str = "") -> Shard:
    """Write the lines of a shard, named by `stem` and a hash of them and of all settings that the
    work depends on.
    """
    numbers, lines = block
    text = "\n".join(lines).encode("utf-8")
    where = np.asarray(numbers, dtype=np.int64).tobytes()
    digests = (hashlib.sha256(part).hexdigest() for part in (text, where))
    name = short_hash(json.dumps(settings, sort_keys=True), *digests)
    shard = Shard(stem.with_name(f"{stem.name}-{name}"), numbers, source)
    if not (shard.text.is_file() and shard.text.read_bytes() == text):
        with atomic_write(shard.text, "wb") as stream:
            stream.write(text)
    return shard


def finish_shards(
    folder: Path, about: dict[str, Any], shards: Sequence[tuple[Shard, dict[str, Any]]]
) -> None:
    """Write the list of the shards, and remove shards of earlier runs, the text of all, and what
    killed workers left.

    `about` is true of all shards, which come in the order of the text, with what is to be known of
    each.
    """
    rows = [
        {"name": shard.stem.name, "first_line": shard.first + 1, **more} for shard, more in shards
    ]
    with atomic_write(folder / MANIFEST) as stream:
        stream.write(
            json.dumps(sealed({"version": MANIFEST_VERSION, **about, "shards": rows}), indent=2)
            + "\n"
        )
    kept = {shard.stem.name for shard, _ in shards}
    for path in folder.iterdir():
        found = SHARD_NAME.match(path.name.removeprefix("."))
        is_hidden = path.name.startswith(".")  # until it is complete
        if found and (is_hidden or found[0] not in kept or path.name == f"{found[0]}.txt"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
