"""Small weights computed from their names and shapes, so that golden files hold only results."""

import numpy as np

PAD = 1


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return irregular float64 values for a weight of the released model.

    Matrices are within +-2.5 / sqrt(columns) and zero at padding, vectors within +-0.3, and weights
    of LayerNorm within 1 +- 0.3, so that every layer changes the output.
    """
    start = sum(position * ord(letter) for position, letter in enumerate(name, 1)) % 1000
    index = np.arange(np.prod(shape))
    largest = 2.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.3
    values = largest * np.sin(start + 0.7 * index + 0.013 * index**2).reshape(shape)
    if name.endswith("layer_norm.weight"):
        values += 1
    if name.endswith("embed_tokens.weight"):
        values[PAD] = 0
    return values
