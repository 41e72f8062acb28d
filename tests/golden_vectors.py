"""An encoder whose vectors were written by hand."""

import json
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"


class Vectors:
    """Looks the vector of a sentence up in a table."""

    fingerprint = "golden"

    def __init__(self, vectors: dict[str, list[float]] | None = None):
        self.vectors = vectors or json.loads((GOLDEN / "vectors.json").read_text())

    def embed(self, text) -> np.ndarray:
        return np.array([self.vectors[line] for line in text.lines], dtype=np.float32)
