"""Neural network modules in torch, without fairseq.

torch is imported only when a name is first used; `sizes` works without torch.
"""

from typing import TYPE_CHECKING

from fairseq_lxsr.machine import lazy_getattr

if TYPE_CHECKING:
    from fairseq_lxsr.modules.laser import LaserConfig, LaserSentenceEncoder
    from fairseq_lxsr.modules.network import SentenceNetwork, all_networks
    from fairseq_lxsr.modules.pooling import max_pool, mean_max_pool, mean_pool
    from fairseq_lxsr.modules.sizes import TransformerConfig
    from fairseq_lxsr.modules.tlaser import TLaserConfig, TLaserSentenceEncoder
    from fairseq_lxsr.modules.transformer import ReconstructionHead, TransformerSentenceEncoder

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
# The names that each module defines.
_MODULES = {
    "laser": ("LaserConfig", "LaserSentenceEncoder"),
    "network": ("SentenceNetwork", "all_networks"),
    "pooling": ("max_pool", "mean_max_pool", "mean_pool"),
    "sizes": ("TransformerConfig",),
    "tlaser": ("TLaserConfig", "TLaserSentenceEncoder"),
    "transformer": ("ReconstructionHead", "TransformerSentenceEncoder"),
}
__getattr__ = lazy_getattr(__name__, _MODULES)
