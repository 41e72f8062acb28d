"""Head of the generative losses, which maps a sentence (or token) state to logits over the vocabulary."""

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lxsr.modules.sizes import LAYER_NORM_EPS


class ReconstructionHead(nn.Module):
    """Linear(E, D), swish, LayerNorm, then the tied token embeddings plus a bias (Mao et al. 2021, section 3.1)."""

    def __init__(self, input_dim: int, embed_dim: int, num_embeddings: int, layer_norm_eps: float = LAYER_NORM_EPS):
        super().__init__()
        self.dense = nn.Linear(input_dim, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim, layer_norm_eps)
        self.bias = nn.Parameter(self.dense.bias.new_zeros(num_embeddings))

    def forward(self, states: Tensor, embeddings: Tensor) -> Tensor:
        """Map states [R, E] to logits [R, V]; embeddings: [V, D] of the tokens."""
        return F.linear(self.layer_norm(F.silu(self.dense(states))), embeddings, self.bias)
