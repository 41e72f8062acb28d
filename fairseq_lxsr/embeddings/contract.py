"""The encoder interface that all commands share."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.errors import InputError, SentenceError, check_text_list
from fairseq_lxsr.vectors import check_directions
from fairseq_lxsr.vectors.rows import FloatArray, IntArray


@dataclass(frozen=True)
class Text(Sequence[str]):
    """Sentences and their origin.

        embed(encoder, Text(["A dog.", "A cat."], language="en"))

    Word vectors are selected by language, and stored embeddings by file and row.

    Attributes:
        lines: N sentences.
        language: language code in the user's spelling.
        file: file that contains the sentences.
        rows: zero-based line indices of the sentences in that file [N]; None for the whole file.
        total: number of lines in the file; None if it is N.
    """

    lines: Sequence[str]
    language: str = ""
    file: str = ""
    rows: IntArray | None = None
    total: int | None = None

    def __post_init__(self):
        check_text_list("lines", self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index):
        return self.lines[index]

    def __iter__(self) -> Iterator[str]:
        # The inherited method calls `__getitem__` for each line, which takes five times as long.
        return iter(self.lines)

    def where(self, index: int) -> str:
        """Describe a sentence by its file, line number and text, for messages.

        Args:
            index: index of the sentence, from 0.

        Returns:
            The description, such as `corpus.en, line 3: 'A dog.'`.
        """
        row = index if self.rows is None else int(self.rows[index])
        source = ", ".join(filter(None, (self.file or self.language, f"line {row + 1:,}")))
        return f"{source}: the embedding of {self.lines[index]!r:.60}"


class Encoder(Protocol):
    """Anything that embeds sentences.

    Examples are a model folder, a model of another library, word vectors, and stored embeddings.
    """

    @property
    def fingerprint(self) -> str:
        """Identifies the model. Only encoders with equal embeddings have equal fingerprints."""

    @property
    def width(self) -> int:
        """Number of dimensions D of an embedding."""

    def embed(self, text: Text, counts: Counter[str] | None = None) -> NDArray[np.float32]:
        """Embed sentences. A sentence without known word pieces or words gets a zero vector.

        Args:
            text: N sentences.
            counts: counter to which the numbers of `empty` and `long` sentences are added.

        Returns:
            Embeddings, float32 [N, D].
        """


def embed(encoder: Encoder, text: Text, zeros: bool = False) -> FloatArray:
    """Embed sentences for an evaluation.

    Args:
        encoder: any encoder.
        text: N sentences.
        zeros: whether to allow zero embeddings, whose nearest neighbours are arbitrary.

    Returns:
        Embeddings, float32 [N, D].

    Raises:
        InputError: if the encoder rejects a sentence, an embedding contains NaN or infinity, or,
            without `zeros`, an embedding is zero (the sentence is empty or has no known words).
    """
    try:
        embeddings = np.asarray(encoder.embed(text), dtype=np.float32)
    except SentenceError as error:
        # `row` counts from the first sentence of `text`, not from the first line of the file.
        row, _, problem = error.args
        raise InputError(f"{text.where(row)}: {problem}") from None
    if embeddings.ndim != 2 or len(embeddings) != len(text):
        raise InputError(
            f"{text.file}: embeddings have shape {embeddings.shape} for {len(text)} sentences; "
            "expected one row per sentence"
        )
    check_directions(embeddings, text.where, zeros)
    return embeddings


def count_zeros(embeddings: FloatArray, counts: Counter[str] | None) -> FloatArray:
    """Add the number of zero rows to `counts` as `empty`, and return the embeddings [N, D].

    Args:
        embeddings: embeddings [N, D].
        counts: counts to add to, or None.

    Returns:
        The same array.
    """
    if counts is not None:
        counts.update(empty=int((~embeddings.any(axis=1)).sum()), long=0)
    return embeddings


def short_hash(*parts: str) -> str:
    """Hash texts to twelve hexadecimal digits, the format of a model fingerprint.

    Args:
        *parts: texts to hash, in this order.

    Returns:
        The digits.
    """
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
