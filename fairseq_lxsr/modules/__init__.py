"""Neural network parts: torch only, no fairseq."""

from fairseq_lxsr.modules.heads import ReconstructionHead
from fairseq_lxsr.modules.laser import LaserConfig, LaserSentenceEncoder
from fairseq_lxsr.modules.network import SentenceNetwork, all_networks
from fairseq_lxsr.modules.pooling import max_pool, mean_max_pool, mean_pool
from fairseq_lxsr.modules.tlaser import TLaserConfig, TLaserSentenceEncoder
from fairseq_lxsr.modules.transformer import TransformerConfig, TransformerSentenceEncoder

__all__ = [
    "LaserConfig",
    "LaserSentenceEncoder",
    "ReconstructionHead",
    "SentenceNetwork",
    "TLaserConfig",
    "TLaserSentenceEncoder",
    "TransformerConfig",
    "TransformerSentenceEncoder",
    "all_networks",
    "max_pool",
    "mean_max_pool",
    "mean_pool",
]
