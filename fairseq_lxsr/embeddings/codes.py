"""Embeddings in a byte or a bit a dimension, and back; the calibration that int8 needs is stored
beside them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.vectors.rows import FloatArray


@dataclass(frozen=True)
class Calibration:
    """The value of a code: (code - zero) step, for each dimension; the code `zero` is exactly 0.

    As `quantize_embeddings` of sentence-transformers, least and largest value of a dimension are
    the ends of the 256 codes; here 0 is among the values, so that the embedding of an empty
    sentence stays zero.

    Args:
        zero: code of 0, a whole number from -128 to 127 for each of D dimensions.
        step: value between two codes, above 0, for each.
    """

    zero: NDArray[np.float32]
    step: NDArray[np.float32]

    @classmethod
    def of(cls, embeddings: FloatArray) -> "Calibration":
        """Calibrate on a sample [N, D]; values outside its range become the nearest end of it."""
        least = np.minimum(embeddings.min(axis=0), 0).astype(np.float64)
        most = np.maximum(embeddings.max(axis=0), 0).astype(np.float64)
        step = ((most - least) / 255).astype(np.float32)
        step[step == 0] = 1
        return cls(np.rint(-128 - least / step).astype(np.float32), step)

    @classmethod
    def from_json(cls, read: Any, width: int) -> "Calibration":
        """Read what `to_json` made; anything else raises ValueError."""
        try:
            with np.errstate(over="ignore"):  # infinity is refused below
                found = {name: np.array(read[name], dtype=np.float32) for name in ("zero", "step")}
        except OverflowError as error:
            raise ValueError(str(error)) from None
        if any(values.shape != (width,) for values in found.values()):
            raise ValueError(f"calibration of {found['step'].shape} dimensions, not ({width},)")
        zero, step = found["zero"], found["step"]
        if not ((np.abs(zero + 0.5) < 128).all() and (zero == np.rint(zero)).all()):
            raise ValueError("calibration with zeros that are no codes")
        if not ((step > 0) & np.isfinite(step)).all():
            raise ValueError("calibration with steps that are no positive numbers")
        return cls(zero, step)

    def to_json(self) -> dict[str, list[float]]:
        return {
            "zero": [int(code) for code in self.zero],
            "step": [float(step) for step in self.step],
        }

    def codes(self, embeddings: FloatArray) -> NDArray[np.int8]:
        """Round embeddings [n, D] to codes."""
        return np.clip(np.rint(embeddings / self.step + self.zero), -128, 127).astype(np.int8)

    def values(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Return the values [n, D] of codes."""
        return (codes.astype(np.float32) - self.zero) * self.step


def signs_of(bits: NDArray[np.uint8], width: int) -> NDArray[np.float32]:
    """Return -1 and 1 [n, D] for the bits [n, D / 8, rounded up] of `numpy.packbits(embeddings > 0,
    axis=1)`.

    A row without a bit stays zero: it is that of a sentence without a known word.
    """
    return (np.unpackbits(bits, axis=1, count=width).astype(np.float32) * 2 - 1) * bits.any(
        axis=1, keepdims=True
    )


class StoredCodes:
    """Embeddings [N, D] stored as codes: rows become float32 when they are taken."""

    dtype = np.dtype(np.float32)

    def __init__(self, codes: NDArray[Any], width: int, calibration: Calibration | None):
        self.codes, self.shape, self.calibration = codes, (len(codes), width), calibration

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[np.float32]:
        """Return rows, by a slice or by their numbers."""
        codes = np.asarray(self.codes[rows])
        return (
            signs_of(codes, self.shape[1])
            if self.calibration is None
            else self.calibration.values(codes)
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)
