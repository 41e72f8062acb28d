"""The exact index of faiss (IndexFlatIP), read, written and searched without faiss: a header, then the vectors."""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.atomic import naming
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.retrieval.neighbours import CANDIDATE_ROWS, unit_rows

MAGIC = b"IxFI"
# magic, width, vectors, two numbers that faiss ignores, whether it is trained, metric, coordinates (faiss, index_write)
HEADER = struct.Struct("<4siqqqBiQ")
IGNORED, TRAINED, INNER_PRODUCT = 1 << 20, 1, 0


class FlatIndex:
    """Vectors that are all compared with a query; memory-mapped where they are read from a file.

    Args:
        rows: vectors [M, D], of length one or not.
    """

    def __init__(self, rows: NDArray[Any]):
        self.rows = rows
        self.ntotal, self.d = rows.shape  # the names of faiss

    def write(self, path: Path) -> None:
        """Write the index as faiss does; rows of length one, in blocks."""
        header = HEADER.pack(MAGIC, self.d, self.ntotal, IGNORED, IGNORED, TRAINED, INNER_PRODUCT, self.rows.size)
        with naming(path), open(path, "wb") as stream:
            stream.write(header)
            for start in range(0, self.ntotal, CANDIDATE_ROWS):
                block = unit_rows(self.rows, start, min(start + CANDIDATE_ROWS, self.ntotal), "embeddings")
                stream.write(block.tobytes())

    @classmethod
    def read(cls, path: Path) -> "FlatIndex":
        """Map an index into memory.

        Raises:
            InputError: where the header does not describe the file.
        """
        with open(path, "rb") as stream:
            header = stream.read(HEADER.size)
            size = os.fstat(stream.fileno()).st_size
        if len(header) < HEADER.size:
            raise InputError(f"{path}: not an index of faiss (cut off); build it again")
        _, width, count, _, _, _, metric, numbers = HEADER.unpack(header)
        described = min(width, count) > 0 and width * count == numbers and HEADER.size + 4 * numbers == size
        if metric != INNER_PRODUCT or not described:
            raise InputError(f"{path}: not an index of faiss ({count:,} vectors of width {width}); build it again")
        return cls(np.memmap(path, np.dtype("<f4"), "r", HEADER.size, (count, width)))


def is_flat(path: Path) -> bool:
    """Return whether a file begins as an exact index."""
    with open(path, "rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC
