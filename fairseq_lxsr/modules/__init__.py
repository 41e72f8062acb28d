"""Neural network parts: torch only, no fairseq."""

from fairseq_lxsr.modules.heads import ReconstructionHead
from fairseq_lxsr.modules.laser import LaserConfig, LaserSentenceEncoder
from fairseq_lxsr.modules.pooling import max_pool, mean_max_pool, mean_pool
from fairseq_lxsr.modules.tlaser import TLaserConfig, TLaserSentenceEncoder
from fairseq_lxsr.modules.transformer import TransformerConfig, TransformerSentenceEncoder

__all__ = [
    "LaserConfig",
    "LaserSentenceEncoder",
    "ReconstructionHead",
    "TLaserConfig",
    "TLaserSentenceEncoder",
    "TransformerConfig",
    "TransformerSentenceEncoder",
    "max_pool",
    "mean_max_pool",
    "mean_pool",
]
