"""A column of lists of fixed length in a Parquet file."""

from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.atomic import atomic_write
from fairseq_lxsr.embeddings.formats.format import DTYPES, WINDOW, Format, Layout, check_stored
from fairseq_lxsr.errors import InputError, first_line
from fairseq_lxsr.optional import require

NAME = "embeddings"  # of the column


class Parquet(Format):
    """Made of bare rows at the end, because an interrupted Parquet file cannot go on."""

    suffix = ".parquet"

    def check(self) -> None:
        require("pyarrow", "parquet", "--format parquet")

    def finish(self, rows: Path, layout: Layout) -> Path:
        import pyarrow
        from pyarrow import parquet

        path = rows.with_suffix(".whole")
        column = pyarrow.list_(pyarrow.from_numpy_dtype(np.dtype(DTYPES[layout.dtype])), layout.columns)
        stored = np.memmap(rows, dtype=DTYPES[layout.dtype], mode="r").reshape(-1, layout.columns)
        with (
            atomic_write(path, "wb") as stream,
            parquet.ParquetWriter(stream, pyarrow.schema([(NAME, column)]), use_dictionary=False) as writer,
        ):
            for start in range(0, len(stored), WINDOW):
                flat = pyarrow.array(stored[start : start + WINDOW].reshape(-1))
                writer.write_table(pyarrow.table({NAME: pyarrow.FixedSizeListArray.from_arrays(flat, type=column)}))
        return path

    def read(self, path: Path, about: dict[str, Any]) -> np.ndarray:
        self.check()
        import pyarrow
        from pyarrow import parquet

        try:
            stored = _rows(parquet.read_table(path, columns=[NAME])[NAME].combine_chunks())
        except (pyarrow.ArrowException, OSError, KeyError, ValueError) as error:
            raise InputError(
                f"{path}: has no column {NAME!r} of lists of one length ({first_line(error):.150})"
            ) from None
        return check_stored(path, stored, about)


def _rows(column: Any) -> np.ndarray:
    """Return a column of N lists of D numbers [N, D]; flattened, lists of other lengths would be other rows.

    Raises: ValueError for any other column.
    """
    from pyarrow import compute, types

    if not any(is_of(column.type) for is_of in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        raise ValueError(f"its type is {column.type}")
    lengths = compute.unique(compute.list_value_length(column)).to_pylist()  # None for a list that is null
    if len(lengths) != 1 or None in lengths or column.flatten().null_count:
        raise ValueError(f"lengths {lengths}, or null in a list")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)


FORMAT = Parquet()
