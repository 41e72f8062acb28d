"""A column of lists of fixed length in a Parquet file."""

from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.atomic import atomic_write
from fairseq_lxsr.embeddings.formats.format import DTYPES, WINDOW, Format, Layout, check_stored
from fairseq_lxsr.errors import InputError
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
            column = parquet.read_table(path, columns=[NAME])[NAME].combine_chunks()
            stored = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
        except (pyarrow.ArrowException, OSError, KeyError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{path}: has no column {NAME!r} of lists of one length ({reason:.150})") from None
        return check_stored(path, stored, about)


FORMAT = Parquet()
