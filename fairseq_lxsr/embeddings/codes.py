"""Embeddings with one byte or one bit per dimension, and their conversion to float32.

The int8 calibration is stored in the description file of the embeddings.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.vectors.rows import FloatArray


@dataclass(frozen=True)
class Calibration:
    """Maps int8 codes to values, per dimension: value = (code - zero) * step.

    As in `quantize_embeddings` of sentence-transformers, the 256 codes range from the smallest to
    the largest value of a dimension. Here the range includes 0, and the code `zero` means exactly
    0, so that the embedding of an empty sentence stays zero.

    Attributes:
        zero: code of the value 0 for each dimension, an integer from -128 to 127 [D].
        step: difference between the values of adjacent codes, positive [D].
    """

    zero: NDArray[np.float32]
    step: NDArray[np.float32]

    @classmethod
    def of(cls, embeddings: FloatArray) -> "Calibration":
        """Calibrate on a sample of embeddings [N, D]. Values outside the sample's range are
        clipped."""
        least = np.minimum(embeddings.min(axis=0), 0).astype(np.float64)
        most = np.maximum(embeddings.max(axis=0), 0).astype(np.float64)
        step = ((most - least) / 255).astype(np.float32)
        step[step == 0] = 1
        return cls(np.rint(-128 - least / step).astype(np.float32), step)

    @classmethod
    def from_json(cls, content: Any, width: int) -> "Calibration":
        """Read the result of `to_json`. Raise ValueError, KeyError or TypeError for anything else.

        Args:
            content: the parsed JSON.
            width: number of dimensions D.
        """
        try:
            # The check below rejects numbers that overflow to infinity.
            with np.errstate(over="ignore"):
                zero = np.array(content["zero"], dtype=np.float32)
                step = np.array(content["step"], dtype=np.float32)
        except OverflowError as error:
            raise ValueError(str(error)) from None
        if zero.shape != (width,) or step.shape != (width,):
            raise ValueError(
                f"calibration has shapes {zero.shape} and {step.shape}; expected ({width},)"
            )
        is_code = (np.abs(zero + 0.5) < 128) & (zero == np.rint(zero))
        if not is_code.all():
            raise ValueError("calibration has a zero that is not a code from -128 to 127")
        if not ((step > 0) & np.isfinite(step)).all():
            raise ValueError("calibration has a step that is not a positive number")
        return cls(zero, step)

    def to_json(self) -> dict[str, list[float]]:
        return {
            "zero": [int(code) for code in self.zero],
            "step": [float(step) for step in self.step],
        }

    def codes(self, embeddings: FloatArray) -> NDArray[np.int8]:
        """Round embeddings [n, D] to int8 codes."""
        return np.clip(np.rint(embeddings / self.step + self.zero), -128, 127).astype(np.int8)

    def values(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Convert int8 codes [n, D] to float32 values."""
        return (codes.astype(np.float32) - self.zero) * self.step


def signs_from_bits(bits: NDArray[np.uint8], width: int) -> NDArray[np.float32]:
    """Unpack embeddings stored as bits into signs, -1 or 1.

    A row without a set bit becomes zero, because it belongs to a sentence without known words.

    Args:
        bits: result of `numpy.packbits(embeddings > 0, axis=1)` [n, D / 8, rounded up].
        width: number of dimensions D.

    Returns:
        Signs, float32 [n, D].
    """
    signs = np.unpackbits(bits, axis=1, count=width).astype(np.float32) * 2 - 1
    return signs * bits.any(axis=1, keepdims=True)


class StoredCodes:
    """Embeddings [N, D] stored as codes. Rows are converted to float32 when they are read.

    Args:
        codes: int8 codes [N, D], or bits [N, D / 8, rounded up].
        width: number of dimensions D.
        calibration: calibration of int8 codes; None for bits.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, codes: NDArray[Any], width: int, calibration: Calibration | None):
        self.codes = codes
        self.shape = (len(codes), width)
        self.calibration = calibration

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[np.float32]:
        """Return the rows selected by a slice or by an array of row indices."""
        codes = np.asarray(self.codes[rows])
        if self.calibration is None:
            return signs_from_bits(codes, self.shape[1])
        return self.calibration.values(codes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)
