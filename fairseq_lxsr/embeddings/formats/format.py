"""What every format of a file of embeddings is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError

DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "|i1", "binary": "|u1"}  # eight signs to a byte in binary
FLOATS = (np.float32, np.float16, np.float64)
WINDOW = 20_000  # rows that are converted together


@dataclass(frozen=True)
class Layout:
    """What a file of embeddings looks like.

    Args:
        format: one of `choices.EMBEDDING_FORMATS`.
        dtype: one of `choices.EMBEDDING_DTYPES`.
        width: D.
    """

    format: str
    dtype: str
    width: int

    @property
    def columns(self) -> int:
        """Numbers of a row."""
        return columns(self.dtype, self.width)

    @property
    def row_size(self) -> int:
        """Bytes of an embedding."""
        return self.columns * np.dtype(DTYPES[self.dtype]).itemsize

    def row_bytes(self, embeddings: np.ndarray) -> bytes:
        """Rows as they lie in a file; of `int8`, the embeddings are codes already."""
        if self.dtype == "binary":
            return np.packbits(embeddings > 0, axis=1).tobytes()
        return np.ascontiguousarray(embeddings, dtype=DTYPES[self.dtype]).tobytes()


def columns(dtype: str, width: int) -> int:
    """Return how many numbers of a type an embedding of a width is."""
    return -(-width // 8) if dtype == "binary" else width


def check_stored(path: Path, stored: np.ndarray, about: dict[str, Any]) -> np.ndarray:
    """Check that an array holds embeddings: floating-point numbers, or what the description beside it says.

    Raises:
        InputError: for any other array.
    """
    dtype, width = about["dtype"], about["dimension"]
    coded = dtype in ("int8", "binary")
    fits = (
        stored.dtype == DTYPES[dtype] and stored.shape[1:] == (columns(dtype, width),)
        if coded
        else (stored.dtype.newbyteorder("=") in FLOATS)  # of other byte orders too: numpy converts what is taken
    )
    if stored.ndim != 2 or not fits or not len(stored) or not stored.shape[1]:
        expected = f"{dtype} of width {width} as its description says" if coded else "floats [N, D]"
        raise InputError(f"{path}: {stored.dtype} of shape {stored.shape}; expected {expected}")
    return stored


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
        """Embeddings [N, D], or their codes, as `check_stored` allows them, memory-mapped where that is possible.

        Args:
            about: what the description beside the file says, or the user: `dimension` and `dtype`.
        Raises: InputError where the file is something else.
        """
        raise NotImplementedError
