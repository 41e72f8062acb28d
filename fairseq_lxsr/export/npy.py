"""numpy's own file format."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.files import atomic_write


def write_npy(path: str | Path, embeddings: NDArray[np.float32]) -> None:
    """Write float32 [N, D]; the file appears under its name only when it is complete."""
    rows = np.ascontiguousarray(embeddings, dtype=np.float32)
    with atomic_write(path, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(rows))
        stream.write(rows.data)  # write_array would not say that the disk is full
