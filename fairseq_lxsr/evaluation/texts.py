"""Reads files of test text, and checks the embeddings of their two sides."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.score import Outcomes, as_units
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.options import RANKING_METRICS
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.vectors import (
    check_directions,
    csls_neighbours,
    margin_neighbours,
    nearest_neighbours,
)
from fairseq_lxsr.vectors.rows import FloatArray, IntArray


def check_pair(source: FloatArray, target: FloatArray) -> None:
    """Check that two sides can come from one model, and that no row is zero or not finite."""
    check_directions(source, "row {} of the source embeddings".format)
    check_directions(target, "row {} of the target embeddings".format)
    if source.shape[1] != target.shape[1]:
        raise InputError(
            f"embeddings are {source.shape[1]} and {target.shape[1]} wide; expected one model"
        )


def read_columns(path: str | Path, names: str, tabs_in_last: bool = True) -> list[list[str]]:
    """Read a file of columns with tabs between them, such as `label<TAB>text`; the last one may
    hold tabs itself.
    """
    tabs = names.count("<TAB>")
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        row = line.split("\t", tabs if tabs_in_last else -1)
        if len(row) != tabs + 1 or not all(cell.strip() for cell in row):
            raise InputError(f"{path}, line {number}: {line!r:.60}; expected {names}")
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: empty file; expected {names} on every line")
    return rows


def rows_of(text: Text, rows: Sequence[int] | IntArray) -> Text:
    """Return some rows of a text that is a whole file, in the given order."""
    return replace(
        text, lines=[text.lines[row] for row in rows], rows=np.array(rows), total=len(text)
    )


def read_text(path: str | Path, language: str = "") -> Text:
    """Read all lines of a file."""
    lines = list(read_lines(path))
    if not lines:
        raise InputError(f"{path}: empty file; expected one sentence a line")
    return Text(lines, language, str(path))


def read_aligned(files: tuple[str, str], languages: tuple[str, str]) -> tuple[Text, Text]:
    """Read two files whose lines are translations of each other."""
    source, target = (
        read_text(path, language) for path, language in zip(files, languages, strict=True)
    )
    check_aligned(source, target)
    return source, target


def check_aligned(source: Text, target: Text) -> None:
    """Check that two texts have as many lines."""
    if len(source) != len(target):
        raise InputError(
            f"{source.file} has {len(source):,} lines and {target.file} {len(target):,}; align the files"
        )


CSLS_NEIGHBOURS, MARGIN_NEIGHBOURS, MARGIN_DEPTH = 10, 4, 100


def rank(queries: FloatArray, candidates: FloatArray, count: int, metric: str) -> IntArray:
    """Return the `count` best candidates of every query [Q, count].

    `nn` ranks by cosine; `csls` by CSLS with neighbourhoods of 10, over all candidates (Conneau et
    al. 2018); `margin` ranks the 100 nearest by cosine by ratio margin with neighbourhoods of 4
    (Artetxe and Schwenk 2019a).
    """
    if metric not in RANKING_METRICS:
        raise InputError(f"metric {metric!r}; expected one of {', '.join(RANKING_METRICS)}")
    check_pair(queries, candidates)
    if len(candidates) < count:
        raise InputError(
            f"{len(candidates)} candidates; expected at least {count}, the number to be found: add text"
        )
    if metric == "nn":
        return nearest_neighbours(queries, candidates, count, show_progress=True)[1]
    needed = CSLS_NEIGHBOURS if metric == "csls" else MARGIN_NEIGHBOURS
    if min(len(queries), len(candidates)) < needed:
        raise InputError(
            f"{len(queries)} queries and {len(candidates)} candidates; {RANKING_METRICS[metric]} expects at least "
            f"{needed} of each, to take the mean of that many neighbours: add text"
        )
    if metric == "csls":
        return csls_neighbours(queries, candidates, count, CSLS_NEIGHBOURS, show_progress=True)[1]
    depth = min(MARGIN_DEPTH, len(candidates))
    return margin_neighbours(
        queries, candidates, MARGIN_NEIGHBOURS, depth=depth, show_progress=True
    )[1][:, :count]


@dataclass(frozen=True)
class TextReranker:
    """Ranks queries [Q] by cosine, and the nearest again by a `Reranker`, which reads the sentences
    [Q] and [M].
    """

    reranker: Reranker
    queries: Sequence[str]
    candidates: Sequence[str]

    def rank(
        self, queries: FloatArray, candidates: FloatArray, rows: IntArray, count: int
    ) -> IntArray:
        """Return the rows of the `count` best candidates of every query [Q, count].

        Candidates [M, D] come in any order; `rows` are their rows in the text [M].
        """
        self.reranker.check_depth(count)
        check_pair(queries, candidates)
        depth = min(self.reranker.depth, len(candidates))
        cosines, found = nearest_neighbours(queries, candidates, depth, show_progress=True)
        _, best = self.reranker.best(
            self.queries, lambda ids: [self.candidates[i] for i in ids], cosines, rows[found]
        )
        return best[:, :count]


def identities(lines: Sequence[str]) -> IntArray:
    """Number the sentences [N]; identical sentences get the same number."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(line, len(numbers)) for line in lines], dtype=np.int64)


def found_at(ranks: Sequence[int], found: IntArray, gold: IntArray) -> dict[str, Outcomes]:
    """Compute P@k for each rank k: whether the gold candidate [Q] is among the first k found [Q,
    K].
    """
    hits = found == gold[:, None]
    return {f"P@{k}": Outcomes(as_units(hits[:, :k].any(axis=1))) for k in ranks}


def directions(source: Text, target: Text) -> tuple[str, str]:
    """Return the names of the two tasks of a language pair, which differ for a language paired with
    itself.
    """
    first, second = source.language or "source", target.language or "target"
    if first == second:
        first, second = f"{first} (source)", f"{second} (target)"
    return f"{first}->{second}", f"{second}->{first}"
