"""Reads test text, ranks candidates, and checks that source and target match."""

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
    """Check that source and target embeddings are valid and have the same width.

    Raises:
        InputError: if the widths differ, or a row is a zero vector or contains NaN or infinity.
    """
    check_directions(source, "row {} of the source embeddings".format)
    check_directions(target, "row {} of the target embeddings".format)
    if source.shape[1] != target.shape[1]:
        raise InputError(
            f"source and target embeddings have {source.shape[1]} and {target.shape[1]} "
            "dimensions; expected embeddings from the same model"
        )


def read_columns(path: str | Path, names: str, tabs_in_last: bool = True) -> list[list[str]]:
    """Read a tab-separated file.

    Args:
        path: file to read.
        names: expected columns, for example `label<TAB>text`.
        tabs_in_last: whether the last column may contain tabs.

    Raises:
        InputError: if the file is empty, or a line has a wrong number of columns or an empty
            column.
    """
    tabs = names.count("<TAB>")
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        row = line.split("\t", tabs if tabs_in_last else -1)
        if len(row) != tabs + 1 or not all(cell.strip() for cell in row):
            raise InputError(f"{path}, line {number}: invalid line {line!r:.60}; expected {names}")
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: empty file; expected {names} on every line")
    return rows


def rows_of(text: Text, rows: Sequence[int] | IntArray) -> Text:
    """Select sentences by row index, in the given order."""
    lines = [text.lines[row] for row in rows]
    return replace(text, lines=lines, rows=np.array(rows), total=len(text))


def read_text(path: str | Path, language: str = "") -> Text:
    """Read a file with one sentence per line.

    Raises:
        InputError: if the file is empty.
    """
    lines = list(read_lines(path))
    if not lines:
        raise InputError(f"{path}: empty file; expected one sentence per line")
    return Text(lines, language, str(path))


def read_aligned(files: tuple[str, str], languages: tuple[str, str]) -> tuple[Text, Text]:
    """Read two files whose lines are translations of each other.

    Raises:
        InputError: if a file is empty, or the numbers of lines differ.
    """
    source = read_text(files[0], languages[0])
    target = read_text(files[1], languages[1])
    check_aligned(source, target)
    return source, target


def check_aligned(source: Text, target: Text) -> None:
    """Check that two texts have the same number of lines."""
    if len(source) != len(target):
        raise InputError(
            f"{source.file} has {len(source):,} lines and {target.file} has {len(target):,}; "
            "expected aligned files"
        )


CSLS_NEIGHBOURS = 10
MARGIN_NEIGHBOURS = 4
# Number of nearest candidates that are ranked by margin.
MARGIN_DEPTH = 100


def rank(queries: FloatArray, candidates: FloatArray, count: int, metric: str) -> IntArray:
    """Find the best candidates of every query.

    Args:
        queries: embeddings [Q, D].
        candidates: embeddings [M, D].
        count: number of candidates per query.
        metric: `nn` ranks by cosine similarity; `csls` ranks all candidates by CSLS with 10
            neighbours (Conneau et al. 2018); `margin` ranks the 100 nearest candidates by ratio
            margin with 4 neighbours (Artetxe and Schwenk 2019a).

    Returns:
        Row indices of the candidates, best first [Q, count].

    Raises:
        InputError: if the metric is unknown, the embeddings have different widths or invalid
            values, or there are too few of them.
    """
    if metric not in RANKING_METRICS:
        raise InputError(f"invalid metric {metric!r}; choose from {', '.join(RANKING_METRICS)}")
    check_pair(queries, candidates)
    if len(candidates) < count:
        raise InputError(
            f"got {len(candidates)} candidates; expected at least {count}, "
            "the number returned for every query: use more text"
        )
    if metric == "nn":
        return nearest_neighbours(queries, candidates, count, show_progress=True)[1]
    neighbours = CSLS_NEIGHBOURS if metric == "csls" else MARGIN_NEIGHBOURS
    if min(len(queries), len(candidates)) < neighbours:
        raise InputError(
            f"got {len(queries)} queries and {len(candidates)} candidates; expected at least "
            f"{neighbours} of each, the neighbours of {RANKING_METRICS[metric]}: use more text"
        )
    if metric == "csls":
        return csls_neighbours(queries, candidates, count, CSLS_NEIGHBOURS, show_progress=True)[1]
    depth = min(MARGIN_DEPTH, len(candidates))
    _, rows = margin_neighbours(
        queries, candidates, MARGIN_NEIGHBOURS, depth=depth, show_progress=True
    )
    return rows[:, :count]


@dataclass(frozen=True)
class TextReranker:
    """A reranker together with the sentences that it compares.

    Args:
        reranker: reranker of the nearest candidates by cosine similarity.
        queries: sentences of the queries [Q].
        candidates: sentences of the candidates [M].
    """

    reranker: Reranker
    queries: Sequence[str]
    candidates: Sequence[str]

    def rank(
        self, queries: FloatArray, candidates: FloatArray, rows: IntArray, count: int
    ) -> IntArray:
        """Find the best candidates of every query.

        Args:
            queries: embeddings [Q, D].
            candidates: embeddings [M, D], in any order.
            rows: index in `self.candidates` of the sentence of each candidate embedding [M].
            count: number of candidates per query.

        Returns:
            Indices in `self.candidates`, best first [Q, count].
        """
        self.reranker.check_depth(count)
        check_pair(queries, candidates)
        depth = min(self.reranker.depth, len(candidates))
        cosines, nearest = nearest_neighbours(queries, candidates, depth, show_progress=True)
        _, best = self.reranker.best(self.queries, self._sentences, cosines, rows[nearest])
        return best[:, :count]

    def _sentences(self, ids: IntArray) -> list[str]:
        return [self.candidates[index] for index in ids]


def identities(lines: Sequence[str]) -> IntArray:
    """Assign an integer id to each sentence [N]. Identical sentences have the same id."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(line, len(numbers)) for line in lines], dtype=np.int64)


def precision_outcomes(
    ranks: Sequence[int], retrieved: IntArray, gold: IntArray
) -> dict[str, Outcomes]:
    """Compute P@k: the fraction of queries whose gold candidate is among the first k retrieved.

    Args:
        ranks: values of k.
        retrieved: indices of the candidates retrieved for every query, best first [Q, K].
        gold: index of the gold candidate of every query [Q].

    Returns:
        The outcomes by name, for example `P@1`.
    """
    hits = retrieved == gold[:, None]
    return {f"P@{k}": Outcomes(as_units(hits[:, :k].any(axis=1))) for k in ranks}


def directions(source: Text, target: Text) -> tuple[str, str]:
    """Return the task names of both directions, for example `en->fr` and `fr->en`.

    A language paired with itself is marked as source and target.
    """
    source_name = source.language or "source"
    target_name = target.language or "target"
    if source_name == target_name:
        source_name = f"{source_name} (source)"
        target_name = f"{target_name} (target)"
    return f"{source_name}->{target_name}", f"{target_name}->{source_name}"
