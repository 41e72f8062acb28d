"""Embeddings in shards: `lxsr embed` on the lines of each, in a folder."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from fairseq_lxsr.cluster.shards import Block, Shard, blocks, finish, make_shard
from fairseq_lxsr.cluster.workers import Load, ShardTask, Workers, complete
from fairseq_lxsr.embeddings import Encoder, Layout, embed_lines, index_path
from fairseq_lxsr.embeddings.formats import find_format
from fairseq_lxsr.embeddings.write import CALIBRATION, Encode
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.search.resumable import work_folder


@dataclass(frozen=True)
class Embedding:
    """How lines are embedded, in files of a layout, with settings as of `embeddings.embed_lines`.

    `embedder` makes the function that embeds lines, in a worker, from an encoder and the number of the first line.
    """

    layout: Layout
    settings: dict[str, Any]
    embedder: Callable[[Encoder, int], Encode]

    @property
    def ending(self) -> str:
        """Ending of the names of the files."""
        return find_format(self.layout.format).suffix

    def tasks(self, folder: Path, numbered: Iterable[tuple[int, Block]]) -> list["EmbedShard"]:
        """Make shards, and the tasks that embed them."""
        settings = {"format": self.layout.format, "dtype": self.layout.dtype, "dimension": self.layout.width}
        settings |= self.settings
        shards = [make_shard(folder / f"{number:05d}", block, settings, self.ending) for number, block in numbered]
        return [EmbedShard(shard.name, shard, self) for shard in shards]


@dataclass(frozen=True)
class EmbedShard(ShardTask):
    """Embeds the lines of a shard."""

    shard: Shard
    how: Embedding

    @property
    def output(self) -> Path:
        return self.shard.path(self.how.ending)

    def __call__(self, encoder: Load) -> dict[str, Any]:
        encode = self.how.embedder(encoder(), self.shard.first)
        settings = {**self.how.settings, "first_line": self.shard.first + 1}
        return embed_lines(self.shard.lines(), encode, self.output, self.how.layout, settings, resume=True)

    def described(self) -> dict[str, Any]:
        """Read the description beside the output."""
        return parse_json(index_path(self.output).read_text(encoding="utf-8"))


def embed_shards(lines: Iterable[str], folder: Path, how: Embedding, workers: Workers) -> dict[str, Any]:
    """Write the embeddings of all lines, a file for each shard and `shards.json`; those of an earlier run are kept.

    The rows are those of one machine: of `int8`, the first shard calibrates all. Returns the numbers of lines
    (`count`), of `empty` and `long` ones, of `shards` and of those that were there (`kept`).
    """
    with work_folder(folder, "embed"):
        numbered = enumerate(blocks(enumerate(lines), workers.shard_lines))
        tasks: list[EmbedShard] = []
        done = 0
        if how.layout.dtype == "int8":
            tasks = how.tasks(folder, islice(numbered, 1))
            done = complete(tasks, workers)
        if tasks:
            how = replace(how, settings={**how.settings, CALIBRATION: tasks[0].described()[CALIBRATION]})
        others = how.tasks(folder, numbered)
        tasks, done = tasks + others, done + complete(others, workers)
        if not tasks:
            raise InputError("no lines to embed; expected one sentence a line")
        described = [task.described() for task in tasks]
        sums = {name: sum(one[name] for one in described) for name in ("count", "empty", "long")}
        counts = [(task.shard, {"count": one["count"]}) for task, one in zip(tasks, described, strict=True)]
        finish(folder, {"model": workers.model, "format": how.layout.format, **sums}, counts)
    return {**sums, "shards": len(tasks), "kept": len(tasks) - done}
