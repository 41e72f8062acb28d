"""`lxsr index --ray`: builds an index whose segments are shards of the text."""

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_lxsr.cluster.shards import Shard, cut_blocks, make_shard, remove_obsolete
from fairseq_lxsr.cluster.workers import LoadEncoder, ShardTask, Workers, run_missing
from fairseq_lxsr.embeddings import Encoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import is_blank
from fairseq_lxsr.files.records import parse_json, sealed
from fairseq_lxsr.files.write import atomic_folder, atomic_write, editing_folder
from fairseq_lxsr.search import IndexOptions
from fairseq_lxsr.search.documents import blocks
from fairseq_lxsr.search.edits import remove_unlisted
from fairseq_lxsr.search.index_config import INDEX_CONFIG, IndexSettings, config_text, new_config
from fairseq_lxsr.search.index_folder import PATIENCE
from fairseq_lxsr.search.passages import with_pieces
from fairseq_lxsr.search.resumable import work_folder
from fairseq_lxsr.search.segment import Segment
from fairseq_lxsr.search.segment_files import check_description
from fairseq_lxsr.search.segment_writer import EmbedText, SegmentWriter

# Description of a finished shard in its folder.
SEGMENT_CONFIG = "segment.json"


@dataclass(frozen=True)
class IndexShard(ShardTask):
    """Task that writes the segment of one shard, in a folder named after the shard.

    Attributes:
        shard: lines to index.
        settings: settings of the index.
        embedder: called in a worker with its encoder; returns the function that embeds text.
    """

    shard: Shard
    settings: IndexSettings
    embedder: Callable[[Encoder], EmbedText]

    @property
    def output(self) -> Path:
        return self.shard.stem

    def is_intact(self) -> bool:
        with contextlib.suppress(InputError, OSError, ValueError, KeyError, TypeError):
            content = self.read()
            check_description(content["segment"])
            config = {**asdict(self.settings), "ids": False, "width": content["width"]}
            Segment(self.output.parent, content["segment"], config)
            return True
        return False

    def read(self) -> dict[str, Any]:
        """Return the width of the vectors, and the entry of the segment in index.json."""
        return parse_json((self.output / SEGMENT_CONFIG).read_text(encoding="utf-8"))

    def __call__(self, encoder: LoadEncoder) -> int:
        model = encoder()
        embed = with_pieces(self.embedder(model), model, self.settings.model)
        first = self.shard.first
        with atomic_folder(self.output, SEGMENT_CONFIG) as work:
            with SegmentWriter(work, self.settings.plain) as writer:
                for block in blocks(self.shard.lines(), None, first, first_place=first):
                    writer.embed(block, embed)
                writer.refuse_empty()
                segment = {**writer.finish(self.settings.kind), "folder": self.output.name}
            content = sealed({"width": writer.width, "segment": segment})
            (work / SEGMENT_CONFIG).write_text(json.dumps(content), encoding="utf-8")
        return writer.num_documents


def index_shards(
    lines: Iterable[str],
    folder: Path,
    embedder: Callable[[Encoder], EmbedText],
    workers: Workers,
    options: IndexOptions | None = None,
) -> dict[str, Any]:
    """Build an index with one segment for each shard of the lines.

    Empty lines are skipped. Shards of an earlier run with the same options are kept.

    Args:
        lines: lines to index.
        folder: output folder.
        embedder: called in a worker with its encoder; returns the function that embeds text.
        workers: workers that write the segments.
        options: index options; None for the defaults.

    Returns:
        Counts: `sentences`, `shards`, and shards finished by an earlier run (`kept`).

    Raises:
        InputError: if there is no text.
    """
    options = options or IndexOptions()
    settings = options.settings(workers.model)
    settings_of_shard = {**asdict(settings), "language": options.language}
    num_lines = 0
    with work_folder(folder, "index"):
        shards = []
        numbered_blocks = cut_blocks(enumerate(lines), workers.shard_lines)
        for number, block in enumerate(numbered_blocks):
            line_numbers, block_lines = block
            num_lines = int(line_numbers[-1]) + 1
            if not all(map(is_blank, block_lines)):
                shards.append(make_shard(folder / f"{number:05d}", block, settings_of_shard))
        if not shards:
            raise InputError("no text to index; expected one sentence per line")
        tasks = [IndexShard(shard.name, shard, settings, embedder) for shard in shards]
        num_done = run_missing(tasks, workers)
        contents = [task.read() for task in tasks]
        segments = [content["segment"] for content in contents]
        total = sum(segment["documents"] for segment in segments)
        config = new_config(settings, segments, contents[0]["width"], num_lines)
        with editing_folder(folder, PATIENCE):
            with atomic_write(folder / INDEX_CONFIG) as stream:
                stream.write(config_text(config))
            remove_unlisted(folder)
        remove_obsolete(folder, shards)
    return {"sentences": total, "shards": len(shards), "kept": len(shards) - num_done}
