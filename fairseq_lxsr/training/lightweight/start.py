"""First embeddings of a training that goes on from a model folder: its rows, and rows for pieces
that it lacks.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.numpy_network import ORDER
from fairseq_lxsr.encoder.starting_model import old_symbols
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import SentenceNetwork
from fairseq_lxsr.text.tokenizer import EOS, SPECIAL, UNK
from fairseq_lxsr.training.pairs import UNLIMITED, PairCorpus, read_rows
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

PAIRS = 100_000  # most pairs of a language pair that the regression reads
RIDGE, CG_STEPS = 1.0, 20  # weight of the squares of the vectors; steps of conjugate gradients


def start_from(
    encoder: SentenceEncoder,
    network: SentenceNetwork,
    symbols: Sequence[str],
    corpora: Sequence[PairCorpus],
) -> None:
    """Give a new network the weights of a model without layers.

    Args:
        encoder: the model, see `open_start`.
        network: an encoder whose embedding is a weighted sum of rows, and what layers add through
            gates.
        symbols: dictionary of the training text, without <mask>: that of the model, perhaps with
            more at its end.
        corpora: the training text, for the rows of new pieces.
    """
    old, size, name = old_symbols(encoder, symbols), encoder.size, encoder.folder
    config: object = network.config
    wanted = {
        "embed_dim": size.embed_dim,
        "order_coefficients": size.order_coefficients,
        "sums_rows": True,
    }
    for key, value in wanted.items():
        given = getattr(config, key, None)
        if given != value:
            raise InputError(
                f"--from-model {name} with {key} {given}; expected {key} {value}, as it has; lxsr train --from gives "
                "the options that go with it"
            )
    weights: dict[str, nn.Parameter] = dict(network.named_parameters())
    table = network.embed_tokens.weight
    rows = torch.from_numpy(np.array(encoder.table, np.float32))
    with torch.no_grad():
        table[:old] = rows[:old]
        table[len(symbols) :] = (
            rows[old:] if len(rows) > old else rows[SPECIAL.index(UNK)]
        )  # <mask>
        table[old : len(symbols)] = new_rows(rows[:old], len(symbols), corpora)
        if size.order_coefficients:
            weights[ORDER].copy_(torch.from_numpy(encoder.weights[ORDER]))


def new_rows(table: Tensor, vocab_size: int, corpora: Sequence[PairCorpus]) -> Tensor:
    """Compute rows of new pieces with which sentences come nearest to their translations.

    Minimises sum_i T_i |mean_t w_it - x_i|^2 + ridge |W|^2, where x_i is the mean over the
    translation and the rows of old pieces stay: a sentence counts by its length T_i. The order of
    the pieces, which adds little, is left out.

    Args:
        table: [V, D] the old rows.
        vocab_size: old and new pieces, V + N.
        corpora: pairs of languages, of which one has the more new pieces.

    Returns:
        [N, D]; pieces that the text does not have get the row of unknown ones.
    """
    old = len(table)
    found = table[SPECIAL.index(UNK)].repeat(vocab_size - old, 1)
    sides = [
        sorted(_texts(corpus), key=lambda text: (text.ids >= old).sum()) for corpus in corpora
    ]  # the new one last
    sides = [side for side in sides if (side[1].ids >= old).any()]
    if not sides:
        return found
    known, new = (FlatText.joined(texts) for texts in zip(*sides, strict=True))
    root = np.sqrt(new.lengths)
    targets = known.matrix(known.ids < old, root / known.lengths, old) @ table
    targets -= new.matrix(new.ids < old, 1 / root, old) @ table
    is_new = new.ids >= old
    shifted = FlatText(new.ids - old, new.lengths)
    rows = ridge(shifted.matrix(is_new, 1 / root, len(found)), targets)
    seen = torch.from_numpy(np.unique(shifted.ids[is_new]))
    found[seen] = rows[seen]
    return found


@dataclass(frozen=True)
class FlatText:
    """Sentences as ids, one after the other [n], and the length of each [N], which is at least
    1.
    """

    ids: IntArray
    lengths: IntArray

    @classmethod
    def joined(cls, texts: Sequence["FlatText"]) -> "FlatText":
        """Join texts."""
        ids, lengths = (
            np.concatenate([getattr(text, name) for text in texts]) for name in ("ids", "lengths")
        )
        return cls(ids, lengths)

    def matrix(self, chosen: NDArray[np.bool_], weights: FloatArray, columns: int) -> Tensor:
        """Make the sparse matrix [N, columns] of the `chosen` ids [n], each with the weight [N] of
        its sentence.
        """
        row = np.repeat(np.arange(len(self.lengths)), self.lengths)[chosen]
        places = torch.from_numpy(np.stack((row, self.ids[chosen])))
        return _sparse(places, torch.from_numpy(weights[row]).float(), (len(self.lengths), columns))


def _texts(corpus: PairCorpus) -> list[FlatText]:
    """Read both sides of a corpus, at most `PAIRS` pairs spread over it, without those that have an
    empty side.
    """
    rows = np.arange(0, len(corpus.source), -(-len(corpus.source) // PAIRS))
    sides = [
        read_rows(side, rows, SPECIAL.index(EOS), UNLIMITED)
        for side in (corpus.source, corpus.target)
    ]
    pairs = [pair for pair in zip(*sides, strict=True) if all(map(len, pair))]
    return [
        FlatText(np.concatenate(side), np.array(list(map(len, side))))
        for side in zip(*pairs, strict=True)
    ]


def ridge(matrix: Tensor, targets: Tensor) -> Tensor:
    """Least squares with a penalty: conjugate gradients on the normal equations, for each column of
    targets.

    Args:
        matrix: sparse [N, V].
        targets: [N, D].

    Returns:
        W [V, D] that minimises |matrix W - targets|^2 + `RIDGE` |W|^2.
    """
    coordinates = matrix.to_sparse_coo()
    places, values = coordinates.indices(), coordinates.values()
    transposed = _sparse(places.flip(0), values, matrix.shape[::-1])
    # by the diagonal, because pieces are rare and frequent
    scale = (
        1
        / (RIDGE + torch.bincount(places[1], values**2, minlength=matrix.shape[1]).float())[:, None]
    )
    found = torch.zeros(matrix.shape[1], targets.shape[1])
    rest = transposed @ targets
    step = scale * rest
    size = (rest * step).sum(0)
    for _ in range(CG_STEPS):
        product = transposed @ (matrix @ step) + RIDGE * step
        rate = size / (step * product).sum(0).clamp_min(1e-30)
        found += rate * step
        rest -= rate * product
        before, size = size, (rest * scale * rest).sum(0)
        step = scale * rest + size / before.clamp_min(1e-30) * step
    return found


def _sparse(places: Tensor, values: Tensor, sizes: Sequence[int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return (
            torch.sparse_coo_tensor(places, values, tuple(sizes), check_invariants=False)
            .coalesce()
            .to_sparse_csr()
        )
