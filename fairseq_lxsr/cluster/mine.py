"""Mining in shards: each side is embedded, each shard searches all shards of the other side, and
the rest is as on one machine: margins of the merged neighbourhoods, then the choice of pairs.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.cluster.shards import Shard, cut_blocks, make_shard
from fairseq_lxsr.cluster.workers import LoadEncoder, ShardTask, Workers, run_missing
from fairseq_lxsr.embeddings import Text, check_same_width, width_of
from fairseq_lxsr.embeddings.contract import short_hash
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import Lines, is_blank, read_lines
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import Record, open_array
from fairseq_lxsr.files.write import check_writable
from fairseq_lxsr.search import Mining, Side
from fairseq_lxsr.search.bitext import (
    Distinct,
    check_k,
    check_one_language,
    chosen_pairs,
    embed_distinct,
    find_neighbours,
    line_key,
    searcher,
    write_pairs,
)
from fairseq_lxsr.search.resumable import is_intact, work_folder
from fairseq_lxsr.vectors import MinedPairs, build_index, merge_neighbours, read_index, write_index
from fairseq_lxsr.vectors.index import search_index
from fairseq_lxsr.vectors.neighbours import shift_ids

VECTORS = ".npy"
NAMES = "source", "target"


@dataclass(frozen=True)
class ShardVectors:
    """Files of the vectors of a shard."""

    vectors: Path  # [count, D]
    index: Path  # that of the vectors where the search is exact
    count: int

    def search(
        self, queries: np.ndarray, options: Mining, within: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the k nearest, one more `within` one text, or all where there are fewer: cosines and
        ids [n, k].
        """
        if self.index == self.vectors:
            return searcher(open_array(self.vectors), options, within)(queries)
        return search_index(read_index(self.index), queries, min(options.k + within, self.count))


@dataclass(frozen=True)
class Corpus:
    """A file, with one sentence per line."""

    path: Path
    language: str  # for encoders that depend on it
    total: int  # number of its lines

    def text(self, lines: list[str], numbers: np.ndarray) -> Text:
        """Return some of its sentences, with the numbers of their lines."""
        return Text(lines, self.language, str(self.path), numbers, self.total)

    def check(self, k: int, within: bool = False) -> Text:
        """Check that k lines differ, or k from one of them, reading no more than that takes; return
        the first.
        """
        first = list(islice(distinct(self.path), max(k, 1) + within))
        if not first:
            raise InputError(f"{self.path}: no text in it; expected one sentence a line")
        check_k(k, len(first), self.path, within)
        number, line = first[0]
        return self.text([line], np.array([number]))


@dataclass(frozen=True)
class EmbedDistinct(ShardTask):
    """Embeds a shard of the distinct sentences of a side, and makes its index where the kind has a
    file.
    """

    shard: Shard
    corpus: Corpus
    kind: str  # of `Mining`

    @property
    def vectors(self) -> ShardVectors:
        vectors = self.shard.path(VECTORS)
        index = vectors if self.kind == "flat" else self.shard.path(f".{self.kind}")
        return ShardVectors(vectors, index, len(self.shard.numbers))

    @property
    def output(self) -> Path:
        return self.vectors.index

    @property
    def record(self) -> Path:
        """File with the SHA-256 of the index, where the kind has a file."""
        return self.shard.path(f".{self.kind}.json")

    def is_intact(self) -> bool:
        if not is_intact(self.vectors.vectors):
            return False
        if self.kind == "flat":
            return True
        with contextlib.suppress(InputError, OSError):
            return Record.read(self.record) == Record({"sha256": sha256(self.output)}, {})
        return False

    def __call__(self, encoder: LoadEncoder) -> int:
        side = Side(self.corpus.path, encoder(), self.corpus.language)
        lines, numbers, settings = (
            self.shard.lines(),
            np.asarray(self.shard.numbers),
            {"shard": self.shard.stem.name},
        )
        width = width_of(side.encoder, self.corpus.text(lines[:1], numbers[:1]))
        texts = Distinct(side, lines, numbers, self.corpus.total, width, settings, content=0)
        vectors = embed_distinct(self.vectors.vectors, texts)
        if self.kind != "flat":
            partial = self.shard.path(f".{self.kind}.partial")
            write_index(build_index(vectors, self.kind), partial)
            Record({"sha256": sha256(partial)}, {}).write(self.record)
            partial.replace(self.output)
        return len(vectors)


@dataclass(frozen=True)
class SearchShard(ShardTask):
    """Finds the neighbours of a shard in all shards of the other side, or of its own within one
    text.
    """

    queries: ShardVectors
    candidates: Sequence[ShardVectors]
    options: Mining
    first: int | None = None  # within one text, the number of the first sentence of the shard

    @property
    def settings(self) -> dict[str, Any]:
        others = short_hash(*(part.vectors.name for part in self.candidates))
        within = {} if self.first is None else {"within": True}
        return {
            "k": self.options.k,
            "candidates": others,
            **within,
            **self.options.neighbour_settings,
        }

    @property
    def output(self) -> Path:
        return self.queries.vectors.with_suffix(
            f".{short_hash(*map(str, self.settings.values()))}{VECTORS}"
        )

    def is_intact(self) -> bool:
        return is_intact(self.output)

    def __call__(self, encoder: LoadEncoder) -> int:
        queries = open_array(self.queries.vectors)
        return len(
            find_neighbours(self.output, queries, self.search, self.settings, first=self.first)
        )

    def search(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the k nearest of some queries in all shards: cosines and numbers of distinct
        sentences [n, k].
        """
        starts = accumulate((part.count for part in self.candidates), initial=0)
        parts = zip(self.candidates, starts, strict=False)
        within = self.first is not None
        found = (
            shift_ids(part.search(queries, self.options, within), start) for part, start in parts
        )
        return merge_neighbours(found, self.options.k + within)


def mine_shards(
    source: Corpus,
    target: Corpus | None,
    output: Path,
    workers: Workers,
    work: Path | None = None,
    options: Mining | None = None,
) -> tuple[MinedPairs, dict[str, Any]]:
    """Write what `search.mine_files` writes, with the work on embeddings and neighbours in shards.

    `work` is as of `mine_files`, on a disk that all machines see. Returns the pairs, and the
    numbers of `shards` and of tasks that an earlier run had done (`kept`).
    """
    options = options or Mining()
    if options.rerank:  # it needs the text of all shards
        raise InputError(
            f"rerank {options.rerank} in a cluster; expected none: mine on one machine, or without it"
        )
    options.check()
    target = None if target is None or _is_same_text(source, target) else target
    sides = [source] if target is None else [source, target]
    widths = [workers.width_of(side.check(options.k, target is None)) for side in sides]
    check_same_width(widths[0], widths[-1], (sides[0].path, sides[-1].path))
    check_writable(output)
    folder = work or output.with_name(f"{output.name}.work")
    with work_folder(folder, "mine", keep=work is not None):
        cut = [
            _cut(side, folder / name, options.kind, workers)
            for side, name in zip(sides, NAMES, strict=False)
        ]
        left, right = cut[0], cut[-1]
        done = run_missing(list(chain(*cut)), workers)
        ways = [
            _searches(side, other, options) for side, other in zip(cut, reversed(cut), strict=True)
        ]
        done += run_missing(list(chain(*ways)), workers)
        # copied, because a mapped array keeps its file open, and there may be thousands
        found = [
            np.concatenate([np.array(open_array(task.output)) for task in way]) for way in ways
        ]
        pairs = chosen_pairs(found, options)
        write_pairs(
            output, pairs, *(Sentences([task.shard for task in side]) for side in (left, right))
        )
    count = sum(map(len, cut))
    return pairs, {"shards": count, "kept": 2 * count - done}


def _cut(corpus: Corpus, stem: Path, kind: str, workers: Workers) -> list[EmbedDistinct]:
    """Cut the distinct sentences of a text into shards, which keep their text: the pairs are
    written from it.
    """
    name = str(corpus.path)
    settings = {
        "model": workers.model,
        "language": corpus.language,
        "file": name,
        "total": corpus.total,
    }
    shards = [
        make_shard(stem.with_name(f"{stem.name}-{number:05d}"), block, settings, name)
        for number, block in enumerate(cut_blocks(distinct(corpus.path), workers.shard_lines))
    ]
    return [EmbedDistinct(shard.name, shard, corpus, kind) for shard in shards]


def _searches(
    side: list[EmbedDistinct], other: list[EmbedDistinct], options: Mining
) -> list[SearchShard]:
    candidates = [task.vectors for task in other]
    starts = accumulate((task.vectors.count for task in side), initial=0)
    return [
        SearchShard(
            f"search of {task.name}",
            task.vectors,
            candidates,
            options,
            start if side is other else None,
        )
        for task, start in zip(side, starts, strict=False)
    ]


def _is_same_text(source: Corpus, target: Corpus) -> bool:
    """Return whether both have the same lines in any order; one text in two languages is
    refused.
    """
    if (
        len(
            {
                sum(int.from_bytes(line_key(line)) for _, line in distinct(side.path))
                for side in (source, target)
            }
        )
        > 1
    ):
        return False
    check_one_language(source, target, source.language == target.language)
    return True


def distinct(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbers and text of the lines that `bitext.distinct_lines` keeps; memory holds 16 bytes
    of their hashes.
    """
    known: set[bytes] = set()
    for number, line in enumerate(read_lines(path)):
        if not is_blank(line) and (key := line_key(line)) not in known:
            known.add(key)
            yield number, line.strip()


class Sentences(Sequence[str]):
    """The sentences of all shards of a side by number, read from their files."""

    def __init__(self, shards: Sequence[Shard]):
        self.starts = np.cumsum([0, *(len(shard.numbers) for shard in shards)]).tolist()
        self.parts = [Lines(shard.text) for shard in shards]

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, number):
        part = bisect_right(self.starts, number) - 1
        return self.parts[part][number - self.starts[part]]
