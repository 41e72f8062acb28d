"""Sentences to be measured on, and the vectors that an encoder gives them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import read_lines
from fairseq_lxsr.retrieval import first_unusable
from fairseq_lxsr.retrieval.neighbours import FloatArray, IntArray

SUFFIXES = ("", ".gz", ".txt", ".txt.gz", ".tsv", ".tsv.gz")


@dataclass(frozen=True)
class Text:
    """Sentences of one language and where they are from: word vectors go by language, stored vectors by file and row.

    Args:
        lines: N sentences.
        language: as the user writes it.
        file: the file they are from.
        rows: their line numbers in that file, from 0 [N]; None where they are all of it.
        total: lines of the file; None where they are the N lines.
    """

    lines: Sequence[str]
    language: str = ""
    file: str = ""
    rows: IntArray | None = None
    total: int | None = None

    def __len__(self) -> int:
        return len(self.lines)


class Encoder(Protocol):
    """Anything that embeds."""

    @property
    def fingerprint(self) -> str:
        """What stands for the model in a signature."""

    def embed(self, text: Text) -> NDArray[np.float32]:
        """Embeddings [N, D]."""


def embed(encoder: Encoder, text: Text) -> FloatArray:
    """Embeddings fit for measuring.

    Raises: InputError where one is not finite or all zero (an empty sentence, or no known word): its neighbours would
        be arbitrary, and so would be the score.
    """
    embeddings = np.asarray(encoder.embed(text), dtype=np.float32)
    if embeddings.ndim != 2 or len(embeddings) != len(text):
        raise InputError(f"embeddings of shape {embeddings.shape} for {len(text)} sentences of {text.file}")
    unusable = first_unusable(embeddings)
    if unusable:
        index, why = unusable
        row = index if text.rows is None else int(text.rows[index])
        raise InputError(
            f"{text.file or text.language}, line {row + 1}: the embedding of {text.lines[index]!r:.60} {why}; "
            "every sentence needs one: remove the line or mend the encoder"
        )
    return embeddings


def check_pair(source: FloatArray, target: FloatArray) -> None:
    """Raises: InputError where the two sides cannot be of one model, or a row has no direction."""
    for side, embeddings in (("source", source), ("target", target)):
        unusable = first_unusable(embeddings)
        if unusable:
            raise InputError(f"row {unusable[0]} of the {side} embeddings {unusable[1]}; expected one with a direction")
    if source.shape[1] != target.shape[1]:
        raise InputError(
            f"embeddings are {source.shape[1]} and {target.shape[1]} wide; expected the same model on both sides"
        )


def find_file(template: str, language: str = "", pair: str = "") -> Path:
    """The file that a template names: {lang} and {pair} filled in, an ending such as .txt.gz added where needed.

    Raises: InputError naming what was looked for.
    """
    name = template if "{lang}" in template or not language else f"{template}.{{lang}}"
    base = name.replace("{lang}", language).replace("{pair}", pair)
    for suffix in SUFFIXES:
        if Path(base + suffix).is_file():
            return Path(base + suffix)
    raise InputError(f"{base}: no such file, nor with {', '.join(SUFFIXES[1:])}; check --data and the languages")


def read_text(path: str | Path, language: str = "") -> Text:
    """All lines of a file.

    Raises: InputError where it is empty.
    """
    lines = list(read_lines(path))
    if not lines:
        raise InputError(f"{path}: empty file; expected one sentence a line")
    return Text(lines, language, str(path))
