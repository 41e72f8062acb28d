"""`lxsr index --ray`: builds an index per shard. `search.open_index` opens them as one index."""

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
from fairseq_lxsr.search.resumable import work_folder
from fairseq_lxsr.search.segment import EmbedText
from fairseq_lxsr.vectors.index import min_rows


@dataclass(frozen=True)
class IndexShard(ShardTask):
    """Task that builds the index of one shard in a folder named after the shard.

    Attributes:
        shard: lines to index.
        options: index options.
        embedder: called in a worker with its encoder; returns the function that embeds text.
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
        embed = self.embedder(encoder())
        lines = self.shard.lines()
        kind = self.options.kind
        lists = self.options.lists
        count = sum(not is_blank(line) for line in lines)
        if count < min_rows(kind, lists):
            kind = "flat"
            lists = None
        index = CorpusIndex.build(
            self.output,
            lines,
            embed,
            encoder().fingerprint,
            kind,
            lists,
            self.options.model_folder,
            self.shard.first,
        )
        return len(index)


def index_shards(
    lines: Iterable[str],
    folder: Path,
    embedder: Callable[[Encoder], EmbedText],
    workers: Workers,
    options: IndexOptions | None = None,
) -> dict[str, Any]:
    """Build an index of the lines of each shard, and write shards.json, which lists the indexes.

    Empty lines are skipped. Shards of an earlier run with the same options are kept.

    Args:
        lines: lines to index.
        folder: output folder.
        embedder: called in a worker with its encoder; returns the function that embeds text.
        workers: workers that build the indexes.
        options: index options; None for the defaults.

    Returns:
        Counts: `sentences`, `shards`, and shards finished by an earlier run (`kept`).

    Raises:
        InputError: if there is no text, or too little text for the index kind.
    """
    options = options or IndexOptions()
    min_sentences = min_rows(options.kind, options.lists)
    if workers.shard_lines < min_sentences:
        raise InputError(
            f"shards of {workers.shard_lines:,} lines are too small for an index of kind "
            f"{options.kind}; expected at least {min_sentences:,} lines per shard"
        )
    settings = {"model": workers.model, **asdict(options)}
    with work_folder(folder, "index"):
        shards = []
        blocks = cut_blocks(enumerate(lines), workers.shard_lines)
        for number, block in enumerate(blocks):
            _, block_lines = block
            if not all(map(is_blank, block_lines)):
                shards.append(make_shard(folder / f"{number:05d}", block, settings))
        if not shards:
            raise InputError("no text to index; expected one sentence per line")
        tasks = [IndexShard(shard.name, shard, options, embedder) for shard in shards]
        num_done = run_missing(tasks, workers)
        counts = [len(CorpusIndex.load(shard.stem)) for shard in shards]
        total = sum(counts)
        # A shard with too few sentences for the requested kind gets a flat index; that is an error
        # only if all shards are too short.
        if max(counts) < min_sentences:
            raise InputError(
                f"{total:,} sentences are too few for an index of kind {options.kind}; expected at "
                f"least {min_sentences:,} in a shard: use kind flat"
            )
        fields = {"model": workers.model, "kind": options.kind, "sentences": total}
        fields_of_shards = []
        for shard, count in zip(shards, counts, strict=True):
            fields_of_shards.append((shard, {"count": count}))
        finish_shards(folder, fields, fields_of_shards)
    return {"sentences": total, "shards": len(shards), "kept": len(shards) - num_done}
