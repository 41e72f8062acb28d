"""Mines translation pairs from two text files by margin; every step is resumable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, check_same_width, embed, width_of
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import is_blank, read_lines, single_line
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.write import atomic_write, check_writable
from fairseq_lxsr.search.options import Mining
from fairseq_lxsr.search.reranker import find_reranker
from fairseq_lxsr.search.resumable import ENCODE_ROWS, SEARCH_ROWS, Rows, resumable_array, work_folder
from fairseq_lxsr.vectors import MinedPairs, build_index, mine_neighbours, nearest_neighbours, search_index

Search = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
Again = Callable[[int, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Side:
    """One of the two files, with one sentence per line, and its encoder."""

    path: Path
    encoder: Encoder
    language: str = ""  # of the text, for encoders that depend on it

    @property
    def fingerprint(self) -> str:
        """Fingerprint that changes when the vectors change."""
        return f"{self.encoder.fingerprint} {self.language}".strip()


@dataclass(frozen=True)
class Distinct:
    """Distinct sentences of a side, their line numbers, and the settings that their vectors depend on."""

    side: Side
    lines: list[str]
    numbers: np.ndarray
    total: int
    width: int
    settings: dict[str, str]

    def embed(self, start: int, stop: int) -> np.ndarray:
        """Embed the sentences start to stop, [stop - start, D]."""
        lines, numbers = self.lines[start:stop], self.numbers[start:stop]
        return embed(self.side.encoder, Text(lines, self.side.language, str(self.side.path), numbers, self.total))


def mine_files(
    source: Side,
    target: Side,
    output: Path,
    work: Path | None = None,
    options: Mining | None = None,
    show_progress: bool = False,
) -> MinedPairs:
    """Write `score<TAB>source<TAB>target` by descending score; identical lines count once, empty lines are ignored.

    Args:
        source: source file and its encoder.
        target: target file and its encoder.
        output: file to write, which is checked before any work.
        work: folder that keeps embeddings and neighbours; an interrupted run resumes from it, and a run with other
            options reuses what does not depend on them. None is OUTPUT.work, which is removed at the end.
        options: options of mining; None for the defaults.
        show_progress: show progress bars.
    """
    options = options or Mining()
    left, right = (distinct_lines(side) for side in (source, target))
    _check(left, right, options)
    check_writable(output)
    folder = work or output.with_name(f"{output.name}.work")
    with work_folder(folder, "mine", keep=work is not None):
        one = embed_distinct(folder / "source.npy", left, show_progress)
        other = embed_distinct(folder / "target.npy", right, show_progress)
        settings = {"k": options.k, "source": left.settings, "target": right.settings, **options.special}
        ways = (left, right, one, other), (right, left, other, one)
        forward, backward = (
            find_neighbours(
                folder / name,
                queries,
                searcher(candidates, options),
                settings,
                show_progress,
                again=scorer(texts, others, options),
            )
            for name, (texts, others, queries, candidates) in zip(("forward.npy", "backward.npy"), ways, strict=True)
        )
        found = forward["cosines"], forward["ids"], backward["cosines"], backward["ids"]
        pairs = options.chosen(mine_neighbours(*found, options.margin, options.retrieval))
        write_pairs(output, pairs, left.lines, right.lines)
    return pairs


def write_pairs(output: Path, pairs: MinedPairs, source: Sequence[str], target: Sequence[str]) -> None:
    """Write `score<TAB>source<TAB>target` for each pair, sentences with single blanks alone."""
    with atomic_write(output) as stream:
        for score, i, j in zip(pairs.scores.tolist(), pairs.source.tolist(), pairs.target.tolist(), strict=True):
            stream.write(f"{score:.6f}\t{single_line(source[i])}\t{single_line(target[j])}\n")


def _check(source: Distinct, target: Distinct, options: Mining) -> None:
    """Check early what would otherwise be refused after hours of work."""
    check_same_width(source.width, target.width, (source.side.path, target.side.path))
    options.check()
    for texts in (source, target):
        check_k(options.k, len(texts.lines), texts.side.path)
    if reranker := find_reranker(source.side.encoder, options):
        if source.side.encoder.fingerprint != target.side.encoder.fingerprint:
            raise InputError("rerank with a model for each language; expected one, whose pieces share a table")
        reranker.check_depth(options.k)


def check_k(k: int, count: int, path: Path) -> None:
    """Check the size of the neighbourhoods against the number of different lines of a file."""
    if not 1 <= k <= count:
        raise InputError(f"k is {k}; expected 1 to {count}, the number of different lines of {path}")


def distinct_lines(side: Side) -> Distinct:
    """Read the distinct lines that are not empty, and their line numbers from 0."""
    first: dict[str, int] = {}
    total = 0
    for number, line in enumerate(read_lines(side.path)):
        total = number + 1
        if not is_blank(line):
            first.setdefault(line.strip(), number)
    if not first:
        raise InputError(f"{side.path}: no text in it; expected one sentence a line")
    settings = {"text": sha256(side.path), "model": side.fingerprint}
    lines, numbers = list(first), np.array(list(first.values()))
    width = width_of(side.encoder, Text(lines[:1], side.language, str(side.path), numbers[:1], total))
    return Distinct(side, lines, numbers, total, width, settings)


def embed_distinct(path: Path, texts: Distinct, show_progress: bool = False) -> np.ndarray:
    """Embed the sentences of a side in a file that survives interruptions, [N, D]."""
    rows = Rows((len(texts.lines), texts.width), np.float32, texts.settings)
    return resumable_array(path, rows, texts.embed, ENCODE_ROWS, show_progress)


def searcher(candidates: np.ndarray, options: Mining, k: int | None = None) -> Search:
    """Return the search in candidates [M, D] for the k nearest of any queries (None: as many as the options need)."""
    k = k or min(max(options.k, options.rerank), len(candidates))
    if options.kind == "flat":
        return lambda queries: nearest_neighbours(queries, candidates, k, **options.search)
    index = cache(lambda: build_index(candidates, options.kind))  # not built where nothing is left to search
    return lambda queries: search_index(index(), queries, k)


def scorer(texts: Distinct, others: Distinct, options: Mining) -> Again | None:
    """Return what scores the nearest of the sentences from a number on again; None where the options do not ask."""
    reranker = find_reranker(texts.side.encoder, options)
    if reranker is None:
        return None

    def again(start: int, cosines: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lines = texts.lines[start : start + len(ids)]
        scores, found = reranker.best(lines, lambda rows: [others.lines[row] for row in rows], cosines, ids)
        return scores[:, : options.k], found[:, : options.k]

    return again


def find_neighbours(
    path: Path,
    queries: np.ndarray,
    search: Search,
    settings: dict[str, Any],
    show_progress: bool = False,
    again: Again | None = None,
) -> np.ndarray:
    """Find the nearest of all queries [N, D] in a file that survives interruptions: N rows of k `cosines` and k `ids`.

    `settings` are all that they depend on, `k` among them; `again` scores the neighbours of a block of queries again.
    """
    row = np.dtype([("cosines", np.float32, (settings["k"],)), ("ids", np.int64, (settings["k"],))])

    def compute(start: int, stop: int) -> np.ndarray:
        block = np.empty(stop - start, dtype=row)
        found = search(queries[start:stop])
        block["cosines"], block["ids"] = again(start, *found) if again else found
        return block

    return resumable_array(path, Rows((len(queries),), row, settings), compute, SEARCH_ROWS, show_progress)
