"""Encodes without torch where an embedding is a weighted sum of rows of the table: gated, no
layers, mean pooling.
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
    read_tokenizer,
    read_weights,
    size_of,
)
from fairseq_lxsr.machine import usable_threads
from fairseq_lxsr.modules.packing import FlatPieces
from fairseq_lxsr.modules.sizes import TransformerConfig
from fairseq_lxsr.text.tokenizer import Tokenizer

TABLE, ORDER = "embed_tokens.weight", "order"  # names of the weights in a model folder
# pieces of a batch, whose rows [CACHED_PIECES, D] fit into the cache of one core
CACHED_PIECES = 1024
THREADED = 32  # batches from which several threads embed, and batches of a thread at once


class Bag:
    """An encoder without layers, with the embeddings of `TransformerSentenceEncoder`;
    `config.is_bag` is true of it.
    """

    def __init__(self, config: TransformerConfig, weights: Mapping[str, np.ndarray]):
        self.config = config
        self.weights = {
            name: np.require(value, np.float32, ["C", "W"]) for name, value in weights.items()
        }

    def embed(self, pieces: FlatPieces) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield numbers of the sentences of a batch [n], and their embeddings, float32 [n, D].

        Those of one length have the same weights of positions; sentences without pieces are left
        out.
        """
        threads = usable_threads() if len(pieces.ids) > THREADED * CACHED_PIECES else 1
        batches, local = batches_of_one_length(pieces.lengths), threading.local()
        with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
            run = pool.map if pool else map
            # few at once, because their embeddings wait until they are asked for
            while group := list(islice(batches, THREADED * threads)):
                yield from zip(
                    group, run(partial(self._embed_batch, pieces, local), group), strict=True
                )

    def _embed_batch(
        self, pieces: FlatPieces, local: threading.local, batch: np.ndarray
    ) -> np.ndarray:
        """Embed sentences of one length, float32 [n, D]; `local` keeps memory of the thread from
        batch to batch.
        """
        length = int(pieces.lengths[batch[0]])
        places = (pieces.starts[batch, None] + np.arange(length)).ravel()
        rows = getattr(local, "rows", None)
        # new memory for each batch would take half the time
        if rows is None or len(rows) < len(places):
            rows = local.rows = np.empty(
                (max(CACHED_PIECES, length), self.config.embed_dim), dtype=np.float32
            )
        # ids are those of the table; any other mode would copy the rows twice
        rows = np.take(
            self.weights[TABLE], pieces.ids[places], axis=0, out=rows[: len(places)], mode="clip"
        )
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is refused by the caller
            # [n, k + 1, D]
            coefficients = self._position_weights(length) @ rows.reshape(len(batch), length, -1)
            if not self.config.order_coefficients:
                return coefficients[:, 0]
            return coefficients[:, 0] + (self.weights[ORDER] * coefficients[:, 1:]).sum(axis=1)

    def _position_weights(self, length: int) -> np.ndarray:
        """Weights of the pieces in the mean and in the cosine coefficients [k + 1, T], see
        `pooling.order_weights`.
        """
        if not self.config.order_coefficients:  # the same, sooner
            return np.full((1, length), math.sqrt(self.config.embed_dim) / length, np.float32)
        angle = np.pi * (np.arange(length) + 0.5) / length
        factors = np.arange(self.config.order_coefficients + 1)[:, None]
        return (np.cos(factors * angle) * (math.sqrt(self.config.embed_dim) / length)).astype(
            np.float32
        )


def batches_of_one_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yield numbers of sentences of one length, `CACHED_PIECES` pieces together; those without
    pieces are left out.
    """
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    firsts = np.flatnonzero(ordered != np.concatenate([[0], ordered[:-1]])).tolist()
    for first, last in pairwise([*firsts, len(order)]):
        step = max(1, CACHED_PIECES // int(ordered[first]))
        for start in range(first, last, step):
            yield order[start : min(start + step, last)]


def read_bag(folder: Path, config: dict[str, Any]) -> tuple[Bag, Tokenizer]:
    """Read the table and the tokenizer of a model folder, with the checks of
    `torch_network.read_model`.
    """
    size, weights = size_of(config), read_weights(folder, config)
    assert isinstance(size, TransformerConfig)
    tokenizer = read_tokenizer(folder, config)
    expected = {TABLE: [size.vocab_size, size.embed_dim]}
    if size.order_coefficients:
        expected[ORDER] = [size.order_coefficients, size.embed_dim]
    check_weights(weights, expected, folder / WEIGHTS_FILE)
    return Bag(size, weights), tokenizer
