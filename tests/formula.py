"""Small weights that are a formula of their names and shapes: golden files then hold results
only.
"""

import numpy as np

PAD = 1


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Irregular float64 values for a weight of the released model, of a size that lets every layer
    count.

    Matrices are within +-2.5 / sqrt(columns) and zero at padding, vectors within +-0.3, LayerNorm's
    weights 1 more.
    """
    start = sum(place * ord(letter) for place, letter in enumerate(name, 1)) % 1000
    index = np.arange(np.prod(shape))
    largest = 2.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.3
    values = largest * np.sin(start + 0.7 * index + 0.013 * index**2).reshape(shape)
    if name.endswith("layer_norm.weight"):
        values += 1
    if name.endswith("embed_tokens.weight"):
        values[PAD] = 0
    return values
