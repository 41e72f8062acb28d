"""Mining in shards: each side is embedded, each shard searches all shards of the other side, and the rest is as on one
machine: margins of the merged neighbourhoods, then the choice of pairs."""

import contextlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.cluster.shards import Shard, blocks, make_shard
from fairseq_lxsr.cluster.workers import Load, ShardTask, Workers, complete
from fairseq_lxsr.embeddings import Text, check_same_width, width_of
from fairseq_lxsr.embeddings.contract import short_hash
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import Lines, is_blank, read_lines
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import Record, open_array
from fairseq_lxsr.files.write import check_writable
from fairseq_lxsr.search import Mining, Side
from fairseq_lxsr.search.bitext import Distinct, check_k, embed_distinct, find_neighbours, searcher, write_pairs
from fairseq_lxsr.search.resumable import is_whole, work_folder
from fairseq_lxsr.vectors import MinedPairs, build_index, merge_neighbours, mine_neighbours, read_index, write_index
from fairseq_lxsr.vectors.index import search_index
from fairseq_lxsr.vectors.neighbours import shifted

VECTORS = ".npy"


@dataclass(frozen=True)
class ShardVectors:
    """Files of the vectors of a shard."""

    vectors: Path  # [count, D]
    index: Path  # that of the vectors where the search is exact
    count: int

    def search(self, queries: np.ndarray, options: Mining) -> tuple[np.ndarray, np.ndarray]:
        """Find the k nearest, or all where there are fewer: cosines and ids [n, k]."""
        k = min(options.k, self.count)
        if self.index == self.vectors:
            return searcher(open_array(self.vectors), options, k)(queries)
        return search_index(read_index(self.index), queries, k)


@dataclass(frozen=True)
class Corpus:
    """One of the two files, with one sentence per line."""

    path: Path
    language: str  # for encoders that depend on it
    total: int  # number of its lines

    def text(self, lines: list[str], numbers: np.ndarray) -> Text:
        """Return some of its sentences, with the numbers of their lines."""
        return Text(lines, self.language, str(self.path), numbers, self.total)

    def check(self, k: int) -> Text:
        """Check that k lines differ, reading no more than that takes, and return the first."""
        first = list(islice(distinct(self.path), max(k, 1)))
        if not first:
            raise InputError(f"{self.path}: no text in it; expected one sentence a line")
        check_k(k, len(first), self.path)
        number, line = first[0]
        return self.text([line], np.array([number]))


@dataclass(frozen=True)
class EmbedDistinct(ShardTask):
    """Embeds a shard of the distinct sentences of a side, and makes its index where the kind has a file."""

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

    def is_whole(self) -> bool:
        if not is_whole(self.vectors.vectors):
            return False
        if self.kind == "flat":
            return True
        with contextlib.suppress(InputError, OSError):
            return Record.read(self.record) == Record({"sha256": sha256(self.output)}, {})
        return False

    def __call__(self, encoder: Load) -> int:
        side = Side(self.corpus.path, encoder(), self.corpus.language)
        lines, numbers, settings = self.shard.lines(), np.asarray(self.shard.numbers), {"shard": self.shard.stem.name}
        width = width_of(side.encoder, self.corpus.text(lines[:1], numbers[:1]))
        texts = Distinct(side, lines, numbers, self.corpus.total, width, settings)
        vectors = embed_distinct(self.vectors.vectors, texts)
        if self.kind != "flat":
            partial = self.shard.path(f".{self.kind}.partial")
            write_index(build_index(vectors, self.kind), partial)
            Record({"sha256": sha256(partial)}, {}).write(self.record)
            partial.replace(self.output)
        return len(vectors)


@dataclass(frozen=True)
class SearchShard(ShardTask):
    """Finds the neighbours of a shard in all shards of the other side."""

    queries: ShardVectors
    candidates: Sequence[ShardVectors]
    options: Mining

    @property
    def settings(self) -> dict[str, Any]:
        others = short_hash(*(part.vectors.name for part in self.candidates))
        return {"k": self.options.k, "candidates": others, **self.options.special}

    @property
    def output(self) -> Path:
        return self.queries.vectors.with_suffix(f".{short_hash(*map(str, self.settings.values()))}{VECTORS}")

    def is_whole(self) -> bool:
        return is_whole(self.output)

    def __call__(self, encoder: Load) -> int:
        return len(find_neighbours(self.output, open_array(self.queries.vectors), self.search, self.settings))

    def search(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the k nearest of some queries in all shards: cosines and numbers of distinct sentences [n, k]."""
        starts = accumulate((part.count for part in self.candidates), initial=0)
        parts = zip(self.candidates, starts, strict=False)
        found = (shifted(part.search(queries, self.options), start) for part, start in parts)
        return merge_neighbours(found, self.options.k)


def mine_shards(
    source: Corpus,
    target: Corpus,
    output: Path,
    workers: Workers,
    work: Path | None = None,
    options: Mining | None = None,
) -> tuple[MinedPairs, dict[str, Any]]:
    """Write what `search.mine_files` writes, with the work on embeddings and neighbours in shards.

    `work` is as of `mine_files`, on a disk that all machines see. Returns the pairs, and the numbers of `shards` and of
    tasks that an earlier run had done (`kept`).
    """
    options = options or Mining()
    if options.rerank:  # it needs the text of all shards
        raise InputError(f"rerank {options.rerank} in a cluster; expected none: mine on one machine, or without it")
    options.check()
    firsts = [corpus.check(options.k) for corpus in (source, target)]
    width, other = map(workers.width_of, firsts)
    check_same_width(width, other, (source.path, target.path))
    check_writable(output)
    folder = work or output.with_name(f"{output.name}.work")
    with work_folder(folder, "mine", keep=work is not None):
        left = _cut(source, folder / "source", options.kind, workers)
        right = _cut(target, folder / "target", options.kind, workers)
        done = complete([*left, *right], workers)
        ways = _searches(left, right, options), _searches(right, left, options)
        done += complete([*ways[0], *ways[1]], workers)
        # copied, because a mapped array keeps its file open, and there may be thousands
        forward, backward = (np.concatenate([np.array(open_array(task.output)) for task in way]) for way in ways)
        found = forward["cosines"], forward["ids"], backward["cosines"], backward["ids"]
        pairs = options.chosen(mine_neighbours(*found, options.margin, options.retrieval))
        write_pairs(output, pairs, *(Sentences([task.shard for task in side]) for side in (left, right)))
    count = len(left) + len(right)
    return pairs, {"shards": count, "kept": 2 * count - done}


def _cut(corpus: Corpus, stem: Path, kind: str, workers: Workers) -> list[EmbedDistinct]:
    """Cut the distinct sentences of a text into shards, which keep their text: the pairs are written from it."""
    name = str(corpus.path)
    settings = {"model": workers.model, "language": corpus.language, "file": name, "total": corpus.total}
    shards = [
        make_shard(stem.with_name(f"{stem.name}-{number:05d}"), block, settings, name)
        for number, block in enumerate(blocks(distinct(corpus.path), workers.shard_lines))
    ]
    return [EmbedDistinct(shard.name, shard, corpus, kind) for shard in shards]


def _searches(side: list[EmbedDistinct], other: list[EmbedDistinct], options: Mining) -> list[SearchShard]:
    candidates = [task.vectors for task in other]
    return [SearchShard(f"search of {task.name}", task.vectors, candidates, options) for task in side]


def distinct(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbers and text of the lines that `bitext.distinct_lines` keeps; memory holds 16 bytes of their hashes."""
    known: set[bytes] = set()
    for number, line in enumerate(read_lines(path)):
        sentence = line.strip()
        key = blake2b(sentence.encode("utf-8"), digest_size=16).digest()
        if not is_blank(line) and key not in known:
            known.add(key)
            yield number, sentence


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
