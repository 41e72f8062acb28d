"""Initial embeddings by latent semantic indexing: pieces in the same pairs get similar vectors.

The method is cross-language latent semantic indexing (Dumais, Letsche, Littman and Landauer 1997):
a sentence and its translation form one document, and the piece-by-document matrix is reduced to its
largest singular values. This takes seconds, and rare pieces start near their translations, which a
few updates would not achieve.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fairseq_lxsr.training.pairs import PairCorpus
from fairseq_lxsr.vectors.rows import IntArray

# Maximum number of sampled pairs; at width 512, each pair takes several kB of memory.
MAX_PAIRS = 500_000
# Number of subspace iterations; several are needed, because the singular values decay slowly.
ITERATIONS = 2
# Number of additional subspace dimensions (oversampling).
OVERSAMPLING = 50


def lsi_embeddings(
    corpora: Sequence[PairCorpus], vocab_size: int, dim: int, seed: int = 1
) -> Tensor:
    """Compute initial embeddings for all pieces.

    Each column of the matrix contains the inverse document frequencies of the pieces in one
    document, normalized to unit length. Each row, which belongs to one piece, is then divided by
    the square root of its norm, so that frequent pieces do not dominate all dimensions. Except for
    its norm, the sum of the embeddings of a sentence's distinct pieces is the projection of the
    sentence onto the left singular vectors.

    Args:
        corpora: training text.
        vocab_size: number of pieces V.
        dim: embedding width D.
        seed: seed of the sample and the initial subspace.

    Returns:
        Embeddings [V, D] in float32 with variance 1 / D; zero for pieces that occur in no document
        or in every document.
    """
    piece, document = occurrences(corpora, MAX_PAIRS, seed)
    frequency = np.bincount(piece, minlength=vocab_size)
    idf = np.log((document.max() + 1) / np.maximum(frequency, 1))
    length = np.sqrt(np.bincount(document, idf[piece] ** 2))
    weights = idf[piece] / np.maximum(length, 1e-6)[document]
    root = np.sqrt(np.bincount(piece, weights**2, minlength=vocab_size)) ** 0.5
    root = np.maximum(root, 1e-6)
    shape = vocab_size, len(length)
    places = torch.from_numpy(np.stack((piece, document)))
    values = torch.from_numpy(weights / root[piece]).float()
    matrix = torch.sparse_coo_tensor(places, values, shape, check_invariants=False)
    basis = left_singular_vectors(matrix, dim, seed)
    table = basis * torch.from_numpy(np.where(frequency > 0, idf / root, 0)).float()[:, None]
    return table * (dim**-0.5 / table[torch.from_numpy(frequency > 0)].std().clamp_min(1e-6))


def occurrences(
    corpora: Sequence[PairCorpus], max_pairs: int, seed: int
) -> tuple[IntArray, IntArray]:
    """Find which pieces occur in which pair, for a random sample of at most `max_pairs` pairs.

    Returns:
        Piece ids [n] and document indices [n] of all occurrences, without duplicates.
    """
    counts = [len(corpus.source) for corpus in corpora]
    total = sum(counts)
    rng = np.random.default_rng(seed)
    sample = np.sort(rng.choice(total, min(total, max_pairs), replace=False, shuffle=False))
    parts = np.split(sample, np.searchsorted(sample, np.cumsum(counts)[:-1]))
    starts = np.cumsum([0, *counts[:-1]])
    documents = []
    for corpus, part, start in zip(corpora, parts, starts, strict=True):
        for row in (part - start).tolist():
            ids = np.concatenate((corpus.source[row].numpy(), corpus.target[row].numpy()))
            documents.append(np.unique(ids))
    sizes = [len(ids) for ids in documents]
    return np.concatenate(documents).astype(np.int64), np.repeat(np.arange(len(documents)), sizes)


def left_singular_vectors(matrix: Tensor, count: int, seed: int) -> Tensor:
    """Compute the first left singular vectors [V, count] of a sparse matrix [V, N].

    If the matrix has fewer singular vectors, the remaining columns are zero.

    Source: Halko, Martinsson and Tropp 2011, algorithms 4.4 and 5.1 (randomized subspace
    iteration).
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        rows = matrix.to_sparse_csr()
        columns = matrix.t().to_sparse_csr()
    rank = min(count + OVERSAMPLING, *matrix.shape)
    basis = rows @ torch.randn(matrix.shape[1], rank, generator=torch.Generator().manual_seed(seed))
    for _ in range(ITERATIONS):
        basis = rows @ (columns @ torch.linalg.qr(basis).Q)
    basis = torch.linalg.qr(basis).Q
    # Projection of the columns onto the basis [N, rank].
    small = columns @ basis
    # eigh returns the eigenvalues in ascending order.
    _, eigenvectors = torch.linalg.eigh(small.T @ small)
    singular_vectors = basis @ eigenvectors.flip(1)[:, :count]
    return torch.nn.functional.pad(singular_vectors, (0, count - singular_vectors.shape[1]))
