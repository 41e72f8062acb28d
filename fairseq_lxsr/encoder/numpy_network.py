"""Encoders without layers, in NumPy: sentence embeddings are weighted sums of piece embeddings.

These encoders are gated, use mean pooling, and do not need torch.
"""

import math
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.encoder.model_folder import (
    WEIGHTS_FILE,
    check_weights,
    read_packed_weights,
    read_tokenizer,
    size_of,
)
from fairseq_lxsr.encoder.packed_table import PackedTable
from fairseq_lxsr.machine import usable_threads
from fairseq_lxsr.modules.packing import FlatPieces
from fairseq_lxsr.modules.sizes import TransformerConfig
from fairseq_lxsr.text.tokenizer import Tokenizer

# Names of the weights in a model folder.
TABLE = "embed_tokens.weight"
ORDER = "order"
# Number of word pieces per batch, chosen so that their embeddings fit into the cache of a core.
BATCH_PIECES = 1024
# Number of word pieces to read at a time in a longer sentence. It is fixed, so that an embedding
# does not depend on the batch size.
BLOCK_PIECES = 1024
# Number of batches to give to a thread at a time. If there are fewer, a single thread computes all
# of them.
BATCHES_PER_THREAD = 32


class Bag:
    """Encoder without layers that computes the same embeddings as `TransformerSentenceEncoder`.

        bag, tokenizer = read_bag(folder, read_config(folder))
        ids, lengths = tokenizer.encode_known(["A dog."])
        pieces = FlatPieces(ids, lengths.cumsum() - lengths, lengths)
        batches = list(bag.embed(pieces))

    Args:
        config: encoder sizes; `config.is_bag` must be true.
        weights: embedding table [V, D] under the name `TABLE`, and, if the encoder has order
            coefficients, their weights [k, D] under the name `ORDER`. A packed table stays packed.
    """

    def __init__(
        self,
        config: TransformerConfig,
        weights: Mapping[str, np.ndarray | PackedTable],
    ):
        self.config = config
        self._weights: dict[str, Any] = {}
        for name, value in weights.items():
            if isinstance(value, PackedTable):
                self._weights[name] = value if name == TABLE else value.all_rows()
            else:
                self._weights[name] = np.require(value, np.float32, ["C", "W"])

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Weights by name, as float32 arrays. Reading this property unpacks a packed table."""
        table = self._weights[TABLE]
        if isinstance(table, PackedTable):
            return self._weights | {TABLE: table.all_rows()}
        return self._weights

    @property
    def packed_table(self) -> PackedTable | None:
        """The table in 8 or 4 bits; None if it is in float32."""
        table = self._weights[TABLE]
        return table if isinstance(table, PackedTable) else None

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(value.size for value in self._weights.values())

    def rows(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return vectors of word pieces. The rows of a packed table are unpacked on first use.

        Args:
            ids: dictionary ids of word pieces, int64 [P].

        Returns:
            Vectors float32 [R, D] that include those of the pieces, and the row of each piece among
            them, int64 [P].
        """
        table = self._weights[TABLE]
        if isinstance(table, PackedTable):
            return table.unpack(ids)
        return table, ids

    def embed(self, pieces: FlatPieces) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the sentence indices of each batch, int [n], and their embeddings, float32 [n, D].

        All sentences in a batch have the same length, and so the same position weights. Sentences
        without word pieces do not belong to any batch.
        """
        is_large = len(pieces.ids) > BATCHES_PER_THREAD * BATCH_PIECES
        thread_count = usable_threads() if is_large else 1
        batches = batches_of_one_length(pieces.lengths)
        table, places = self.rows(pieces.ids)
        pieces = FlatPieces(places, pieces.starts, pieces.lengths)
        embed_batch = partial(self._embed_batch, table, pieces, threading.local())
        with ThreadPoolExecutor(thread_count) if thread_count > 1 else nullcontext() as pool:
            run = pool.map if pool else map
            # Submit small groups, because finished embeddings stay in memory until requested.
            group_size = BATCHES_PER_THREAD * thread_count
            while group := list(islice(batches, group_size)):
                yield from zip(group, run(embed_batch, group), strict=True)

    def _embed_batch(
        self, table: np.ndarray, pieces: FlatPieces, local: threading.local, batch: np.ndarray
    ) -> np.ndarray:
        """Return the embeddings of equally long sentences, float32 [n, D].

        Args:
            table: word piece vectors, float32 [R, D].
            pieces: word pieces of all sentences, as row indices of the table.
            local: buffers that a thread reuses for all its batches.
            batch: sentence indices [n].
        """
        length = int(pieces.lengths[batch[0]])
        if length > BLOCK_PIECES:
            return self._embed_long(table, pieces, int(batch[0]))
        places = (pieces.starts[batch, None] + np.arange(length)).ravel()
        # Reuse the buffer, because allocating one per batch would take half of the total time.
        buffer = getattr(local, "buffer", None)
        if buffer is None or len(buffer) < len(places):
            row_count = max(BATCH_PIECES, length)
            buffer = np.empty((row_count, self.config.embed_dim), dtype=np.float32)
            local.buffer = buffer
        # The ids are valid, so no ids are clipped. Other modes would copy the rows twice.
        rows = np.take(table, pieces.ids[places], axis=0, out=buffer[: len(places)], mode="clip")
        # Ignore overflow, because the caller checks the embeddings for infinity.
        with np.errstate(over="ignore", invalid="ignore"):
            rows = rows.reshape(len(batch), length, -1)
            # The product has the shape [n, k + 1, D].
            return self._weigh(self._position_weights(length) @ rows)

    def _embed_long(self, table: np.ndarray, pieces: FlatPieces, sentence: int) -> np.ndarray:
        """Embed one sentence of any length, as float32 [1, D].

        Its word piece vectors are read in blocks, because all vectors of a text of 8 MB would need
        several GB.
        """
        length = int(pieces.lengths[sentence])
        start = int(pieces.starts[sentence])
        ids = pieces.ids[start : start + length]
        weights = self._position_weights(length)
        coefficients = np.zeros((len(weights), self.config.embed_dim), dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, length, BLOCK_PIECES):
                block = slice(first, first + BLOCK_PIECES)
                coefficients += weights[:, block] @ table[ids[block]]
            return self._weigh(coefficients[None])

    def _weigh(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the weighted sums [n, D] of coefficients [n, k + 1, D]; the first one is the mean.

        The mean has the weight 1.
        """
        if not self.config.order_coefficients:
            return coefficients[:, 0]
        return coefficients[:, 0] + (self._weights[ORDER] * coefficients[:, 1:]).sum(axis=1)

    def _position_weights(self, length: int) -> np.ndarray:
        """Return the position weights for the mean and each cosine coefficient [k + 1, T].

        See `pooling.order_weights`.
        """
        scale = math.sqrt(self.config.embed_dim) / length
        # Without order coefficients, only the mean is needed, for which all weights are equal.
        if not self.config.order_coefficients:
            return np.full((1, length), scale, np.float32)
        angle = np.pi * (np.arange(length) + 0.5) / length
        factors = np.arange(self.config.order_coefficients + 1)[:, None]
        return (np.cos(factors * angle) * scale).astype(np.float32)


def batches_of_one_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yield batches of equally long sentences, as sentence indices, int [n].

    Args:
        lengths: number of word pieces per sentence [N]; sentences of length 0 are skipped. A
            sentence of more than `BATCH_PIECES` gets its own batch.
    """
    order = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[order]
    previous = np.concatenate([[0], sorted_lengths[:-1]])
    firsts = np.flatnonzero(sorted_lengths != previous).tolist()
    for first, last in pairwise([*firsts, len(order)]):
        step = max(1, BATCH_PIECES // int(sorted_lengths[first]))
        for start in range(first, last, step):
            yield order[start : min(start + step, last)]


def read_bag(folder: Path, config: dict[str, Any]) -> tuple[Bag, Tokenizer]:
    """Read an encoder without layers and its tokenizer from a model folder.

    Args:
        folder: path of the model folder.
        config: content of its config.json (see `model_folder.read_config`).

    Raises:
        InputError: if the files are invalid or do not belong together.
    """
    size = size_of(config)
    assert isinstance(size, TransformerConfig)
    # Read the tokenizer first, because reading it takes the most memory.
    tokenizer = read_tokenizer(folder, config)
    weights = read_packed_weights(folder, config)
    expected = {TABLE: [size.vocab_size, size.embed_dim]}
    if size.order_coefficients:
        expected[ORDER] = [size.order_coefficients, size.embed_dim]
    check_weights(weights, expected, folder / WEIGHTS_FILE)
    return Bag(size, weights), tokenizer
