"""File formats of embeddings."""

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

# NumPy type of each stored dtype. With binary, a byte contains eight signs.
DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "|i1", "binary": "|u1"}
FLOATS = (np.float32, np.float16, np.float64)
# Number of rows to convert at a time, to limit memory.
CONVERTED_ROWS = 20_000


@dataclass(frozen=True)
class Layout:
    """File layout of embeddings.

    Attributes:
        format: one of `options.EMBEDDING_FORMATS`.
        dtype: one of `options.EMBEDDING_DTYPES`.
        width: number of dimensions D.
    """

    format: str
    dtype: str
    width: int

    @property
    def columns(self) -> int:
        """Number of stored values per embedding."""
        return columns(self.dtype, self.width)

    @property
    def row_size(self) -> int:
        """Number of bytes per embedding."""
        return self.columns * np.dtype(DTYPES[self.dtype]).itemsize

    def row_bytes(self, embeddings: np.ndarray) -> bytes:
        """Convert embeddings [n, D] to bytes. An `int8` layout expects codes instead."""
        if self.dtype == "binary":
            return np.packbits(embeddings > 0, axis=1).tobytes()
        # The check below rejects numbers that overflow to infinity.
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(embeddings, dtype=DTYPES[self.dtype])
        if self.dtype == "float16" and np.isinf(rows).any():
            raise InputError(
                "embeddings contain numbers above 65,504, the limit of float16; use "
                "--output-dtype float32"
            )
        return rows.tobytes()


def columns(dtype: str, width: int) -> int:
    """Return the number of stored values per embedding of width `width`."""
    if dtype == "binary":
        # A byte stores eight dimensions; round up.
        return -(-width // 8)
    return width


def check_stored(path: Path, stored: np.ndarray, description: dict[str, Any]) -> np.ndarray:
    """Check an array that was read from an embedding file, and return it.

    Args:
        path: path of the file, for messages.
        stored: the array.
        description: expected `dimension` and `dtype` of the embeddings. Floating-point numbers may
            have any width and precision.

    Raises:
        InputError: if the array does not match the description.
    """
    dtype = description["dtype"]
    width = description["dimension"]
    if dtype in ("int8", "binary"):
        expected = f"{dtype} of width {width}, as its description says"
        is_expected = stored.dtype == DTYPES[dtype] and stored.shape[1:] == (columns(dtype, width),)
    else:
        expected = "floats [N, D]"
        # Any byte order is accepted, because NumPy converts rows when they are read.
        is_expected = stored.dtype.newbyteorder("=") in FLOATS
    is_matrix = stored.ndim == 2 and stored.size > 0
    if not is_matrix or not is_expected:
        raise InputError(
            f"{path} contains {stored.dtype} of shape {stored.shape}; expected {expected}"
        )
    return stored


class Format:
    """Reads and writes one format: a header of fixed length, followed by rows.

    Because of the fixed length, an interrupted file can be continued.

    Attributes:
        suffix: file name suffix, used by `lxsr eval` to find embeddings.
        described: whether a file is read only if it has a description from `lxsr embed`, because
            other types of files have the same suffix.
    """

    suffix = ""
    described = False

    def check(self) -> None:
        """Raise `InputError` if the library that the format needs is not installed."""

    def header(self, layout: Layout, rows: int) -> bytes:
        """Return the header. Its length must not depend on `rows`."""
        return b""

    def finish(self, rows: Path, layout: Layout) -> Path:
        """Convert a file with the header and all rows to the final file, and return its path."""
        return rows

    def read(self, path: Path, description: dict[str, Any]) -> np.ndarray:
        """Read embeddings [N, D] or their codes, memory-mapped if possible.

        Args:
            path: path of the file.
            description: `dimension` and `dtype`, from the description of the file or the user.

        Raises:
            InputError: if the file has other content; see `check_stored`.
        """
        raise NotImplementedError


def find_format(name: str) -> Format:
    """Return the format with a given name, one of `options.EMBEDDING_FORMATS`."""
    formats = {kind.__name__.lower(): kind for kind in Format.__subclasses__()}
    return formats[name]()


def all_formats() -> list[Format]:
    """Return an instance of each format."""
    return [find_format(name) for name in EMBEDDING_FORMATS]


def format_name(path: Path) -> str | None:
    """Return the format name that matches the file suffix, or None if there is no match."""
    for name in EMBEDDING_FORMATS:
        if find_format(name).suffix == path.suffix:
            return name
    return None


def format_of_file(path: Path) -> Format:
    """Return the format that matches the file suffix.

    Raises:
        InputError: if no format has this suffix.
    """
    name = format_name(path)
    if name is None:
        suffixes = ", ".join(file_format.suffix for file_format in all_formats())
        raise InputError(f"{path}: unknown suffix for an embedding file; expected {suffixes}")
    return find_format(name)


# Length of the header that NumPy writes for a matrix.
NPY_HEADER = 128


class Npy(Format):
    """A matrix in the .npy format of numpy.save."""

    suffix = ".npy"

    def header(self, layout: Layout, rows: int) -> bytes:
        text = (
            f"{{'descr': '{DTYPES[layout.dtype]}', 'fortran_order': False, "
            f"'shape': ({rows}, {layout.columns}), }}"
        )
        start = b"\x93NUMPY\x01\x00" + (NPY_HEADER - 10).to_bytes(2, "little")
        return start + text.ljust(NPY_HEADER - 11).encode() + b"\n"

    def read(self, path: Path, description: dict[str, Any]) -> np.ndarray:
        try:
            stored = open_array(path)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: not a NumPy file of numbers ({error}); write it with numpy.save"
            ) from None
        return check_stored(path, stored, description)


class Raw(Format):
    """Rows without a header. Width and type come from the user or the description file."""

    suffix = ".raw"

    def read(self, path: Path, description: dict[str, Any]) -> np.ndarray:
        width = description["dimension"]
        dtype = description["dtype"]
        layout = Layout("raw", dtype, width)
        size = path.stat().st_size
        if not size or size % layout.row_size:
            raise InputError(
                f"{path}: {size:,} bytes are not a multiple of a row of {width} {dtype}; "
                "set the width with --model FOLDER#dim=N, or embed the text again"
            )
        return np.memmap(path, dtype=DTYPES[dtype], mode="r").reshape(-1, layout.columns)


SAFETENSORS_HEADER = 128
# Name of the tensor or column.
NAME = "embeddings"
SAFETENSORS_DTYPES = {"float32": "F32", "float16": "F16", "int8": "I8", "binary": "U8"}


class Safetensors(Format):
    """The tensor `embeddings` [N, D] of a safetensors file."""

    suffix = ".safetensors"
    # Model weights have the same suffix.
    described = True

    def header(self, layout: Layout, rows: int) -> bytes:
        tensor = {
            "dtype": SAFETENSORS_DTYPES[layout.dtype],
            "shape": [rows, layout.columns],
            "data_offsets": [0, rows * layout.row_size],
        }
        length = SAFETENSORS_HEADER - 8
        text = json.dumps({NAME: tensor}, separators=(",", ":"))
        return length.to_bytes(8, "little") + text.ljust(length).encode()

    def read(self, path: Path, description: dict[str, Any]) -> np.ndarray:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "numpy") as stream:
                stored = stream.get_tensor(NAME)
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{path}: cannot read tensor {NAME!r} ({error}); write it with `lxsr embed`"
            ) from None
        return check_stored(path, stored, description)


class Parquet(Format):
    """The column `embeddings` of a Parquet file, with one list of numbers per row.

    Rows are written to a temporary file, which is converted to Parquet at the end, because an
    interrupted Parquet file cannot be continued.
    """

    suffix = ".parquet"

    def check(self) -> None:
        require("pyarrow", "parquet", "--format parquet")

    def finish(self, rows: Path, layout: Layout) -> Path:
        import pyarrow
        from pyarrow import parquet

        path = rows.with_suffix(".whole")
        path.unlink(missing_ok=True)
        # The file gets the mode of the rows, which `atomic_write` preserves.
        os.close(create(path, rows))
        number = pyarrow.from_numpy_dtype(np.dtype(DTYPES[layout.dtype]))
        column = pyarrow.list_(number, layout.columns)
        schema = pyarrow.schema([(NAME, column)])
        stored = np.memmap(rows, dtype=DTYPES[layout.dtype], mode="r").reshape(-1, layout.columns)
        with (
            atomic_write(path, "wb") as stream,
            parquet.ParquetWriter(stream, schema, use_dictionary=False) as writer,
        ):
            for start in range(0, len(stored), CONVERTED_ROWS):
                numbers = pyarrow.array(stored[start : start + CONVERTED_ROWS].reshape(-1))
                lists = pyarrow.FixedSizeListArray.from_arrays(numbers, type=column)
                writer.write_table(pyarrow.table({NAME: lists}))
        return path

    def read(self, path: Path, description: dict[str, Any]) -> np.ndarray:
        self.check()
        import pyarrow
        from pyarrow import parquet

        try:
            stored = _rows(parquet.read_table(path, columns=[NAME])[NAME].combine_chunks())
        except (pyarrow.ArrowException, OSError, KeyError, ValueError) as error:
            raise InputError(
                f"{path}: no column {NAME!r} of lists of equal length ({first_line(error):.150})"
            ) from None
        return check_stored(path, stored, description)


def _rows(column: Any) -> np.ndarray:
    """Convert a Parquet column of N lists of D numbers to an array [N, D].

    Any other column raises ValueError, because its flattened numbers would be in the wrong rows.
    """
    from pyarrow import compute, types

    list_types = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if not any(is_list_type(column.type) for is_list_type in list_types):
        raise ValueError(f"its type is {column.type}")
    # The length of a null list is None.
    lengths = compute.unique(compute.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or None in lengths or column.flatten().null_count:
        raise ValueError(f"its lists have lengths {lengths}, or contain null")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
