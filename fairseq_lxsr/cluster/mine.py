"""Mining in shards: workers embed each shard, and search all shards of the other side.

Margins and pairs are then computed from the merged neighbours, as on one machine.
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
from fairseq_lxsr.files.entities import ENTITIES, EntityReader
from fairseq_lxsr.files.lines import Lines, is_blank, read_lines
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import Record, open_array
from fairseq_lxsr.search import Mining, Side
from fairseq_lxsr.search.bitext import (
    Distinct,
    check_k,
    check_one_language,
    check_output,
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

VECTORS_SUFFIX = ".npy"
SIDE_NAMES = ("source", "target")


# -- input text


@dataclass(frozen=True)
class Corpus:
    """A file with one sentence per line.

    Attributes:
        path: the file.
        language: language of the text, for encoders that depend on it.
        total: number of lines.
        entities: what to do with HTML entities; see `EntityReader`.
    """

    path: Path
    language: str
    total: int
    entities: str = ENTITIES[0]

    def text(self, lines: list[str], numbers: np.ndarray) -> Text:
        """Return selected sentences, with their line numbers and language, for an encoder.

        Args:
            lines: N sentences of the file.
            numbers: their zero-based line numbers [N].
        """
        return Text(lines, self.language, str(self.path), numbers, self.total)

    def check(self, k: int, within: bool = False) -> Text:
        """Check that the file has enough distinct lines for k neighbours per line.

        The file is read only as far as needed.

        Args:
            k: number of neighbours.
            within: whether the neighbours of a line are searched in the same file; this requires
                k + 1 lines instead of k.

        Returns:
            The first sentence.

        Raises:
            InputError: if the file has too few distinct lines.
        """
        first_lines = list(islice(distinct(self), max(k, 1) + within))
        if not first_lines:
            raise InputError(f"{self.path}: no text; expected one sentence per line")
        check_k(k, len(first_lines), self.path, within)
        number, line = first_lines[0]
        return self.text([line], np.array([number]))


def distinct(corpus: Corpus, reader: EntityReader | None = None) -> Iterator[tuple[int, str]]:
    """Yield the zero-based number and the text of each distinct, non-empty line.

    These are the lines that `bitext.distinct_lines` returns.
    Only a 16-byte hash of each line is kept in memory.

    Args:
        corpus: the text.
        reader: counts the lines with HTML entities.
    """
    reader = reader or EntityReader(corpus.entities)
    keys: set[bytes] = set()
    for number, line in enumerate(reader.read_lines(read_lines(corpus.path))):
        if is_blank(line):
            continue
        key = line_key(line)
        if key not in keys:
            keys.add(key)
            yield number, line.strip()


def _is_same_text(source: Corpus, target: Corpus) -> bool:
    """Return whether both files contain the same distinct lines, in any order.

    Raises:
        InputError: if they do, but their languages differ.
    """
    if _content_hash(source) != _content_hash(target):
        return False
    check_one_language(source, target, source.language == target.language)
    return True


def _content_hash(corpus: Corpus) -> int:
    # Sum the hashes of the lines, so that their order does not matter.
    return sum(int.from_bytes(line_key(line)) for _, line in distinct(corpus))


class Sentences(Sequence[str]):
    """The distinct sentences of one side, which are read from the shard files when accessed."""

    def __init__(self, shards: Sequence[Shard]):
        # Index of the first sentence of each shard, followed by the total number of sentences.
        self.starts = np.cumsum([0, *(len(shard.numbers) for shard in shards)]).tolist()
        self.parts = [Lines(shard.text) for shard in shards]

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, number):
        part = bisect_right(self.starts, number) - 1
        return self.parts[part][number - self.starts[part]]


# -- tasks for one shard


@dataclass(frozen=True)
class ShardVectors:
    """Files that store the vectors of a shard.

    Attributes:
        vectors: file of the vectors [count, D].
        index: file of their index; the same file if the search is exact.
        count: number of vectors.
    """

    vectors: Path
    index: Path
    count: int

    def search(
        self, queries: np.ndarray, options: Mining, within: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the nearest vectors of each query.

        Args:
            queries: query vectors [n, D].
            options: search options, with the number of neighbours k.
            within: whether pairs are mined within one text. Then k + 1 neighbours are returned,
                because every query finds itself.

        Returns:
            Cosines and indices of vectors, [n, k] each; fewer columns if the shard is smaller.
        """
        if self.index == self.vectors:
            return searcher(open_array(self.vectors), options, within)(queries)
        return search_index(read_index(self.index), queries, min(options.k + within, self.count))


@dataclass(frozen=True)
class EmbedDistinct(ShardTask):
    """Task that embeds one shard of distinct sentences and builds its index.

    Attributes:
        shard: sentences to embed.
        corpus: text that contains the sentences.
        kind: search kind; see `Mining`. All kinds except flat have an index file.
    """

    shard: Shard
    corpus: Corpus
    kind: str

    @property
    def vectors(self) -> ShardVectors:
        vectors = self.shard.path(VECTORS_SUFFIX)
        index = vectors if self.kind == "flat" else self.shard.path(f".{self.kind}")
        return ShardVectors(vectors, index, len(self.shard.numbers))

    @property
    def output(self) -> Path:
        return self.vectors.index

    @property
    def record(self) -> Path:
        """File that stores the SHA-256 of the index file; unused if the search is exact."""
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
        lines = self.shard.lines()
        numbers = np.asarray(self.shard.numbers)
        settings = {"shard": self.shard.stem.name}
        width = width_of(side.encoder, self.corpus.text(lines[:1], numbers[:1]))
        texts = Distinct(side, lines, numbers, self.corpus.total, width, settings, content=0)
        vectors = embed_distinct(self.vectors.vectors, texts)
        if self.kind != "flat":
            self._write_index(vectors)
        return len(vectors)

    def _write_index(self, vectors: np.ndarray) -> None:
        partial = self.shard.path(f".{self.kind}.partial")
        write_index(build_index(vectors, self.kind), partial)
        Record({"sha256": sha256(partial)}, {}).write(self.record)
        partial.replace(self.output)


@dataclass(frozen=True)
class SearchShard(ShardTask):
    """Task that searches all shards of the other side for the neighbours of one shard.

    When mining within one text, it searches all shards of that text.

    Attributes:
        queries: vectors of the shard.
        candidates: vectors of the shards to search.
        options: search options.
        first: index of the shard's first sentence when mining within one text; otherwise None.
    """

    queries: ShardVectors
    candidates: Sequence[ShardVectors]
    options: Mining
    first: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the neighbours depend on. Their hash is part of the output file name."""
        settings: dict[str, Any] = {
            "k": int(self.options.k),
            "candidates": short_hash(*(part.vectors.name for part in self.candidates)),
        }
        if self.first is not None:
            settings["within"] = True
        return settings | self.options.neighbour_settings

    @property
    def output(self) -> Path:
        name = short_hash(*map(str, self.settings.values()))
        return self.queries.vectors.with_suffix(f".{name}{VECTORS_SUFFIX}")

    def is_intact(self) -> bool:
        return is_intact(self.output)

    def __call__(self, encoder: LoadEncoder) -> int:
        queries = open_array(self.queries.vectors)
        neighbours = find_neighbours(
            self.output, queries, self.search, self.settings, first=self.first
        )
        return len(neighbours)

    def search(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Search all shards for the k nearest neighbours of a block of queries.

        Returns:
            Cosines, and indices of distinct sentences, [n, k] each.
        """
        within = self.first is not None
        starts = accumulate((part.count for part in self.candidates), initial=0)
        parts = (
            shift_ids(part.search(queries, self.options, within), start)
            for part, start in zip(self.candidates, starts, strict=False)
        )
        return merge_neighbours(parts, self.options.k + within)


# -- mining


def mine_shards(
    source: Corpus,
    target: Corpus | None,
    output: Path,
    workers: Workers,
    work: Path | None = None,
    options: Mining | None = None,
) -> tuple[MinedPairs, dict[str, Any]]:
    """Mine pairs like `search.mine_files`, but compute embeddings and neighbours in shards.

    Args:
        source: source text.
        target: target text; None, or a text with the same lines, mines pairs within the source.
        output: output file.
        workers: workers that embed and search.
        work: folder for embeddings and neighbours, on a disk that all machines share; see
            `mine_files`.
        options: mining options; None for the defaults.

    Returns:
        The pairs, the number of `shards`, and the number of tasks finished by an earlier run
        (`kept`).

    Raises:
        InputError: if --rerank is used, which needs the text of all shards, or if texts and options
            are incompatible.
    """
    options = options or Mining()
    if options.rerank:
        raise InputError(
            f"rerank {options.rerank} is not supported in a cluster; mine on one machine, or "
            "without rerank"
        )
    options.check()
    sides = [source]
    if target is not None and not _is_same_text(source, target):
        sides.append(target)
    _check_sides(sides, options, workers)
    check_output(output, [side.language for side in sides])
    folder = work or output.with_name(f"{output.name}.work")
    with work_folder(folder, "mine", keep=work is not None):
        embed_tasks = _embed_tasks(sides, folder, options, workers)
        num_done = run_missing(list(chain(*embed_tasks)), workers)
        search_tasks = _search_tasks(embed_tasks, options)
        num_done += run_missing(list(chain(*search_tasks)), workers)
        source_text = Sentences([task.shard for task in embed_tasks[0]])
        target_text = Sentences([task.shard for task in embed_tasks[-1]])
        results = [_read_neighbours(tasks) for tasks in search_tasks]
        pairs = chosen_pairs(results, source_text, target_text, options)
        languages = (sides[0].language, sides[-1].language)
        write_pairs(output, pairs, source_text, target_text, languages)
    count = sum(map(len, embed_tasks))
    return pairs, {"shards": count, "kept": 2 * count - num_done}


def _check_sides(sides: list[Corpus], options: Mining, workers: Workers) -> None:
    """Check that both sides have enough lines and the same embedding width.

    Mining, which may take hours, starts only after this check.
    """
    widths = []
    for side in sides:
        first_sentence = side.check(options.k, within=len(sides) == 1)
        widths.append(workers.width_of(first_sentence))
    check_same_width(widths[0], widths[-1], (sides[0].path, sides[-1].path))


def _embed_tasks(
    sides: list[Corpus], folder: Path, options: Mining, workers: Workers
) -> list[list[EmbedDistinct]]:
    """Return the tasks that embed each side."""
    tasks_of_sides = []
    for side, name in zip(sides, SIDE_NAMES, strict=False):
        tasks_of_sides.append(_embed_side(side, folder / name, options.kind, workers))
    return tasks_of_sides


def _embed_side(corpus: Corpus, stem: Path, kind: str, workers: Workers) -> list[EmbedDistinct]:
    """Split the distinct sentences of a text into shards, and return the tasks that embed them.

    The text of the shards is kept, because it is needed to write the pairs.
    """
    settings = {
        "model": workers.model,
        "language": corpus.language,
        "file": str(corpus.path),
        "total": corpus.total,
    }
    tasks = []
    reader = EntityReader(corpus.entities)
    for number, block in enumerate(cut_blocks(distinct(corpus, reader), workers.shard_lines)):
        shard_stem = stem.with_name(f"{stem.name}-{number:05d}")
        shard = make_shard(shard_stem, block, settings, str(corpus.path))
        tasks.append(EmbedDistinct(shard.name, shard, corpus, kind))
    reader.report(f"lines of {corpus.path}")
    return tasks


def _search_tasks(
    embed_tasks: list[list[EmbedDistinct]], options: Mining
) -> list[list[SearchShard]]:
    """Return the tasks that find the neighbours of each side, in the other or in the same text."""
    tasks_of_sides = []
    for tasks, candidates in zip(embed_tasks, reversed(embed_tasks), strict=True):
        tasks_of_sides.append(_search_side(tasks, candidates, options))
    return tasks_of_sides


def _search_side(
    queries: list[EmbedDistinct], candidates: list[EmbedDistinct], options: Mining
) -> list[SearchShard]:
    """Return the tasks that find the neighbours of each shard of `queries`."""
    vectors = [task.vectors for task in candidates]
    is_within = queries is candidates
    tasks = []
    start = 0
    for task in queries:
        name = f"search of {task.name}"
        first = start if is_within else None
        tasks.append(SearchShard(name, task.vectors, vectors, options, first))
        start += task.vectors.count
    return tasks


def _read_neighbours(tasks: list[SearchShard]) -> np.ndarray:
    # Copy the arrays, because a mapped array keeps its file open, and there may be thousands of
    # files.
    return np.concatenate([np.array(open_array(task.output)) for task in tasks])
