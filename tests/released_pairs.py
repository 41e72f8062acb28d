"""Inputs of the golden values of tests/golden/released: weights by formula, pairs of ids, and masks.

Every weight is a multiple of 2^-14, which float32 represents exactly.
"""

import math
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

# Ids as in a dictionary of fairseq, with <mask> at the end.
PAD = 1
EOS = 2
FIRST = 4
MASK = 49
VOCAB = 50
SIZES = {"embed_dim": 16, "ffn_embed_dim": 32, "num_heads": 2, "max_positions": 12}
# Source, target, the side with the mask, and the position of the mask.
PAIRS = [
    ((5, 6, 7, 8), (20, 21, 22), "source", 1),
    ((9, 10), (23, 24, 25, 26, 27), "target", 4),
    # Words are repeated; one of the two stays visible.
    ((11, 12, 11, 13), (28, 29, 28), "source", 0),
    # The masked word is in the translation too.
    ((14, 30, 15), (30, 31), "source", 1),
    # The masked word is in the translation too, and repeated.
    ((16, 17, 32), (32, 33, 32, 34), "target", 2),
    # A word that is not masked is in both sentences.
    ((18, 19, 18, 35), (35, 36, 37, 38, 39, 40, 41), "target", 1),
    ((42,), (43,), "source", 0),
    # The longest sentence for which there are positions.
    ((44, 45, 46, 5, 6, 7, 8, 9, 10, 11, 12, 13), (47, 48, 20), "source", 11),
    ((12, 13), (28, 14), "target", 0),
]
WHOLE = range(len(PAIRS))
# Indexes of PAIRS in the batches of each epoch of a training.
EPOCHS = [
    [[0, 1, 2, 3], [4, 5, 6, 7]],
    [[8, 3, 5, 6], [1, 4, 7, 0]],
    [[2, 8, 0, 5], [3, 6, 1, 4]],
] * 2


def weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Compute every weight from its name and the positions in its tensor."""
    tensors = {}
    for name, shape in shapes.items():
        number = zlib.crc32(name.encode()) % 4093
        position = torch.arange(math.prod(shape))
        # Values in [-1/2, 1/2).
        values = ((37 * position + number) * position + number) % 4093 / 4096 - 0.5
        if "embed_" in name or name.endswith("bias"):
            values = 0.5 * values
        elif "layer_norm" in name:
            values = 0.5 * values + 1.0
        tensors[name] = values.view(shape)
    tensors["encoder.embed_tokens.weight"][PAD] = 0
    return tensors


def masked(ids: tuple[int, ...], position: int | None) -> tuple[int, ...]:
    """Return the ids with <mask> at a position."""
    if position is None:
        return ids
    return (*ids[:position], MASK, *ids[position + 1 :])
