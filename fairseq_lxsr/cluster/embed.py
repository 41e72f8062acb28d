"""Embeddings in shards: `lxsr embed` on the lines of each, in a folder."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fairseq_lxsr.cluster.shards import Block, Shard, blocks, finish, make_shard
from fairseq_lxsr.cluster.workers import Load, Workers
from fairseq_lxsr.embeddings import Encoder, Layout, embed_lines, index_path
from fairseq_lxsr.embeddings.formats import find_format
from fairseq_lxsr.embeddings.write import CALIBRATION, Encode
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.search.resumable import work_folder

Embedder = Callable[[Encoder, int], Encode]  # from an encoder and the number of the first line


@dataclass(frozen=True)
class EmbedShard:
    """Embeds the lines of a shard.

    Args:
        shard: the shard.
        layout: format of its file.
        settings: as of `embeddings.embed_lines`.
        embedder: makes the function that embeds lines.
    """

    shard: Shard
    layout: Layout
    settings: dict[str, Any]
    embedder: Embedder

    @property
    def name(self) -> str:
        return self.shard.name

    @property
    def output(self) -> Path:
        return self.shard.path(find_format(self.layout.format).suffix)

    def __call__(self, encoder: Load) -> dict[str, Any]:
        encode, settings = self.embedder(encoder(), self.shard.first), self.settings
        settings = {**settings, "first_line": self.shard.first + 1}
        return embed_lines(self.shard.lines(), encode, self.output, self.layout, settings, resume=True)


def embed_shards(
    lines: Iterable[str],
    folder: Path,
    layout: Layout,
    settings: dict[str, Any],
    embedder: Embedder,
    workers: Workers,
    rows: int,
) -> dict[str, Any]:
    """Write the embeddings of all lines, a file for each shard and `shards.json`; those of an earlier run are kept.

    The rows are those of one machine: of `int8`, the first shard calibrates all.

    Args:
        lines: any number of lines.
        folder: folder to write.
        layout: format of the files.
        settings: as of `embeddings.embed_lines`.
        embedder: makes the function that embeds lines, in a worker.
        workers: workers of a cluster.
        rows: lines of a shard.

    Returns:
        Numbers of lines (`count`), of `empty` and `long` ones, of `shards` and of those that were there (`kept`).

    Raises:
        InputError: as `embeddings.embed_lines`, naming the shard.
    """
    tasks: list[EmbedShard] = []

    def missing(some: Iterable[tuple[int, Block]], settings: dict[str, Any]) -> Iterator[EmbedShard]:
        every = {"format": layout.format, "dtype": layout.dtype, "dimension": layout.width, **settings}
        for number, block in some:
            shard = make_shard(folder / f"{number:05d}", block, every, find_format(layout.format).suffix)
            tasks.append(EmbedShard(shard, layout, settings, embedder))
            if not tasks[-1].output.exists():
                yield tasks[-1]

    done = 0
    with work_folder(folder, "embed"):
        numbered = enumerate(blocks(enumerate(lines), rows))
        if layout.dtype == "int8":
            done += len(list(workers.run(missing(islice(numbered, 1), settings))))
        if layout.dtype == "int8" and tasks:
            settings = {**settings, CALIBRATION: _described(tasks[0])[CALIBRATION]}
        done += sum(1 for _ in workers.run(missing(numbered, settings)))
        if not tasks:
            raise InputError("no lines to embed; expected one sentence a line")
        described = [_described(task) for task in tasks]
        sums = {name: sum(one[name] for one in described) for name in ("count", "empty", "long")}
        about = {"model": workers.model, "format": layout.format, **sums}
        finish(
            folder, about, [(task.shard, {"count": one["count"]}) for task, one in zip(tasks, described, strict=True)]
        )
    return {**sums, "shards": len(tasks), "kept": len(tasks) - done}


def _described(task: EmbedShard) -> dict[str, Any]:
    return parse_json(index_path(task.output).read_text(encoding="utf-8"))
