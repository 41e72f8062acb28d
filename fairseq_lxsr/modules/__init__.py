"""Neural network parts: torch only, no fairseq."""

from fairseq_lxsr.modules.heads import ReconstructionHead
from fairseq_lxsr.modules.pooling import mean_pool
from fairseq_lxsr.modules.transformer import TransformerConfig, TransformerSentenceEncoder

__all__ = ["ReconstructionHead", "TransformerConfig", "TransformerSentenceEncoder", "mean_pool"]
