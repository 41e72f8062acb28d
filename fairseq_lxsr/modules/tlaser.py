"""T-LASER's sentence encoder: a pre-LayerNorm transformer with a tag before each sentence.

The embedding is the last hidden state of the tag.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules.dropout import Dropout
from fairseq_lxsr.modules.laser import with_eos
from fairseq_lxsr.modules.network import SentenceNetwork
from fairseq_lxsr.modules.sizes import POSITIONS, PROBABILITY, SOME_LAYERS, WIDTH, EncoderSize
from fairseq_lxsr.modules.transformer import LayerParts, attention_kernel, scaled_embedding
from fairseq_lxsr.options import limited


@dataclass(frozen=True)
class TLaserConfig(EncoderSize):
    """Sizes of a `TLaserSentenceEncoder`, and whether it appends EOS to each sentence.

    `max_positions` excludes the tag and EOS.

    Raises:
        InputError: if a size is outside its range, or `embed_dim` is odd or not a multiple of
            `num_heads`.

    Example:
        >>> TLaserConfig(vocab_size=50_000, padding_idx=1).output_dim
        1024
    """

    embed_dim: int = limited(1024, WIDTH)
    ffn_embed_dim: int = limited(4096, WIDTH)
    num_heads: int = limited(16, WIDTH)
    num_layers: int = limited(6, SOME_LAYERS)
    max_positions: int = limited(750, POSITIONS)
    dropout: float = limited(0.1, PROBABILITY)
    attention_dropout: float = limited(0.0, PROBABILITY)
    activation_dropout: float = limited(0.0, PROBABILITY)
    append_eos: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.embed_dim % self.num_heads or self.embed_dim % 2:
            raise InputError(
                f"embed_dim {self.embed_dim} must be even and a multiple of num_heads "
                f"{self.num_heads}"
            )

    @property
    def output_dim(self) -> int:
        """Embedding width."""
        return self.embed_dim


def sinusoidal_positions(count: int, embed_dim: int) -> Tensor:
    """Compute the sinusoidal position embeddings of Vaswani et al. 2017, [count, D].

    The first half of the dimensions are sines, the second half cosines, with wavelengths from 2 pi
    to 20,000 pi.
    """
    table = torch.empty(count, embed_dim)
    # Skip meta tensors, for which sin() would import torch's compiler.
    if table.is_meta:
        return table
    frequencies = torch.exp(
        torch.arange(embed_dim // 2) * (-math.log(10_000) / max(1, embed_dim // 2 - 1))
    )
    angles = torch.arange(count)[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1)


class Attention(nn.Module):
    """Multi-head attention in which only the first positions are queries. They attend to all
    positions."""

    def __init__(self, config: TLaserConfig):
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.q_proj = nn.Linear(config.embed_dim, config.embed_dim)
        self.kv_proj = nn.Linear(config.embed_dim, 2 * config.embed_dim)
        self.out_proj = nn.Linear(config.embed_dim, config.embed_dim)
        for part in (self.q_proj.weight, *self.kv_proj.weight.chunk(2), self.out_proj.weight):
            nn.init.xavier_uniform_(part)
        for linear in (self.q_proj, self.kv_proj, self.out_proj):
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, num_queries: int, attends: Tensor) -> Tensor:
        """Return the attention output of the first Q positions, [B, Q, D].

        Args:
            x: [B, T, D] states.
            num_queries: number of query positions Q.
            attends: [B, 1, 1, T] bool, True for positions to attend to.
        """
        query = self._heads(self.q_proj(x[:, :num_queries]))
        key, value = (self._heads(part) for part in self.kv_proj(x).chunk(2, dim=-1))
        kernel = attention_kernel(x, self.training)
        mixed = kernel(
            query, key, value, attn_mask=attends, dropout_p=self.dropout if self.training else 0.0
        )
        return self.out_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        # [B, H, T, D / H]
        return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)


class PreNormLayer(LayerParts):
    """A transformer layer with LayerNorm before each sublayer (pre-LayerNorm), and ReLU."""

    attention = Attention

    def __init__(self, config: TLaserConfig):
        super().__init__(config)
        # Keep this order of the weights: checkpoints store the optimizer moments by position.
        for name in ("self_attn", "final_layer_norm", "fc1", "fc2"):
            self._modules[name] = self._modules.pop(name)

    def forward(self, x: Tensor, attends: Tensor, num_queries: int) -> Tensor:
        """Compute the new states of the first Q positions, [B, Q, D]; see `Attention` for the
        arguments."""
        mixed = self.self_attn(self.self_attn_layer_norm(x), num_queries, attends)
        x = x[:, :num_queries] + self.dropout(mixed)
        # [B, Q, F]
        hidden = self.activation_dropout(F.relu(self.fc1(self.final_layer_norm(x))))
        return x + self.dropout(self.fc2(hidden))


class TLaserSentenceEncoder(SentenceNetwork):
    """T-LASER's encoder: the last hidden state of a prepended tag is the sentence embedding.

    Use it for documents of up to hundreds of pieces, and to compare with T-LASER. It is about eight
    times larger than `TransformerSentenceEncoder`, which is better suited to sentences.

    Source: Li and Mak, "Transformer based Multilingual document Embedding model", 2020.

    Example:
        >>> sizes = {"embed_dim": 8, "ffn_embed_dim": 16, "num_heads": 2, "num_layers": 1}
        >>> encoder = TLaserSentenceEncoder(TLaserConfig(20, 1, **sizes)).eval()
        >>> encoder(torch.tensor([[5, 6, 7], [5, 1, 1]])).shape  # 1 is padding
        torch.Size([2, 8])
    """

    name = "tlaser"
    Config = TLaserConfig
    options: ClassVar[Mapping[str, str]] = {
        "ffn_embed_dim": "encoder_ffn_embed_dim",
        "num_heads": "encoder_attention_heads",
        "num_layers": "encoder_layers",
        "max_positions": "max_positions",
        "append_eos": "encoder_append_eos",
    }
    positions: Tensor

    def __init__(self, config: TLaserConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = scaled_embedding(
            config.vocab_size, config.embed_dim, config.padding_idx
        )
        # The tag (STR_TAG in the paper).
        self.tag = nn.Parameter(torch.randn(config.embed_dim) * config.embed_dim**-0.5)
        num_positions = 1 + config.max_positions + config.append_eos
        self.register_buffer(
            "positions", sinusoidal_positions(num_positions, config.embed_dim), persistent=False
        )
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(PreNormLayer(config) for _ in range(config.num_layers))
        self.layer_norm = nn.LayerNorm(config.embed_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [B, D] of ids [B, T], padded at the end with `padding_idx`."""
        if self.config.append_eos:
            tokens = with_eos(tokens, self.config.padding_idx)
        tag = self.tag.expand(len(tokens), 1, -1)
        # [B, 1 + T, D]
        x = torch.cat((tag, self.embed_tokens(tokens)), dim=1) * self.config.embed_dim**0.5
        x = self.dropout(x + self.positions[: x.shape[1]])
        # [B, 1, 1, 1 + T]
        attends = F.pad(tokens.ne(self.config.padding_idx), (1, 0), value=True)[:, None, None]
        for layer in self.layers[:-1]:
            x = layer(x, attends, num_queries=x.shape[1])
        return self.layer_norm(self.layers[-1](x, attends, num_queries=1)).squeeze(1)

    def forward_both(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of ids [B, S] and [C, T].

        The two are encoded separately: padding to a common width would only add computation.
        """
        return self(source), self(target)
