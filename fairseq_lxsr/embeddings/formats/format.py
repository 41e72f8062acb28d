"""What every format of a file of embeddings is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"float32": "<f4", "float16": "<f2"}
WINDOW = 20_000  # rows that are converted together


@dataclass(frozen=True)
class Layout:
    """What a file of embeddings looks like.

    Args:
        format: one of `choices.EMBEDDING_FORMATS`.
        dtype: `float32` or `float16`.
        width: D.
    """

    format: str
    dtype: str
    width: int

    @property
    def row_size(self) -> int:
        """Bytes of an embedding."""
        return self.width * np.dtype(DTYPES[self.dtype]).itemsize

    def row_bytes(self, embeddings: np.ndarray) -> bytes:
        """Rows as they lie in a file."""
        return np.ascontiguousarray(embeddings, dtype=DTYPES[self.dtype]).tobytes()


class Format:
    """Writes and reads one format: a header of fixed length, then rows, so that an interrupted file goes on.

    Sub-classes set `suffix`, the end of the names that `lxsr eval` finds; `described` where a file is taken for
    embeddings only with the description of `lxsr embed` beside it, because other files have that suffix too.
    """

    suffix = ""
    described = False

    def check(self) -> None:
        """Raises: InputError where a library that writes it is missing."""

    def header(self, layout: Layout, rows: int) -> bytes:
        """What stands before the rows; always of the same length."""
        return b""

    def finish(self, rows: Path, layout: Layout) -> Path:
        """The finished file, from one with the header and all rows."""
        return rows

    def read(self, path: Path, about: dict[str, Any]) -> np.ndarray:
        """Embeddings [N, D] of floating-point numbers, memory-mapped where that is possible.

        Args:
            about: what the description beside the file says, or the user: `dimension` and `dtype`.
        Raises: InputError where the file is something else.
        """
        raise NotImplementedError
