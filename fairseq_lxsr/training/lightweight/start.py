"""Initializes a network from an existing model, and computes embeddings for new pieces."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.numpy_network import ORDER
from fairseq_lxsr.encoder.starting_model import count_old_symbols
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import SentenceNetwork
from fairseq_lxsr.text.tokenizer import EOS, SPECIAL, UNK
from fairseq_lxsr.training.pairs import UNLIMITED, PairCorpus, read_rows
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

# Maximum number of sentence pairs per language pair in the regression.
MAX_PAIRS = 100_000
# Ridge penalty: weight of the squared norm of the new embeddings.
RIDGE = 1.0
# Number of conjugate gradient iterations.
CG_STEPS = 20


def start_from(
    encoder: SentenceEncoder,
    network: SentenceNetwork,
    symbols: Sequence[str],
    corpora: Sequence[PairCorpus],
) -> None:
    """Initialize a network with the weights of a model without layers.

    Args:
        encoder: the existing model (see `open_starting_model`).
        network: encoder whose sentence embedding is a weighted sum of piece embeddings, to which
            layers contribute through gates.
        symbols: dictionary of the training text without <mask>: the model's dictionary, possibly
            followed by new pieces.
        corpora: training text, from which the embeddings of new pieces are computed.

    Raises:
        InputError: if the network's sizes do not match the model's.
    """
    _check_sizes(encoder, network)
    old = count_old_symbols(encoder, symbols)
    table = network.embed_tokens.weight
    rows = torch.from_numpy(np.array(encoder.table, np.float32))
    with torch.no_grad():
        table[:old] = rows[:old]
        # The model has a separate embedding for <mask> only if it was trained with <mask>.
        mask_row = rows[SPECIAL.index(UNK)]
        if len(rows) > old:
            mask_row = rows[old:]
        table[len(symbols) :] = mask_row
        table[old : len(symbols)] = new_rows(rows[:old], len(symbols), corpora)
        if encoder.size.order_coefficients:
            weights = dict(network.named_parameters())
            weights[ORDER].copy_(torch.from_numpy(encoder.weights[ORDER]))


def _check_sizes(encoder: SentenceEncoder, network: SentenceNetwork) -> None:
    sizes = {
        "embed_dim": encoder.size.embed_dim,
        "order_coefficients": encoder.size.order_coefficients,
        "sums_rows": True,
    }
    for name, expected in sizes.items():
        value = getattr(network.config, name, None)
        if value != expected:
            raise InputError(
                f"--from-model {encoder.folder} requires {name} {expected}, not {value}; "
                "train with `lxsr train --from`, which sets the matching options"
            )


def new_rows(table: Tensor, vocab_size: int, corpora: Sequence[PairCorpus]) -> Tensor:
    """Compute embeddings of new pieces that bring sentences close to their translations.

    Minimizes sum_i T_i |mean_t w_it - x_i|^2 + ridge |W|^2, where x_i is the mean embedding of the
    translation, T_i is the sentence length, and the embeddings of old pieces are fixed. Word order,
    which contributes little, is ignored.

    Args:
        table: old embeddings [V, D].
        vocab_size: number of old and new pieces, V + N.
        corpora: training text of the language pairs.

    Returns:
        New embeddings [N, D]. Pieces that do not occur in the text get the embedding of the unknown
        symbol.
    """
    old = len(table)
    table_of_new = table[SPECIAL.index(UNK)].repeat(vocab_size - old, 1)
    old_texts = []
    new_texts = []
    for corpus in corpora:
        # The side with more new pieces is the new language.
        old_text, new_text = sorted(_texts(corpus), key=lambda text: (text.ids >= old).sum())
        if (new_text.ids >= old).any():
            old_texts.append(old_text)
            new_texts.append(new_text)
    if not new_texts:
        return table_of_new
    translations = FlatText.joined(old_texts)
    new = FlatText.joined(new_texts)
    root = np.sqrt(new.lengths)
    is_old = translations.ids < old
    targets = translations.matrix(is_old, root / translations.lengths, old) @ table
    targets -= new.matrix(new.ids < old, 1 / root, old) @ table
    is_new = new.ids >= old
    shifted = FlatText(new.ids - old, new.lengths)
    rows = ridge(shifted.matrix(is_new, 1 / root, len(table_of_new)), targets)
    occurring = torch.from_numpy(np.unique(shifted.ids[is_new]))
    table_of_new[occurring] = rows[occurring]
    return table_of_new


@dataclass(frozen=True)
class FlatText:
    """Concatenated sentences.

    Attributes:
        ids: ids of all sentences [n].
        lengths: length of each sentence [N], at least 1.
    """

    ids: IntArray
    lengths: IntArray

    @classmethod
    def joined(cls, texts: Sequence["FlatText"]) -> "FlatText":
        """Concatenate several texts."""
        return cls(
            np.concatenate([text.ids for text in texts]),
            np.concatenate([text.lengths for text in texts]),
        )

    def matrix(self, chosen: NDArray[np.bool_], weights: FloatArray, columns: int) -> Tensor:
        """Create a sparse sentence-by-id matrix, with one row per sentence.

        Args:
            chosen: which ids to include [n].
            weights: weight of each sentence [N], used as the value of all its ids.
            columns: number of columns, greater than all chosen ids.

        Returns:
            The matrix [N, columns].
        """
        row = np.repeat(np.arange(len(self.lengths)), self.lengths)[chosen]
        places = torch.from_numpy(np.stack((row, self.ids[chosen])))
        return _sparse(places, torch.from_numpy(weights[row]).float(), (len(self.lengths), columns))


def _texts(corpus: PairCorpus) -> list[FlatText]:
    """Read both sides of a corpus, skipping pairs with an empty side.

    At most `MAX_PAIRS` pairs are read, at regular intervals.
    """
    rows = np.arange(0, len(corpus.source), -(-len(corpus.source) // MAX_PAIRS))
    sides = [
        read_rows(side, rows, SPECIAL.index(EOS), UNLIMITED)
        for side in (corpus.source, corpus.target)
    ]
    pairs = [pair for pair in zip(*sides, strict=True) if all(map(len, pair))]
    return [
        FlatText(np.concatenate(side), np.array([len(sentence) for sentence in side]))
        for side in zip(*pairs, strict=True)
    ]


def ridge(matrix: Tensor, targets: Tensor) -> Tensor:
    """Solve ridge regression by conjugate gradients, for each target column.

    Args:
        matrix: sparse matrix [N, V].
        targets: target values [N, D].

    Returns:
        The matrix W [V, D] that minimizes |matrix W - targets|^2 + `RIDGE` |W|^2.
    """
    coordinates = matrix.to_sparse_coo()
    places = coordinates.indices()
    values = coordinates.values()
    transposed = _sparse(places.flip(0), values, matrix.shape[::-1])
    # Jacobi preconditioning, because piece frequencies differ by orders of magnitude.
    diagonal = torch.bincount(places[1], values**2, minlength=matrix.shape[1]).float()
    scale = 1 / (RIDGE + diagonal)[:, None]
    solution = torch.zeros(matrix.shape[1], targets.shape[1])
    rest = transposed @ targets
    step = scale * rest
    size = (rest * step).sum(0)
    for _ in range(CG_STEPS):
        product = transposed @ (matrix @ step) + RIDGE * step
        rate = size / (step * product).sum(0).clamp_min(1e-30)
        solution += rate * step
        rest -= rate * product
        previous_size = size
        size = (rest * scale * rest).sum(0)
        step = scale * rest + size / previous_size.clamp_min(1e-30) * step
    return solution


def _sparse(places: Tensor, values: Tensor, sizes: Sequence[int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return (
            torch.sparse_coo_tensor(places, values, tuple(sizes), check_invariants=False)
            .coalesce()
            .to_sparse_csr()
        )
