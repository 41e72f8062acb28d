"""What the golden values of tests/golden/released belong to: weights by formula, pairs of ids, and
their masks.

Every weight is a multiple of 2^-14, so float32 holds it exactly.
"""

import math
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

# the dictionary of fairseq, its pieces, and <mask> at the end
VOCAB, PAD, EOS, FIRST, MASK = (50, 1, 2, 4, 49)
SIZES = {"embed_dim": 16, "ffn_embed_dim": 32, "num_heads": 2, "max_positions": 12}
# source, target, the side with the mask, and which of its pieces
PAIRS = [
    ((5, 6, 7, 8), (20, 21, 22), "source", 1),
    ((9, 10), (23, 24, 25, 26, 27), "target", 4),
    ((11, 12, 11, 13), (28, 29, 28), "source", 0),  # repeated words; one of the two stays visible
    ((14, 30, 15), (30, 31), "source", 1),  # the masked word is in the translation too
    ((16, 17, 32), (32, 33, 32, 34), "target", 2),  # likewise, and it is repeated
    (
        (18, 19, 18, 35),
        (35, 36, 37, 38, 39, 40, 41),
        "target",
        1,
    ),  # another word is in both sentences
    ((42,), (43,), "source", 0),
    (
        (44, 45, 46, 5, 6, 7, 8, 9, 10, 11, 12, 13),
        (47, 48, 20),
        "source",
        11,
    ),  # as long as positions go
    ((12, 13), (28, 14), "target", 0),
]
WHOLE = range(len(PAIRS))
# of the training, an epoch after the other
EPOCHS = [
    [[0, 1, 2, 3], [4, 5, 6, 7]],
    [[8, 3, 5, 6], [1, 4, 7, 0]],
    [[2, 8, 0, 5], [3, 6, 1, 4]],
] * 2


def weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """A value for every weight, a function of its name and of its place in the tensor."""
    found = {}
    for name, shape in shapes.items():
        number, place = zlib.crc32(name.encode()) % 4093, torch.arange(math.prod(shape))
        drawn = ((37 * place + number) * place + number) % 4093 / 4096 - 0.5  # in [-1/2, 1/2)
        scale, middle = 1.0, 0.0
        if "embed_" in name or name.endswith("bias"):
            scale = 0.5
        elif "layer_norm" in name:
            scale, middle = 0.5, 1.0
        found[name] = (scale * drawn + middle).view(shape)
    found["encoder.embed_tokens.weight"][PAD] = 0
    return found


def masked(ids: tuple[int, ...], place: int | None) -> tuple[int, ...]:
    """The ids with <mask> at a place."""
    return ids if place is None else (*ids[:place], MASK, *ids[place + 1 :])
