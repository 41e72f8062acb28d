"""Truncates embeddings, and handles fingerprints of truncated or compressed embeddings.

Such a fingerprint consists of the model fingerprint and the options that changed the embeddings,
for example `6a1a20383888-dtype=int8-truncate_dim=64`.
"""

import re
from collections import Counter

from fairseq_lxsr.embeddings.contract import Encoder, Text
from fairseq_lxsr.embeddings.stored import NEUTRAL_VALUES
from fairseq_lxsr.options import at_least
from fairseq_lxsr.vectors.rows import FloatArray

TRUNCATE_DIM = re.compile(r"-truncate_dim=(\d+)")
OPTION = re.compile(f"-(?:{'|'.join(NEUTRAL_VALUES)})=")


def model_of(fingerprint: str) -> str:
    """Return the fingerprint of the model, without the options that changed its embeddings."""
    return OPTION.split(fingerprint, maxsplit=1)[0]


def truncate_dim_of(fingerprint: str) -> int | None:
    """Return the number of dimensions that embeddings were truncated to, or None."""
    match = TRUNCATE_DIM.search(fingerprint)
    return int(match[1]) if match else None


def truncated_fingerprint(fingerprint: str, truncate_dim: int) -> str:
    """Return the fingerprint of embeddings truncated to their first dimensions."""
    return f"{TRUNCATE_DIM.sub('', fingerprint)}-truncate_dim={truncate_dim}"


def first_dimensions(embeddings: FloatArray, truncate_dim: int | None) -> FloatArray:
    """Truncate embeddings [n, D] to their first dimensions. None keeps all dimensions.

    Raises:
        InputError: if the embeddings have fewer dimensions.
    """
    if truncate_dim is None:
        return embeddings
    check_truncate_dim(truncate_dim, embeddings.shape[1])
    return embeddings[:, :truncate_dim]


def check_truncate_dim(truncate_dim: int, width: int) -> None:
    """Check that `truncate_dim` is between 1 and `width`.

    Raises:
        InputError: if it is not.
    """
    at_least(1, width).check("truncate_dim", truncate_dim)


class TruncatedEncoder:
    """Keeps the first dimensions of the embeddings of another encoder.

    Args:
        encoder: encoder whose embeddings are truncated.
        truncate_dim: number of dimensions to keep.

    Raises:
        InputError: if the encoder has fewer dimensions.
    """

    def __init__(self, encoder: Encoder, truncate_dim: int):
        check_truncate_dim(truncate_dim, encoder.width)
        self.encoder = encoder
        self.width = truncate_dim

    @property
    def fingerprint(self) -> str:
        return truncated_fingerprint(self.encoder.fingerprint, self.width)

    @property
    def space(self) -> str:
        return getattr(self.encoder, "space", self.encoder.fingerprint)

    def embed(self, text: Text, counts: Counter[str] | None = None) -> FloatArray:
        return first_dimensions(self.encoder.embed(text, counts), self.width)
