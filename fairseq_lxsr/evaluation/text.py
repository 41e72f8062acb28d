"""Reads files of test text, and checks the embeddings of their two sides."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.lines import read_lines
from fairseq_lxsr.retrieval import check_directions
from fairseq_lxsr.retrieval.neighbours import FloatArray, IntArray

SUFFIXES = ("", ".gz", ".txt", ".txt.gz", ".tsv", ".tsv.gz")


def check_pair(source: FloatArray, target: FloatArray) -> None:
    """Check that two sides can come from one model, and that no row is zero or not finite.

    Raises:
        InputError: where the widths differ, or a row has no direction.
    """
    check_directions(source, "row {} of the source embeddings".format)
    check_directions(target, "row {} of the target embeddings".format)
    if source.shape[1] != target.shape[1]:
        raise InputError(
            f"embeddings are {source.shape[1]} and {target.shape[1]} wide; expected the same model on both sides"
        )


def find_file(template: str, language: str = "", pair: str = "") -> Path:
    """Find the file of a template: {lang} and {pair} are filled in, an ending such as .txt.gz is added where needed.

    Raises:
        InputError: naming the files that were tried.
    """
    name = template if "{lang}" in template or not language else f"{template}.{{lang}}"
    base = name.replace("{lang}", language).replace("{pair}", pair)
    for suffix in SUFFIXES:
        if Path(base + suffix).is_file():
            return Path(base + suffix)
    raise InputError(f"{base}: no such file, nor with {', '.join(SUFFIXES[1:])}; check --data and the languages")


def rows_of(text: Text, rows: Sequence[int] | IntArray) -> Text:
    """Return some rows of a text that is a whole file, in the given order."""
    return replace(text, lines=[text.lines[row] for row in rows], rows=np.array(rows), total=len(text))


def read_text(path: str | Path, language: str = "") -> Text:
    """Read all lines of a file.

    Raises:
        InputError: for an empty file.
    """
    lines = list(read_lines(path))
    if not lines:
        raise InputError(f"{path}: empty file; expected one sentence a line")
    return Text(lines, language, str(path))


def read_aligned(files: tuple[str, str], languages: tuple[str, str]) -> tuple[Text, Text]:
    """Read two files whose lines are translations of each other.

    Args:
        files: paths of the two files.
        languages: their languages.

    Raises:
        InputError: for an empty file and for files of different lengths.
    """
    source, target = (read_text(path, language) for path, language in zip(files, languages, strict=True))
    check_aligned(source, target)
    return source, target


def check_aligned(source: Text, target: Text) -> None:
    """Check that two texts have as many lines.

    Raises:
        InputError: naming both files and their numbers of lines.
    """
    if len(source) != len(target):
        raise InputError(
            f"{source.file} has {len(source):,} lines and {target.file} {len(target):,}; expected aligned files"
        )
