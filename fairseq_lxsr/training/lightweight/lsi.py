"""Initial embeddings from the text alone: pieces that occur in the same pairs get similar rows.

The method is cross-language latent semantic indexing (Dumais, Letsche, Littman and Landauer 1997):
a sentence and its translation are one document, and the matrix of pieces by documents is reduced to
its largest singular values. It takes seconds, and rare pieces start near their translations, which
a few updates would not achieve.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fairseq_lxsr.training.pairs import PairCorpus
from fairseq_lxsr.vectors.rows import IntArray

MAX_PAIRS = 500_000  # a sample of this size is drawn; each pair takes a few times 2 kB at width 512
ITERATIONS = 2  # subspace iterations: the singular values decrease slowly
OVERSAMPLING = 50


def lsi_embeddings(
    corpora: Sequence[PairCorpus], vocab_size: int, dim: int, seed: int = 1
) -> Tensor:
    """Compute initial embeddings of all pieces.

    A document's weights are the inverse document frequencies of its pieces, normalized to length
    one; a row is then divided by the square root of its norm, so that frequent pieces do not
    dominate all directions. The sum of the embeddings of the distinct pieces of a sentence is, up
    to its length, the projection of the sentence onto the left singular vectors. The table [V, D]
    is float32 of variance 1 / D, zero for pieces that do not occur or that occur in every document;
    `seed` draws the sample and the initial subspace.
    """
    piece, document = occurrences(corpora, MAX_PAIRS, seed)
    frequency = np.bincount(piece, minlength=vocab_size)
    idf = np.log((document.max() + 1) / np.maximum(frequency, 1))
    length = np.sqrt(np.bincount(document, idf[piece] ** 2))
    weights = idf[piece] / np.maximum(length, 1e-6)[document]
    root = np.sqrt(np.bincount(piece, weights**2, minlength=vocab_size)) ** 0.5
    root = np.maximum(root, 1e-6)
    shape = vocab_size, len(length)
    places, values = (
        torch.from_numpy(np.stack((piece, document))),
        torch.from_numpy(weights / root[piece]).float(),
    )
    matrix = torch.sparse_coo_tensor(places, values, shape, check_invariants=False)
    basis = left_singular_vectors(matrix, dim, seed)
    table = basis * torch.from_numpy(np.where(frequency > 0, idf / root, 0)).float()[:, None]
    return table * (dim**-0.5 / table[torch.from_numpy(frequency > 0)].std().clamp_min(1e-6))


def occurrences(
    corpora: Sequence[PairCorpus], max_pairs: int, seed: int
) -> tuple[IntArray, IntArray]:
    """List which pieces [n] occur in which documents [n], without duplicates, for a sample of at
    most `max_pairs`.
    """
    counts = [len(corpus.source) for corpus in corpora]
    total = sum(counts)
    chosen = np.sort(
        np.random.default_rng(seed).choice(
            total, min(total, max_pairs), replace=False, shuffle=False
        )
    )
    parts = np.split(chosen, np.searchsorted(chosen, np.cumsum(counts)[:-1]))
    starts = np.cumsum([0, *counts[:-1]])
    found = [
        np.unique(
            np.concatenate((corpus.source[int(row)].numpy(), corpus.target[int(row)].numpy()))
        )
        for corpus, part, start in zip(corpora, parts, starts, strict=True)
        for row in part - start
    ]
    return np.concatenate(found).astype(np.int64), np.repeat(
        np.arange(len(found)), [len(ids) for ids in found]
    )


def left_singular_vectors(matrix: Tensor, count: int, seed: int) -> Tensor:
    """Compute the first left singular vectors [V, count] of a sparse matrix [V, N], zero columns
    where it has fewer.

    Source: Halko, Martinsson and Tropp 2011, algorithms 4.4 and 5.1 (randomized subspace
    iteration).
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        rows, columns = matrix.to_sparse_csr(), matrix.t().to_sparse_csr()
    rank = min(count + OVERSAMPLING, *matrix.shape)
    basis = rows @ torch.randn(matrix.shape[1], rank, generator=torch.Generator().manual_seed(seed))
    for _ in range(ITERATIONS):
        basis = rows @ (columns @ torch.linalg.qr(basis).Q)
    basis = torch.linalg.qr(basis).Q
    small = columns @ basis  # [N, rank]
    _, vectors = torch.linalg.eigh(small.T @ small)  # ascending
    found = basis @ vectors.flip(1)[:, :count]
    return torch.nn.functional.pad(found, (0, count - found.shape[1]))
