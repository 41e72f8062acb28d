"""Indexes in shards: `lxsr index` of the lines of each, in a folder that `search.open_index`
opens.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_lxsr.cluster.shards import Shard, cut_blocks, finish_shards, make_shard
from fairseq_lxsr.cluster.workers import LoadEncoder, ShardTask, Workers, run_missing
from fairseq_lxsr.embeddings import Encoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import is_blank
from fairseq_lxsr.search import CorpusIndex, IndexOptions
from fairseq_lxsr.search.index_folder import EmbedText
from fairseq_lxsr.search.resumable import work_folder
from fairseq_lxsr.vectors.index import min_rows


@dataclass(frozen=True)
class IndexShard(ShardTask):
    """Makes the index of a shard, a folder of its name; `embedder` makes the function that embeds
    text.
    """

    shard: Shard
    options: IndexOptions
    embedder: Callable[[Encoder], EmbedText]

    @property
    def output(self) -> Path:
        return self.shard.stem

    def is_intact(self) -> bool:
        with contextlib.suppress(InputError, OSError):
            return CorpusIndex.load(self.output).config["sentences"] > 0
        return False

    def __call__(self, encoder: LoadEncoder) -> int:
        encode, fingerprint = self.embedder(encoder()), encoder().fingerprint
        kind, lists, lines = self.options.kind, self.options.lists, self.shard.lines()
        if sum(not is_blank(line) for line in lines) < min_rows(kind, lists):
            kind, lists = "flat", None
        about = kind, lists, self.options.model_folder, self.shard.first
        return len(CorpusIndex.build(self.output, lines, encode, fingerprint, *about))


def index_shards(
    lines: Iterable[str],
    folder: Path,
    embedder: Callable[[Encoder], EmbedText],
    workers: Workers,
    options: IndexOptions | None = None,
) -> dict[str, Any]:
    """Make an index of the lines of each shard that are not empty, and `shards.json`.

    Those of an earlier run with the same options are kept. `embedder` makes the function that
    embeds text, in a worker. Returns the numbers of `sentences`, of `shards` and of those that were
    there (`kept`).
    """
    options = options or IndexOptions()
    rows, least = workers.shard_lines, min_rows(options.kind, options.lists)
    if rows < least:
        raise InputError(
            f"shards of {rows:,} lines, too few for {options.kind}; expected at least {least:,} a shard"
        )
    settings = {"model": workers.model, **asdict(options)}
    with work_folder(folder, "index"):
        shards = [
            make_shard(folder / f"{number:05d}", block, settings)
            for number, block in enumerate(cut_blocks(enumerate(lines), rows))
            if not all(map(is_blank, block[1]))
        ]
        if not shards:
            raise InputError("no text to index; expected one sentence a line")
        done = run_missing(
            [IndexShard(shard.name, shard, options, embedder) for shard in shards], workers
        )
        counts = [len(CorpusIndex.load(shard.stem)) for shard in shards]
        if max(counts) < least:  # all of them flat
            expected = f"expected {least:,} or more in a shard, or kind flat"
            raise InputError(f"{sum(counts):,} sentences, too few for {options.kind}; {expected}")
        about = {"model": workers.model, "kind": options.kind, "sentences": sum(counts)}
        finish_shards(
            folder,
            about,
            [(shard, {"count": count}) for shard, count in zip(shards, counts, strict=True)],
        )
    return {"sentences": sum(counts), "shards": len(shards), "kept": len(shards) - done}
