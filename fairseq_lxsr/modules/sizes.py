"""Valid sizes of an encoder; larger values are mistakes that would exhaust the memory. torch is not
needed.
"""

from dataclasses import dataclass, field

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import POOLING_NAMES, Range, at_least, below, check_fields, limited

WIDTH = at_least(1, 65_536)
LAYERS, SOME_LAYERS = at_least(0, 1000), at_least(1, 1000)
POSITIONS = at_least(1, 65_536)
ENTRIES = at_least(1, 2**27)  # entries of the dictionary
COEFFICIENTS = at_least(0, 1000)
PROBABILITY = below(1)
EPSILON = Range(1e-30, 1)  # of LayerNorm
LAYER_NORM_EPS = 1e-5  # torch's own


@dataclass(frozen=True)
class EncoderSize:
    """Fields that the configs of all encoders share; each field is checked by the range in its
    metadata.
    """

    vocab_size: int = field(metadata={"range": ENTRIES})
    padding_idx: int = field(metadata={"range": at_least(0)})

    def __post_init__(self):
        check_fields(self)
        if self.padding_idx >= self.vocab_size:
            raise InputError(
                f"padding_idx {self.padding_idx}; expected less than vocab_size, {self.vocab_size:,}"
            )

    @property
    def layer_norm_eps(self) -> float:
        """Added to the variance in the LayerNorm of heads; an encoder with an option for it
        declares a field.
        """
        return LAYER_NORM_EPS


@dataclass(frozen=True)
class TransformerConfig(EncoderSize):
    """Size of a `TransformerSentenceEncoder`.

    With `num_layers` 0 an embedding is the mean of the token embeddings; without `gated`, positions
    are added to them and they are normalized.

    Raises:
        InputError: for a size out of its range, and for sizes that do not go together.

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
            sizes = f"embed_dim {self.embed_dim}, num_heads {self.num_heads}"
            raise InputError(f"{sizes}; expected a multiple of the heads")
        count, pooling = self.order_coefficients, self.pooling
        if count and pooling != "mean":
            raise InputError(f"order_coefficients {count}, pooling {pooling}; expected 0, or mean")

    @property
    def output_dim(self) -> int:
        """Width E of an embedding: D, or 2D where mean and maximum are concatenated."""
        return self.embed_dim * (1 if self.pooling == "mean" else 2)

    @property
    def sums_rows(self) -> bool:
        """Whether an embedding is a weighted sum of rows of the table and what layers add to it
        through gates.
        """
        return self.gated and self.pooling == "mean"

    @property
    def is_bag(self) -> bool:
        """Whether an embedding is a weighted sum of rows of the table and nothing else."""
        return self.sums_rows and not self.num_layers
