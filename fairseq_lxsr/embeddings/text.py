"""One contract from text to vectors, which eval, mine, index, search and embed share."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.retrieval import check_directions
from fairseq_lxsr.retrieval.neighbours import FloatArray, IntArray


@dataclass(frozen=True)
class Text(Sequence[str]):
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

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index):
        return self.lines[index]

    def where(self, index: int) -> str:
        """Where a sentence is from and what it says, for messages."""
        row = index if self.rows is None else int(self.rows[index])
        source = ", ".join(filter(None, (self.file or self.language, f"line {row + 1:,}")))
        return f"{source}: the embedding of {self.lines[index]!r:.60}"


class Encoder(Protocol):
    """Anything that embeds: a model folder, another library's model, word vectors, embeddings made elsewhere."""

    @property
    def fingerprint(self) -> str:
        """What stands for the model in a signature: two encoders share it only when they give the same embeddings."""

    @property
    def width(self) -> int:
        """D, the width of an embedding, in units."""

    def embed(self, text: Text, counts: Counter[str] | None = None) -> NDArray[np.float32]:
        """Embed sentences; those without anything to embed give zeros.

        Args:
            counts: where given, the numbers of `empty` and of `long` sentences are added to it.

        Returns:
            float32 [N, D].
        """


def embed(encoder: Encoder, text: Text) -> FloatArray:
    """Embed sentences for measuring.

    Raises:
        InputError: where an embedding is not finite or all zero (an empty sentence, or no known word): its neighbours
            would be arbitrary, and so would be the score.
    """
    embeddings = np.asarray(encoder.embed(text), dtype=np.float32)
    if embeddings.ndim != 2 or len(embeddings) != len(text):
        raise InputError(f"embeddings of shape {embeddings.shape} for {len(text)} sentences of {text.file}")
    check_directions(embeddings, text.where)
    return embeddings


def count_zeros(embeddings: FloatArray, counts: Counter[str] | None) -> FloatArray:
    """The embeddings [N, D], after adding their zero rows to `counts` as `empty` sentences."""
    if counts is not None:
        counts.update(empty=int((~embeddings.any(axis=1)).sum()), long=0)
    return embeddings
