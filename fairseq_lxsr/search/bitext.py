"""Mines translation pairs from two text files, or paraphrases from one, by margin; every step is resumable."""

import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, check_same_width, embed, width_of
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.files.invisible import visible
from fairseq_lxsr.files.lines import is_blank, read_lines, single_line
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.progress import Progress, duration
from fairseq_lxsr.files.write import atomic_write, check_writable
from fairseq_lxsr.search.options import Mining
from fairseq_lxsr.search.reranker import QUERIES, find_reranker
from fairseq_lxsr.search.resumable import ENCODE_ROWS, SEARCH_ROWS, Rows, resumable_array, work_folder
from fairseq_lxsr.vectors import (
    MinedPairs,
    build_index,
    check_directions,
    mine_neighbours,
    mine_within,
    nearest_neighbours,
    search_index,
)
from fairseq_lxsr.vectors.mining import without_self
from fairseq_lxsr.vectors.rows import best_first, check_count

Search = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
Again = Callable[[int, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
BEHIND = -2.0  # of a candidate without a known word: behind all cosines, also those of other shards


@dataclass(frozen=True)
class Side:
    """A file, with one sentence per line, and its encoder."""

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
    content: int  # the same for the same lines in any order; 0 for a part of a text

    def embed(self, start: int, stop: int) -> np.ndarray:
        """Embed the sentences start to stop, [stop - start, D]; one without a known word gives zeros, not all may."""
        lines, numbers = self.lines[start:stop], self.numbers[start:stop]
        text = Text(lines, self.side.language, str(self.side.path), numbers, self.total)
        rows = embed(self.side.encoder, text, zeros=True)
        if self.content and len(lines) == len(self.lines) and not rows.any():
            check_directions(rows, text.where)
        return rows


def mine_files(
    source: Side,
    target: Side | None,
    output: Path,
    work: Path | None = None,
    options: Mining | None = None,
    show_progress: bool = False,
) -> MinedPairs:
    """Write `score<TAB>source<TAB>target` by descending score; identical lines count once, empty lines are ignored.

    Within one text, no line is paired with itself, and each pair is there once.

    Args:
        source: source file and its encoder.
        target: target file and its encoder; None, or a file of the same lines, for pairs within the source.
        output: file to write, which is checked before any work.
        work: folder that keeps embeddings and neighbours; an interrupted run resumes from it, and a run with other
            options reuses what does not depend on them. None is OUTPUT.work, which is removed at the end.
        options: options of mining; None for the defaults.
        show_progress: show progress bars.
    """
    options = options or Mining()
    left = distinct_lines(source)
    right = left if target is None else distinct_lines(target)
    within = is_within(left, right)
    right = left if within else right
    _check(left, right, options)
    check_writable(output)
    folder = work or output.with_name(f"{output.name}.work")
    with work_folder(folder, "mine", keep=work is not None):
        one = embed_distinct(folder / "source.npy", left, show_progress)
        other = one if within else embed_distinct(folder / "target.npy", right, show_progress)
        settings: dict[str, Any] = {"source": left.settings, "target": right.settings, **options.special}
        settings |= {"within": True} if within else {}
        ways = [("forward.npy", left, right, one, other)]
        ways += [] if within else [("backward.npy", right, left, other, one)]
        to_score = options.rerank * sum(len(texts.lines) for _, texts, *_ in ways)
        found: list[np.ndarray] = []
        for name, texts, others, queries, candidates in ways:
            stored = min(max(options.k, options.rerank), len(candidates) - within)
            again = scorer(texts, others, options, found[0] if found else None, to_score if show_progress else 0)
            search, first = searcher(candidates, options, within), 0 if within else None
            found.append(
                find_neighbours(folder / name, queries, search, {"k": stored} | settings, show_progress, again, first)
            )
        pairs = chosen_pairs(found, options)
        write_pairs(output, pairs, left.lines, right.lines)
    return pairs


def chosen_pairs(found: Sequence[np.ndarray], options: Mining) -> MinedPairs:
    """Choose the pairs from the neighbours of both sides, or from those of one side among each other."""
    neighbours = [way[name][:, : options.k] for way in found for name in ("cosines", "ids")]
    for way, side in zip(found, ("source", "target"), strict=False):
        if lost := int(np.count_nonzero(~way["cosines"].any(axis=1))):
            say(f"{lost:,} of the {len(way):,} different lines of the {side} have no known word: they are in no pair")
    choose: Callable[..., MinedPairs] = mine_neighbours if len(found) > 1 else mine_within
    return options.chosen(choose(*neighbours, margin=options.margin, retrieval=options.retrieval))


def is_within(source: "Distinct", target: "Distinct") -> bool:
    """Return whether both sides are one text, of one language; one text in two languages is refused."""
    if source is not target and source.content != target.content:
        return False
    check_one_language(source.side, target.side, source.side.fingerprint == target.side.fingerprint)
    return True


def check_one_language(source: Any, target: Any, is_one: bool) -> None:
    """Refuse one text in two languages; `source` and `target` have a path."""
    if not is_one:
        raise InputError(
            f"{target.path}: has the sentences of {source.path}, but another language or model; expected another text, "
            "or none for pairs within one"
        )


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
        check_k(options.k, len(texts.lines), texts.side.path, source is target)
    if reranker := find_reranker(source.side.encoder, options):
        if source.side.encoder.fingerprint != target.side.encoder.fingerprint:
            raise InputError("rerank with a model for each language; expected one, whose pieces share a table")
        reranker.check_depth(options.k)


def check_k(k: int, count: int, path: Path, within: bool = False) -> None:
    """Check the size of the neighbourhoods against the number of different lines of a file, or of other ones."""
    check_count("k", k, count - within, f"{'other' if within else 'different'} lines of {path}")


def distinct_lines(side: Side) -> Distinct:
    """Read the distinct lines that are not empty, and their line numbers from 0."""
    known: set[bytes] = set()
    lines, numbers, total, content = [], [], 0, 0
    for number, line in enumerate(read_lines(side.path)):
        total = number + 1
        if not is_blank(line) and (key := line_key(line)) not in known:
            known.add(key)
            lines.append(line.strip())
            numbers.append(number)
            content += int.from_bytes(key)
    if not lines:
        raise InputError(f"{side.path}: no text in it; expected one sentence a line")
    settings = {"text": sha256(side.path), "model": side.fingerprint}
    width = width_of(side.encoder, Text(lines[:1], side.language, str(side.path), np.array(numbers[:1]), total))
    return Distinct(side, lines, np.array(numbers), total, width, settings, content)


def line_key(line: str) -> bytes:
    """Return what is equal for lines that a reader takes for the same: of the same visible characters and words."""
    read = " ".join(unicodedata.normalize("NFC", visible(line)).split())
    return blake2b(read.encode("utf-8"), digest_size=16).digest()


def embed_distinct(path: Path, texts: Distinct, show_progress: bool = False) -> np.ndarray:
    """Embed the sentences of a side in a file that survives interruptions, [N, D]."""
    rows = Rows((len(texts.lines), texts.width), np.float32, texts.settings)
    return resumable_array(path, rows, texts.embed, ENCODE_ROWS, show_progress)


def searcher(candidates: np.ndarray, options: Mining, within: bool = False) -> Search:
    """Return the search in candidates [M, D] for as many of the nearest as the options need, or for all of fewer.

    Where the queries are `within` the candidates, one more is found: the query itself.
    """
    k = min(max(options.k, options.rerank) + within, len(candidates))
    if options.kind == "flat":
        known = np.asarray(candidates.any(axis=1))
        penalty = None if known.all() else np.where(known, np.float32(0), np.float32(-BEHIND))
        return lambda queries: nearest_neighbours(queries, candidates, k, penalty=penalty, **options.search)
    index = cache(lambda: build_index(candidates, options.kind))  # not built where nothing is left to search
    return lambda queries: search_index(index(), queries, k)


def scorer(
    texts: Distinct, others: Distinct, options: Mining, before: np.ndarray | None = None, shown: int = 0
) -> Again | None:
    """Return what scores the nearest of the sentences from a number on again; None where the options do not ask.

    Pairs that are among the neighbours `before`, of the others, have their scores from there. The progress is `shown`
    for that many pairs in all.
    """
    reranker = find_reranker(texts.side.encoder, options)
    if reranker is None:
        return None
    started: list[float] = []

    def again(start: int, cosines: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores, pairs = cosines.copy(), len(texts.lines) * ids.shape[1]
        hidden = None if shown else True
        done = start * ids.shape[1]
        with Progress(total=pairs, initial=done, desc="rerank", unit=" pairs", leave=False, disable=hidden) as bar:
            for begin in range(0, len(ids), QUERIES):
                block, begun = slice(begin, begin + QUERIES), time.perf_counter()
                lines = texts.lines[start + begin : start + begin + QUERIES]
                scores[block], here = _scored_before(before, start + begin, cosines[block], ids[block])
                # others, and candidates of cosine 0, may have no known word
                some = np.flatnonzero(cosines[block].any(axis=1))
                unknown = np.where((cosines[block] == 0) | here, -1, ids[block])[some]
                lines = [lines[row] for row in some.tolist()]
                read = lambda rows: [others.lines[row] for row in rows]  # noqa: E731
                scores[block][some] = reranker.scores(lines, read, scores[block][some], unknown)
                if shown and before is None and not started:
                    started.append((time.perf_counter() - begun) / len(here) / ids.shape[1] * shown)
                    say(f"--rerank {options.rerank}: {shown:,} pairs to score, about {duration(started[0])}")
                bar.update(here.size)
        return best_first(scores, ids, ids.shape[1])

    return again


def _scored_before(
    before: np.ndarray | None, start: int, cosines: np.ndarray, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores [N, k] of pairs that the candidates have found `before`, else cosines; and which these are.

    A pair of sentences is scored once: a mutual neighbour has its score from the other side.
    """
    if before is None:
        return cosines, np.zeros(ids.shape, dtype=bool)
    theirs = before[ids]  # [N, k] rows of neighbours
    same = theirs["ids"] == (start + np.arange(len(ids)))[:, None, None]
    scores = np.take_along_axis(theirs["cosines"], same.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    here = same.any(axis=2) & (ids >= 0)
    return np.where(here, scores, cosines), here


def find_neighbours(
    path: Path,
    queries: np.ndarray,
    search: Search,
    settings: dict[str, Any],
    show_progress: bool = False,
    again: Again | None = None,
    first: int | None = None,
) -> np.ndarray:
    """Find the nearest of all queries [N, D] in a file that survives interruptions: N rows of k `cosines` and k `ids`.

    `settings` are all that they depend on, `k` among them; `again` scores the neighbours of a block of queries again;
    `first` is the number of the first query among the candidates, where it is one of them, which is left out.
    """
    row = np.dtype([("cosines", np.float32, (settings["k"],)), ("ids", np.int64, (settings["k"],))])

    def compute(start: int, stop: int) -> np.ndarray:
        block = np.empty(stop - start, dtype=row)
        found = search(queries[start:stop])
        found[0][found[0] == BEHIND] = 0
        found[0][~queries[start:stop].any(axis=1)] = 0  # without a known word, whatever an index says
        found = found if first is None else without_self(*found, first + start)
        block["cosines"], block["ids"] = again(start, *found) if again else found
        return block

    return resumable_array(path, Rows((len(queries),), row, settings), compute, SEARCH_ROWS, show_progress)
