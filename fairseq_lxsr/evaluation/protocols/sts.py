"""Semantic textual similarity: correlation of cosine similarities with human ratings.

Spearman's rho is the main value (Reimers et al. 2016; mteb's `cosine_spearman`), followed by
Pearson's r; both multiplied by 100. Across languages, the two sentences of a pair are in different
languages (Cer et al. 2017, SemEval-2017 task 1).
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.evaluation.named_sets import datasets, find_file
from fairseq_lxsr.evaluation.protocols.protocol import (
    Plan,
    Protocol,
    parse_lang_pairs,
    with_dataset,
)
from fairseq_lxsr.evaluation.score import Outcomes, Score, from_hits, text_and_model
from fairseq_lxsr.evaluation.texts import check_pair
from fairseq_lxsr.files.lines import is_blank, read_lines
from fairseq_lxsr.options import FILE_NAME, at_least, option
from fairseq_lxsr.preparation.tables import CSV_NAME, csv_rows
from fairseq_lxsr.vectors.rows import FloatArray

# One-based columns of the first sentence, the second sentence and the rating.
STS_COLUMNS = (1, 2, 3)
# Minimum number of pairs; two pairs are always perfectly correlated.
FEWEST_PAIRS = 3
LARGEST_RATING = 1e6
# Number of pairs whose embeddings are converted to double precision at once.
COSINE_BLOCK = 4096


@dataclass(frozen=True)
class Rated:
    """N sentence pairs with human ratings.

    Args:
        first: first sentences [N].
        second: second sentences [N].
        scores: ratings [N].
    """

    first: Text
    second: Text
    scores: NDArray[np.float64]


def read_rated(
    path: str | Path, languages: tuple[str, str] = ("", ""), columns: tuple[int, ...] = STS_COLUMNS
) -> Rated:
    """Read rated sentence pairs from a file with tabs, or from a file .csv.

    The first line is skipped as a header if its rating is not a number. Rows with a blank rating
    are skipped and counted: in STS 2015 and 2016, only a part of the pairs was rated. External
    embeddings are looked up under the names `FILE.first` and `FILE.second`.

    Args:
        path: file to read.
        languages: languages of the first and the second sentences.
        columns: one-based columns of the first sentence, the second sentence and the rating.

    Returns:
        The pairs and their ratings.

    Raises:
        InputError: if a line is invalid, there are too few pairs, or all ratings are equal.
    """
    table = list(_cells(path))
    pairs = list(_read_rows(path, table, columns))
    num_blank = sum(1 for _, fields in table if is_blank(fields[columns[2] - 1]))
    if num_blank:
        say(f"{path}: skipped {num_blank:,} of {len(table):,} rows, which have no rating")
    if len(pairs) < FEWEST_PAIRS:
        raise InputError(f"{path}: {len(pairs)} rated pairs; expected at least {FEWEST_PAIRS}")
    numbers, first, second, scores = zip(*pairs, strict=True)
    if len(set(scores)) == 1:
        raise InputError(f"{path}: all ratings are {scores[0]:g}; expected different ratings")
    rows = np.array(numbers)
    return Rated(
        Text(first, languages[0], f"{path}.first", rows, len(table)),
        Text(second, languages[1], f"{path}.second", rows, len(table)),
        np.array(scores),
    )


def _cells(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row of a table."""
    is_csv = CSV_NAME.search(str(path))
    lines = read_lines(path, is_table=bool(is_csv))
    if is_csv:
        for number, _, cells in csv_rows(path, lines):
            yield number, cells
    else:
        for number, line in enumerate(lines, start=1):
            yield number, line.split("\t")


def _read_rows(
    path: str | Path, table: list[tuple[int, list[str]]], columns: tuple[int, ...]
) -> Iterator[tuple[int, str, str, float]]:
    """Yield the row number, both sentences and the rating of each pair with a rating."""
    for row, (number, fields) in enumerate(table):
        if len(fields) < max(columns):
            advice = "choose columns with --columns"
            if len(fields) == 1:
                advice = "separate columns by tabs, or name a file with commas .csv"
            raise InputError(
                f"{path}, line {number}: {len(fields)} columns; expected at least "
                f"{max(columns)}: {advice}"
            )
        first, second, score = (fields[column - 1] for column in columns)
        rating = _parse_rating(score)
        if is_blank(score):
            continue
        if rating is not None:
            yield row, first, second, rating
        elif row or not _is_column_name(score):
            raise InputError(
                f"{path}, line {number}: rating {score!r:.60} is invalid; "
                f"expected a number in column {columns[2]} (see --columns)"
            )


def _is_column_name(text: str) -> bool:
    """Return whether the text in the rating column is a column name, not a word such as `nan`."""
    name = text.strip().casefold()
    return bool(re.fullmatch(r".*[^\W\d_]{2}.*(?<!nan|inf|ull|one)", name))


def _parse_rating(text: str) -> float | None:
    try:
        rating = float(text)
    except ValueError:
        return None
    # The comparison is also false for NaN.
    return rating if abs(rating) <= LARGEST_RATING else None


def cosines(first: FloatArray, second: FloatArray) -> NDArray[np.float64]:
    """Compute the cosine similarity of every pair in double precision.

    Equal embeddings have a similarity of exactly 1, so that their pairs are tied.

    Args:
        first: embeddings [N, D].
        second: embeddings [N, D].

    Returns:
        Cosine similarities [N].
    """

    def block(start: int) -> NDArray[np.float64]:
        rows = slice(start, start + COSINE_BLOCK)
        first_units = _unit_length(first[rows].astype(float))
        second_units = _unit_length(second[rows].astype(float))
        return 1 - np.square(first_units - second_units).sum(axis=1) / 2

    return np.concatenate([block(start) for start in range(0, len(first), COSINE_BLOCK)])


def _unit_length(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank numbers [N], from 1 for the smallest. Equal numbers get their mean rank, as in SciPy.

    Args:
        x: numbers to rank.

    Returns:
        Ranks [N].
    """
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return (last - (counts - 1) / 2)[place]


def correlations(
    first: FloatArray, second: FloatArray, scores: NDArray[np.float64]
) -> dict[str, Outcomes]:
    """Compute Spearman's and Pearson's correlation between cosine similarities and ratings.

    Spearman's correlation is Pearson's correlation of the ranks. The bootstrap resamples pairs with
    their ranks among all pairs.

    Args:
        first: embeddings of the first sentences [N, D].
        second: embeddings of the second sentences [N, D].
        scores: ratings [N].

    Returns:
        Outcomes by name.

    Raises:
        InputError: if all cosine similarities or all ratings are equal.
    """
    check_pair(first, second)
    similarities = cosines(first, second)
    for name, values in (("cosines", similarities), ("ratings", scores)):
        if np.ptp(values) == 0:
            raise InputError(
                f"all {len(values)} {name} are equal, so the correlation is undefined; use other "
                "pairs"
            )
    spearman = Outcomes(ranks(similarities).tolist(), ranks(scores).tolist(), correlation=True)
    pearson = Outcomes(similarities.tolist(), scores.tolist(), correlation=True)
    return {"Spearman": spearman, "Pearson": pearson}


def score_rated(rated: Rated, encoder: Encoder) -> Score:
    """Compute the correlations for rated pairs.

    Args:
        rated: the rated pairs.
        encoder: encoder to score.

    Returns:
        The score.
    """
    outcomes = correlations(embed(encoder, rated.first), embed(encoder, rated.second), rated.scores)
    settings = {"metric": "cosine", "ties": "mean-rank", "pairs": len(rated.scores)}
    ratings = [str(score) for score in rated.scores]
    settings |= text_and_model(encoder.fingerprint, rated.first.lines, rated.second.lines, ratings)
    task = f"{rated.first.language or 'first'}-{rated.second.language or 'second'}"
    return from_hits("sts", task, outcomes, settings)


def three_columns(text: str) -> tuple[int, ...]:
    """Parse --columns, for example 6,7,5. Used as argparse's `type=` argument.

    Args:
        text: three numbers from 1, with commas between them.

    Returns:
        The numbers.
    """
    try:
        first, second, score = (int(at_least(1)(part)) for part in text.split(","))
    except (argparse.ArgumentTypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"{text!r:.60} is invalid; expected three numbers of at least 1, for example 6,7,5"
        ) from None
    return first, second, score


@dataclass(frozen=True, kw_only=True)
class Similarity(Protocol):
    """Correlations on files of rated pairs."""

    data: str = option(
        "files, for example sts17/{pair}; {pair} is filled in, and .tsv and .gz may be missing; "
        "with --dataset: folder of the test set",
        allowed=FILE_NAME,
        metavar="TEMPLATE",
    )
    dataset: str | None = option(
        "name of a public test set, whose files are known", None, tuple(datasets("sts"))
    )
    lang_pairs: str = option("language pairs, for example en-de,fr-en,en-en", metavar="PAIRS")
    columns: tuple[int, ...] = option(
        "columns of the first sentence, the second sentence and the rating (default: 1,2,3)",
        STS_COLUMNS,
        type=three_columns,
        metavar="I,J,K",
    )

    def prepare(self) -> Plan:
        pairs = parse_lang_pairs(self.lang_pairs, both_directions=False)
        files = [self._file(*pair) for pair in pairs]
        rated = [
            read_rated(file, pair, self.columns) for file, pair in zip(files, pairs, strict=True)
        ]

        def measure(encoder: Encoder) -> Iterator[list[Score]]:
            for pairs in rated:
                yield with_dataset([score_rated(pairs, encoder)], self.dataset)

        return Plan(measure, files)

    def _file(self, first: str, second: str) -> Path:
        if not self.dataset:
            return find_file(self.data, pair=f"{first}-{second}")
        if first != second:
            raise InputError(
                f"--lang-pairs {first}-{second}: {self.dataset} has both sentences of a pair in "
                f"the same language; expected for example {first}-{first}"
            )
        return datasets("sts")[self.dataset].path(self.data, first)
