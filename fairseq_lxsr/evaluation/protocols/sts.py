"""Semantic textual similarity: correlation of the cosine of two sentences with the score that
people gave.

Spearman's rho is the main value (Reimers et al. 2016; mteb's `cosine_spearman`), Pearson's r stands
beside it; both times 100. Across languages, the two sentences are of one language each (Cer et al.
2017, SemEval-2017 task 1).
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.named_sets import find_file
from fairseq_lxsr.evaluation.protocols.protocol import Plan, Protocol, parse_lang_pairs
from fairseq_lxsr.evaluation.score import Outcomes, Score, from_hits, text_and_model
from fairseq_lxsr.evaluation.texts import check_pair
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.options import FILE_NAME, at_least, option
from fairseq_lxsr.vectors.rows import FloatArray

STS_COLUMNS = (1, 2, 3)  # first sentence, second sentence, score
FEWEST = 3  # pairs: two are always correlated
LARGEST_RATING = 1e6  # score that people give
COSINE_BLOCK = 4096  # pairs whose vectors are held in double precision


@dataclass(frozen=True)
class Rated:
    """N pairs of sentences, and the score of each [N]."""

    first: Text
    second: Text
    scores: NDArray[np.float64]


def read_rated(
    path: str | Path, languages: tuple[str, str] = ("", ""), columns: tuple[int, ...] = STS_COLUMNS
) -> Rated:
    """Read a file of columns separated by tabs; a first line whose score is no number is a header.

    `columns` are those of the first sentence, the second one and the score, from 1. Embeddings made
    elsewhere are those of `FILE.first` and `FILE.second`.
    """
    numbered = list(_rows(path, columns))
    if len(numbered) < FEWEST:
        raise InputError(f"{path}: {len(numbered)} rated pairs; expected at least {FEWEST}")
    rows, first, second, scores = zip(*numbered, strict=True)
    where, total = np.array(rows), sum(1 for _ in read_lines(path))
    sides = [
        Text(lines, language, f"{path}.{name}", where, total)
        for lines, language, name in zip(
            (first, second), languages, ("first", "second"), strict=True
        )
    ]
    if len(set(scores)) == 1:
        raise InputError(
            f"{path}: every score is {scores[0]:g}; expected different ones, to correlate with"
        )
    return Rated(sides[0], sides[1], np.array(scores))


def _rows(path: str | Path, columns: tuple[int, ...]) -> Iterator[tuple[int, str, str, float]]:
    for row, line in enumerate(read_lines(path)):
        fields = line.split("\t")
        where = f"{path}, line {row + 1}"
        if len(fields) < max(columns):
            raise InputError(
                f"{where}: {len(fields)} columns; expected at least {max(columns)}, see --columns"
            )
        first, second, score = (fields[column - 1] for column in columns)
        number = _number(score)
        is_named = re.fullmatch(r".*[^\W\d_]{2}.*(?<!nan|inf|ull|one)", score.strip().casefold())
        if number is None and (row or not is_named):
            raise InputError(
                f"{where}: score {score!r:.60}; expected a number in column {columns[2]}, see --columns"
            )
        if number is not None:
            yield row, first, second, number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST_RATING else None  # which NaN is not


def cosines(first: FloatArray, second: FloatArray) -> NDArray[np.float64]:
    """Compute the cosine of every pair [N] in double precision; equal vectors have exactly 1, so
    that they are tied.
    """

    def of_block(rows: slice) -> NDArray[np.float64]:
        units = [
            side / np.linalg.norm(side, axis=1, keepdims=True)
            for side in (first[rows].astype(float), second[rows].astype(float))
        ]
        return 1 - np.square(units[0] - units[1]).sum(axis=1) / 2

    starts = range(0, len(first), COSINE_BLOCK)
    return np.concatenate([of_block(slice(start, start + COSINE_BLOCK)) for start in starts])


def ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank numbers from 1 [N]; ties share the mean of their ranks, as in scipy."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return (last - (counts - 1) / 2)[place]


def correlations(
    first: FloatArray, second: FloatArray, scores: NDArray[np.float64]
) -> dict[str, Outcomes]:
    """Compute Spearman's and Pearson's correlation, times 100, of cosines ([N, D] each) with what
    people gave [N].

    Spearman's is Pearson's of the ranks; the bootstrap draws pairs with the ranks that they have
    among all.
    """
    check_pair(first, second)
    found = cosines(first, second)
    for name, values in (("cosines", found), ("scores", scores)):
        if np.ptp(values) == 0:
            raise InputError(
                f"the {name} of all {len(values)} pairs are equal; expected different ones, to correlate"
            )
    samples = {"Spearman": (ranks(found), ranks(scores)), "Pearson": (found, scores)}
    return {
        name: Outcomes(x.tolist(), y.tolist(), correlation=True) for name, (x, y) in samples.items()
    }


def score_rated(rated: Rated, encoder: Encoder) -> Score:
    """Measure the correlations on rated pairs."""
    outcomes = correlations(embed(encoder, rated.first), embed(encoder, rated.second), rated.scores)
    texts = rated.first.lines, rated.second.lines, list(map(str, rated.scores))
    settings = {"metric": "cosine", "ties": "mean-rank", "pairs": len(rated.scores)}
    settings |= text_and_model(encoder.fingerprint, *texts)
    first, second = rated.first.language or "first", rated.second.language or "second"
    return from_hits("sts", f"{first}-{second}", outcomes, settings)


def three_columns(text: str) -> tuple[int, ...]:
    """Parse the value of --columns, as `type=` of argparse."""
    try:
        first, second, score = (int(at_least(1)(part)) for part in text.split(","))
    except (argparse.ArgumentTypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"{text!r:.60}; expected three numbers from 1, for example 6,7,5"
        ) from None
    return first, second, score


@dataclass(frozen=True, kw_only=True)
class Similarity(Protocol):
    """Correlations on files of rated pairs."""

    data: str = option(
        "for example sts17/{pair}: {pair} is filled in, .tsv and .gz are added where needed",
        allowed=FILE_NAME,
        metavar="TEMPLATE",
    )
    lang_pairs: str = option("for example en-de,fr-en,en-en", metavar="PAIRS")
    columns: tuple[int, ...] = option(
        "columns of the first sentence, the second one and the score, from 1 (default: 1,2,3)",
        STS_COLUMNS,
        type=three_columns,
        metavar="I,J,K",
    )

    def prepare(self) -> Plan:
        pairs = parse_lang_pairs(self.lang_pairs, both_directions=False)
        files = [find_file(self.data, pair="-".join(pair)) for pair in pairs]
        rated = [
            read_rated(file, pair, self.columns) for file, pair in zip(files, pairs, strict=True)
        ]
        return Plan(lambda encoder: ([score_rated(one, encoder)] for one in rated), files)
