"""An encoder whose vectors were written down by hand."""

import json
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"


class Vectors:
    """Embeds by looking up."""

    fingerprint = "golden"

    def __init__(self, vectors: dict[str, list[float]] | None = None):
        self.vectors = vectors or json.loads((GOLDEN / "vectors.json").read_text())

    def embed(self, text) -> np.ndarray:
        return np.array([self.vectors[line] for line in text.lines], dtype=np.float32)
