"""Encoder sizes and their valid ranges, without importing torch.

Larger values are mistakes that would exhaust the memory.
"""

from dataclasses import dataclass, field
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import POOLING_NAMES, Range, at_least, below, check_fields, limited

WIDTH = at_least(1, 65_536)
LAYERS = at_least(0, 1000)
SOME_LAYERS = at_least(1, 1000)
POSITIONS = at_least(1, 65_536)
# Valid number of dictionary entries.
ENTRIES = at_least(1, 2**27)
COEFFICIENTS = at_least(0, 1000)
PROBABILITY = below(1)
# Valid range of the LayerNorm epsilon, and its default, which is also torch's.
EPSILON = Range(1e-30, 1)
LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True)
class EncoderSize:
    """Size fields shared by all encoders. Each is checked against the range in its metadata.

    Raises:
        InputError: if a value is outside its range.
    """

    vocab_size: int = field(metadata={"range": ENTRIES})
    padding_idx: int = field(metadata={"range": at_least(0)})

    def __post_init__(self):
        check_fields(self)
        if self.padding_idx >= self.vocab_size:
            raise InputError(
                f"padding_idx is {self.padding_idx}; it must be less than vocab_size "
                f"({self.vocab_size:,})"
            )

    @property
    def layer_norm_eps(self) -> float:
        """LayerNorm epsilon. Encoders for which it can be set declare a field instead."""
        return LAYER_NORM_EPS


@dataclass(frozen=True)
class TransformerConfig(EncoderSize):
    """Sizes of a `TransformerSentenceEncoder`.

    If `num_layers` is 0, a sentence embedding is the mean of the token embeddings. Unless `gated`
    is set, position embeddings are first added to the token embeddings, and the sums are
    normalized.

    Raises:
        InputError: if a size is outside its range, or if sizes are incompatible.

    Example:
        >>> TransformerConfig(vocab_size=50_000, padding_idx=1, num_layers=0, gated=True).is_bag
        True
    """

    embed_dim: int = limited(512, WIDTH)
    ffn_embed_dim: int = limited(1024, WIDTH)
    num_heads: int = limited(8, WIDTH)
    num_layers: int = limited(2, LAYERS)
    max_positions: int = limited(200, POSITIONS)
    dropout: float = limited(0.1, PROBABILITY)
    attention_dropout: float = limited(0.0, PROBABILITY)
    activation_dropout: float = limited(0.0, PROBABILITY)
    pooling: str = limited("mean", POOLING_NAMES)
    gated: bool = False
    order_coefficients: int = limited(0, COEFFICIENTS)
    layer_norm_eps: float = limited(LAYER_NORM_EPS, EPSILON)

    def __post_init__(self):
        super().__post_init__()
        if self.embed_dim % self.num_heads:
            raise InputError(
                f"embed_dim {self.embed_dim} is not a multiple of num_heads {self.num_heads}"
            )
        if self.order_coefficients and self.pooling != "mean":
            raise InputError(
                f"order_coefficients {self.order_coefficients} requires pooling mean, not "
                f"{self.pooling}"
            )

    @property
    def output_dim(self) -> int:
        """Embedding width E: D, or 2D if pooling concatenates mean and maximum."""
        return self.embed_dim if self.pooling == "mean" else 2 * self.embed_dim

    @property
    def sums_rows(self) -> bool:
        """Whether an embedding is a weighted sum of token embeddings plus the output of gated
        layers."""
        return self.gated and self.pooling == "mean"

    @property
    def is_bag(self) -> bool:
        """Whether an embedding is just a weighted sum of token embeddings."""
        return self.sums_rows and not self.num_layers


def piece_limit(size: Any) -> int | None:
    """Return the maximum number of word pieces per text for an encoder, or None if unlimited.

    Layers are limited to `max_positions` pieces, because they were not trained on longer texts. A
    weighted sum of token embeddings can have any number of pieces.

    Args:
        size: sizes of the encoder.
    """
    if getattr(size, "is_bag", False):
        return None
    return size.max_positions or None
