"""Exact nearest neighbours by cosine."""

import faiss
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


def normalise_rows(embeddings: FloatArray) -> FloatArray:
    """Rows of length one, float32 [N, D]; a zero row stays zero.

    Raises: ValueError for NaN or infinity, with the row.
    """
    rows = np.ascontiguousarray(embeddings, dtype=np.float32)
    if rows.ndim != 2:
        raise ValueError(f"embeddings have shape {rows.shape}; expected [N, D]")
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise ValueError(f"row {int(bad.argmax())} of the embeddings has NaN or infinity; expected finite numbers")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(norms > 0, norms, 1)).astype(np.float32, copy=False)


def nearest_neighbours(queries: FloatArray, candidates: FloatArray, k: int) -> tuple[FloatArray, NDArray[np.int64]]:
    """The k candidates of largest cosine for every query, exact, by faiss.

    Args:
        queries: [N, D]; candidates: [M, D], of any length.
        k: at most M.
    Returns: cosines float32 [N, k] in falling order, and indices into the candidates [N, k].
    Raises: ValueError for embeddings of different width, fewer candidates than k, NaN.
    """
    queries, candidates = normalise_rows(queries), normalise_rows(candidates)
    if queries.shape[1] != candidates.shape[1]:
        raise ValueError(f"queries are {queries.shape[1]} wide and candidates {candidates.shape[1]}; expected the same")
    if not 1 <= k <= len(candidates):
        raise ValueError(f"k is {k}; expected 1 to {len(candidates)}, the number of candidates")
    index = faiss.IndexFlatIP(candidates.shape[1])
    index.add(candidates)
    return index.search(queries, k)
