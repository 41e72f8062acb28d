"""What every format of a file of embeddings is."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError, first_line
from fairseq_lxsr.files.records import open_array
from fairseq_lxsr.files.write import atomic_write, create
from fairseq_lxsr.machine import require
from fairseq_lxsr.options import EMBEDDING_FORMATS

# eight signs to a byte in binary
DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "|i1", "binary": "|u1"}
FLOATS = (np.float32, np.float16, np.float64)
CONVERTED_ROWS = 20_000  # rows that are converted together


@dataclass(frozen=True)
class Layout:
    """What a file of embeddings looks like.

    Args:
        format: one of `options.EMBEDDING_FORMATS`.
        dtype: one of `options.EMBEDDING_DTYPES`.
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
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(embeddings, dtype=DTYPES[self.dtype])
        if self.dtype == "float16" and np.isinf(rows).any():
            raise InputError(
                "embeddings with numbers over 65,504; expected --output-dtype float32 for them"
            )
        return rows.tobytes()


def columns(dtype: str, width: int) -> int:
    """Return how many numbers of a type an embedding of a width is."""
    return -(-width // 8) if dtype == "binary" else width


def check_stored(path: Path, stored: np.ndarray, about: dict[str, Any]) -> np.ndarray:
    """Check that an array holds embeddings: floating-point numbers, or what the description beside
    it says.
    """
    dtype, width = about["dtype"], about["dimension"]
    coded = dtype in ("int8", "binary")
    fits = (
        stored.dtype == DTYPES[dtype] and stored.shape[1:] == (columns(dtype, width),)
        if coded
        else (
            stored.dtype.newbyteorder("=") in FLOATS
        )  # of other byte orders too: numpy converts what is taken
    )
    if stored.ndim != 2 or not fits or not len(stored) or not stored.shape[1]:
        expected = f"{dtype} of width {width} as its description says" if coded else "floats [N, D]"
        raise InputError(f"{path}: {stored.dtype} of shape {stored.shape}; expected {expected}")
    return stored


class Format:
    """Writes and reads one format: a header of fixed length, then rows, so that an interrupted file
    goes on.

    Sub-classes set `suffix`, the end of the names that `lxsr eval` finds; `described` where a file
    is taken for embeddings only with the description of `lxsr embed` beside it, because other files
    have that suffix too.
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
        """Embeddings [N, D], or their codes, as `check_stored` allows them, memory-mapped where
        that is possible.

        The description beside the file, or the user, says what they are `about`: `dimension` and
        `dtype`.
        """
        raise NotImplementedError


def find_format(name: str) -> Format:
    """The format of a name, one of `options.EMBEDDING_FORMATS`: that of its class, in small
    letters.
    """
    return {kind.__name__.lower(): kind for kind in Format.__subclasses__()}[name]()


def all_formats() -> list[Format]:
    """Every format there is."""
    return [find_format(name) for name in EMBEDDING_FORMATS]


def format_name(path: Path) -> str | None:
    """The name of the format that a file's name says; None where it says none."""
    return next(
        (name for name in EMBEDDING_FORMATS if find_format(name).suffix == path.suffix), None
    )


def format_of_file(path: Path) -> Format:
    """The format that a file's name says."""
    if name := format_name(path):
        return find_format(name)
    known = ", ".join(found.suffix for found in all_formats())
    raise InputError(
        f"{path}: not the name of a file of embeddings; expected one that ends in {known}"
    )


NPY_HEADER = 128  # as numpy itself writes it for a matrix


class Npy(Format):
    """A matrix, as numpy.save writes it."""

    suffix = ".npy"

    def header(self, layout: Layout, rows: int) -> bytes:
        text = f"{{'descr': '{DTYPES[layout.dtype]}', 'fortran_order': False, 'shape': ({rows}, {layout.columns}), }}"
        start = b"\x93NUMPY\x01\x00" + (NPY_HEADER - 10).to_bytes(2, "little")
        return start + text.ljust(NPY_HEADER - 11).encode() + b"\n"

    def read(self, path: Path, about: dict[str, Any]) -> np.ndarray:
        try:
            stored = open_array(path)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: not a numpy file of numbers ({error}); write it with numpy.save"
            ) from None
        return check_stored(path, stored, about)


class Raw(Format):
    """Width and type are not in the file: they are told, or stand in the description beside it."""

    suffix = ".raw"

    def read(self, path: Path, about: dict[str, Any]) -> np.ndarray:
        width, dtype = about["dimension"], about["dtype"]
        layout = Layout("raw", dtype, width)
        size = path.stat().st_size
        if not size or size % layout.row_size:
            raise InputError(
                f"{path}: {size:,} bytes, not rows of {width} {dtype}; name their width, --model FOLDER#dim=N, or "
                "embed the text again"
            )
        return np.memmap(path, dtype=DTYPES[dtype], mode="r").reshape(-1, layout.columns)


SAFETENSORS_HEADER = 128
NAME = "embeddings"  # of the tensor or column
KINDS = {"float32": "F32", "float16": "F16", "int8": "I8", "binary": "U8"}


class Safetensors(Format):
    """The tensor `embeddings` [N, D]."""

    suffix = ".safetensors"
    described = True  # the weights of a model have this suffix too

    def header(self, layout: Layout, rows: int) -> bytes:
        shape, offsets = [rows, layout.columns], [0, rows * layout.row_size]
        tensor = {"dtype": KINDS[layout.dtype], "shape": shape, "data_offsets": offsets}
        text = json.dumps({NAME: tensor}, separators=(",", ":"))
        return (SAFETENSORS_HEADER - 8).to_bytes(8, "little") + text.ljust(
            SAFETENSORS_HEADER - 8
        ).encode()

    def read(self, path: Path, about: dict[str, Any]) -> np.ndarray:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "numpy") as stream:
                stored = stream.get_tensor(NAME)
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{path}: has no tensor {NAME!r} ({error}); write it with `lxsr embed`"
            ) from None
        return check_stored(path, stored, about)


class Parquet(Format):
    """Made of bare rows at the end, because an interrupted Parquet file cannot go on."""

    suffix = ".parquet"

    def check(self) -> None:
        require("pyarrow", "parquet", "--format parquet")

    def finish(self, rows: Path, layout: Layout) -> Path:
        import pyarrow
        from pyarrow import parquet

        path = rows.with_suffix(".whole")
        path.unlink(missing_ok=True)
        os.close(create(path, rows))  # with the access of the rows, which `atomic_write` keeps
        column = pyarrow.list_(
            pyarrow.from_numpy_dtype(np.dtype(DTYPES[layout.dtype])), layout.columns
        )
        stored = np.memmap(rows, dtype=DTYPES[layout.dtype], mode="r").reshape(-1, layout.columns)
        with (
            atomic_write(path, "wb") as stream,
            parquet.ParquetWriter(
                stream, pyarrow.schema([(NAME, column)]), use_dictionary=False
            ) as writer,
        ):
            for start in range(0, len(stored), CONVERTED_ROWS):
                flat = pyarrow.array(stored[start : start + CONVERTED_ROWS].reshape(-1))
                writer.write_table(
                    pyarrow.table({NAME: pyarrow.FixedSizeListArray.from_arrays(flat, type=column)})
                )
        return path

    def read(self, path: Path, about: dict[str, Any]) -> np.ndarray:
        self.check()
        import pyarrow
        from pyarrow import parquet

        try:
            stored = _rows(parquet.read_table(path, columns=[NAME])[NAME].combine_chunks())
        except (pyarrow.ArrowException, OSError, KeyError, ValueError) as error:
            raise InputError(
                f"{path}: no column {NAME!r} of lists of one length ({first_line(error):.150})"
            ) from None
        return check_stored(path, stored, about)


def _rows(column: Any) -> np.ndarray:
    """Return a column of N lists of D numbers [N, D]; any other raises ValueError, as flattened it
    has other rows.
    """
    from pyarrow import compute, types

    if not any(
        is_of(column.type)
        for is_of in (types.is_list, types.is_large_list, types.is_fixed_size_list)
    ):
        raise ValueError(f"its type is {column.type}")
    # None for a list that is null
    lengths = compute.unique(compute.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or None in lengths or column.flatten().null_count:
        raise ValueError(f"lengths {lengths}, or null in a list")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
