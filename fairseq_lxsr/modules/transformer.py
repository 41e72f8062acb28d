"""The default sentence encoder: token embeddings, transformer layers, and pooling.

It does not use a language tag, BOS or EOS.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lxsr.modules.cpu import on_cpu
from fairseq_lxsr.modules.dropout import Dropout
from fairseq_lxsr.modules.network import SentenceNetwork, stacked
from fairseq_lxsr.modules.packing import BATCH_PIECES, Batches, FlatPieces, row_batches
from fairseq_lxsr.modules.pooling import POOLINGS, cosine_weights, order_weights
from fairseq_lxsr.modules.sizes import LAYER_NORM_EPS, TransformerConfig
from fairseq_lxsr.modules.weighted_sums import WeightedBags

# If a batch has more positions per word piece than this, a CPU groups its rows by length.
MUCH_PADDING = 1.5
# Number of rows per group.
GROUP_ROWS = 32


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor, dropout_p: float = 0.0
) -> Tensor:
    """Compute softmax(Q K^T / sqrt(D / H)) V, like `scaled_dot_product_attention`.

    For sentences of 10 to 50 pieces, the bfloat16 backward pass of torch's own CPU kernel takes 4
    times as long.
    """
    # [B, H, T, T]
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    weights = scores.masked_fill(~attn_mask, float("-inf")).softmax(dim=-1)
    return F.dropout(weights, dropout_p, training=dropout_p > 0) @ value


def attention_kernel(x: Tensor, training: bool):
    """Return the faster attention function for the device of x."""
    return plain_attention if training and on_cpu(x) else F.scaled_dot_product_attention


def scaled_embedding(vocab_size: int, embed_dim: int, padding_idx: int) -> nn.Embedding:
    """Return token embeddings with a standard deviation of D^-0.5.

    T-LASER and gated layers multiply the embeddings by D^0.5.
    """
    embedding = nn.Embedding(vocab_size, embed_dim, padding_idx)
    # With a standard deviation of 1, initial losses would be about 200 nats, softmax gradients
    # would be denormal numbers, and a CPU step would take 4 times as long.
    nn.init.normal_(embedding.weight, std=embed_dim**-0.5)
    nn.init.zeros_(embedding.weight[padding_idx])
    return embedding


class SelfAttention(nn.Module):
    """Multi-head self-attention with one joint projection for query, key and value."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.in_proj = nn.Linear(config.embed_dim, 3 * config.embed_dim)
        self.out_proj = nn.Linear(config.embed_dim, config.embed_dim)
        for part in self.in_proj.weight.chunk(3):
            nn.init.xavier_uniform_(part)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor, attends: Tensor) -> Tensor:
        """Return the attention output [B, T, D].

        Args:
            x: [B, T, D] states.
            attends: [B, 1, T or 1, T] bool, True for positions to attend to.
        """
        b, t, d = x.shape
        qkv = self.in_proj(x).view(b, t, 3, self.num_heads, d // self.num_heads)
        # each [B, H, T, D / H]
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        attention = attention_kernel(x, self.training)
        # [B, H, T, D / H]
        mixed = attention(query, key, value, attn_mask=attends, dropout_p=dropout)
        return self.out_proj(mixed.transpose(1, 2).reshape(b, t, d))


class LayerParts(nn.Module):
    """Common parts of transformer layers: self-attention, feed-forward and LayerNorms."""

    attention: ClassVar[type[nn.Module]] = SelfAttention

    def __init__(self, config: Any):
        super().__init__()
        self.self_attn = self.attention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.embed_dim, config.layer_norm_eps)
        self.fc1 = nn.Linear(config.embed_dim, config.ffn_embed_dim)
        self.fc2 = nn.Linear(config.ffn_embed_dim, config.embed_dim)
        self.final_layer_norm = nn.LayerNorm(config.embed_dim, config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)
        self.activation_dropout = Dropout(config.activation_dropout)
        for linear in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def zero_branches(self) -> None:
        """Set the last projection of both residual branches to zero."""
        projections: tuple[Any, ...] = (self.self_attn.out_proj, self.fc2)
        for projection in projections:
            nn.init.zeros_(projection.weight)
            nn.init.zeros_(projection.bias)


class TransformerLayer(LayerParts):
    """A transformer layer with LayerNorm after each residual sum (post-LayerNorm)."""

    def forward(self, x: Tensor, attends: Tensor) -> Tensor:
        """Return the new states [B, T, D]; for the arguments, see `SelfAttention`."""
        # Add in place, because allocating memory takes longer than adding.
        x = self.self_attn_layer_norm(self.dropout(self.self_attn(x, attends)).add_(x))
        # [B, T, F]; in place only without gradients, because the backward pass needs the input.
        hidden = self.activation_dropout(F.silu(self.fc1(x), inplace=not torch.is_grad_enabled()))
        return self.final_layer_norm(self.dropout(self.fc2(hidden)).add_(x))


class GatedLayer(LayerParts):
    """A pre-LayerNorm transformer layer in which gates scale the output of each sublayer.

    The gates are initially zero.

    Source: ReZero (Bachlechner et al. 2021), with one gate per dimension, as in LayerScale (Touvron
    et al. 2021).
    """

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.gates = nn.Parameter(torch.zeros(2, config.embed_dim))

    def zero_branches(self) -> None:
        """Set the last projections to zero, and the gates to one."""
        super().zero_branches()
        # If both were zero, neither would have a gradient.
        nn.init.ones_(self.gates)

    def forward(self, x: Tensor, attends: Tensor, positions: Tensor) -> Tensor:
        """Return the new states [B, T, D].

        Args:
            x: [B, T, D] states.
            attends: see `SelfAttention`.
            positions: [T, D] or [B, T, D] position embeddings.
        """
        attention, feed_forward = self.gates
        mixed = self.self_attn(self.self_attn_layer_norm(x) + positions, attends)
        x = x + attention * self.dropout(mixed)
        # [B, T, F]
        hidden = self.activation_dropout(F.silu(self.fc1(self.final_layer_norm(x))))
        return x + feed_forward * self.dropout(self.fc2(hidden))


class TransformerSentenceEncoder(SentenceNetwork):
    """Encoder that pools the last states of a few transformer layers, or the token embeddings.

    This is the lightweight model of Mao et al. 2021, section 3.1, with post-LayerNorm layers. With
    `gated`, training starts from the mean of the token embeddings, which improves retrieval after
    training on little text; without layers, encoding is as fast as a table lookup.

    Example:
        >>> config = TransformerConfig(20, 1, embed_dim=8, num_heads=2)
        >>> encoder = TransformerSentenceEncoder(config).eval()
        >>> ((embeddings, states),) = encoder(torch.tensor([[5, 6, 7], [5, 1, 1]]))  # 1 is padding
        >>> embeddings.shape, states.shape
        (torch.Size([2, 8]), torch.Size([2, 3, 8]))
    """

    name = "transformer"
    Config = TransformerConfig
    options: ClassVar[Mapping[str, str]] = {
        "ffn_embed_dim": "encoder_ffn_embed_dim",
        "num_heads": "encoder_attention_heads",
        "num_layers": "encoder_layers",
        "max_positions": "max_positions",
        "pooling": "pooling",
        "gated": "gated",
        "order_coefficients": "order_coefficients",
        "layer_norm_eps": "layer_norm_eps",
    }

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = scaled_embedding(
            config.vocab_size, config.embed_dim, config.padding_idx
        )
        if config.num_layers or not config.gated:
            self.embed_positions = nn.Embedding(config.max_positions, config.embed_dim)
            # Gated layers add positions to normalized states, whose standard deviation is 1.
            nn.init.normal_(
                self.embed_positions.weight, std=1 if config.gated else config.embed_dim**-0.5
            )
        if not config.gated:
            self.layer_norm = nn.LayerNorm(config.embed_dim, config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)
        layer = GatedLayer if config.gated else TransformerLayer
        self.layers = nn.ModuleList(layer(config) for _ in range(config.num_layers))
        if config.order_coefficients:
            # One weight per cosine coefficient and dimension, initially zero.
            self.order = nn.Parameter(torch.zeros(config.order_coefficients, config.embed_dim))

    def reset_as_released(self) -> None:
        """Draw initial weights from torch's defaults, like the released code of Mao et al. 2021.

        In that code (modeling/bertModel.py, lines 47, 65 and 224), all layers start as copies of
        one layer.
        """
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                module.reset_parameters()
        for layer in self.layers[1:]:
            layer.load_state_dict(self.layers[0].state_dict())

    @property
    def grown(self) -> tuple[str, ...]:
        """Name prefixes of weights that may be missing from a checkpoint, because they are
        initially zero."""
        return ("order", "layers.", "embed_positions.") if self.config.gated else ("order",)

    def forward(self, *batches: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Encode batches of sentences.

        Args:
            *batches (Tensor): ids [B, T], each padded at the end with `padding_idx`; T may differ
                between batches, and must not exceed `max_positions`.

        Returns:
            For each batch, the sentence embeddings [B, E], pooled from the last states of all real
            pieces, and these states [B, T, D].
        """
        if len(batches) > 1 and not on_cpu(batches[0]):
            return self._forward_together(batches)
        # All batches share one embedding lookup, because every lookup allocates a [V, D] gradient.
        looked_up = self.embed_tokens(torch.cat([tokens.flatten() for tokens in batches]))
        parts = looked_up.split([tokens.numel() for tokens in batches])
        return [
            self._encode(tokens, part.unflatten(0, tokens.shape))
            for tokens, part in zip(batches, parts, strict=True)
        ]

    def _forward_together(self, batches: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Run `forward` on several batches joined into one, padded to the longest sentence.

        On a GPU, kernel launches dominate small batches, and joining two batches halves the number
        of launches. On a CPU, the additional padding costs more time than joining saves.
        """
        tokens = stacked(batches, self.config.padding_idx)
        embeddings, states = self._encode(tokens, self.embed_tokens(tokens))
        sizes = [len(part) for part in batches]
        return [
            (pooled, rows[:, : part.shape[1]])
            for part, pooled, rows in zip(
                batches, embeddings.split(sizes), states.split(sizes), strict=True
            )
        ]

    def embed(self, *batches: Tensor) -> list[Tensor]:
        """Compute the sentence embeddings [B, E] of each batch, like `forward`, without the states.

        This is faster for encoders without layers, and for batches with much padding on a CPU.
        """
        if not self._is_bag and not self._has_much_padding(batches):
            return [pooled for pooled, _ in self(*batches)]
        # [R, T]
        tokens = stacked(batches, self.config.padding_idx)
        if self._is_bag:
            pooled = self._embed_bags(tokens)
        else:
            pooled = self._embed_by_length(tokens)
        return list(pooled.split([len(part) for part in batches]))

    def _has_much_padding(self, batches: Sequence[Tensor]) -> bool:
        """Return whether there is enough padding for grouping rows by length to be faster.

        This is always False on a GPU, because the host would have to wait for the result.
        """
        if not on_cpu(batches[0]):
            return False
        # Converting CPU tensors to NumPy does not copy them.
        pieces = sum(
            np.count_nonzero(tokens.numpy() != self.config.padding_idx) for tokens in batches
        )
        return sum(tokens.numel() for tokens in batches) > MUCH_PADDING * pieces

    def _embed_by_length(self, tokens: Tensor) -> Tensor:
        """Compute embeddings [R, E] of ids [R, T] in groups of similar length (CPU only)."""
        places = np.arange(1, tokens.shape[1] + 1)
        # [R]
        ends = ((tokens.numpy() != self.config.padding_idx) * places).max(axis=1)
        order = np.argsort(ends, kind="stable")
        parts = [order[start : start + GROUP_ROWS] for start in range(0, len(order), GROUP_ROWS)]
        groups = [tokens[torch.from_numpy(rows), : max(1, ends[rows[-1]])] for rows in parts]
        pooled = torch.cat([pooled for pooled, _ in self(*groups)])
        return pooled[torch.from_numpy(np.argsort(order))]

    def _embed_bags(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [R, E] of ids [R, T] as weighted sums of token embeddings."""
        padding = self.config.padding_idx
        table = self.embed_tokens.weight
        scale = self.config.embed_dim**0.5
        # [k + 1, R, T]
        weights = order_weights(tokens.ne(padding), self.config.order_coefficients).to(table.dtype)
        # All weights share one embedding lookup, because every lookup allocates a [V, D] gradient.
        if on_cpu(tokens) and table.dtype == torch.float32:
            order = table.new_empty(0, self.config.embed_dim)
            if self.config.order_coefficients:
                order = self.order
            # The weights are scaled, because they are fewer than the numbers of the embeddings.
            return WeightedBags.apply(table, order, tokens, scale * weights, padding)
        ids = tokens.repeat(len(weights), 1)
        factors = weights.flatten(0, 1)
        sums = F.embedding_bag(
            ids, table, mode="sum", per_sample_weights=factors, padding_idx=padding
        )
        return self._weigh(sums.unflatten(0, weights.shape[:2])) * scale

    def _weigh(self, coefficients: Tensor) -> Tensor:
        """Return the weighted sum [B, D] of the cosine coefficients [k + 1, B, D].

        The weights are learnt, except that of the first coefficient, the mean, which is always 1.
        """
        if not self.config.order_coefficients:
            return coefficients[0]
        return coefficients[0] + (self.order[:, None] * coefficients[1:]).sum(dim=0)

    @property
    def _is_bag(self) -> bool:
        """Whether an embedding is just a weighted sum of token embeddings."""
        return self.config.is_bag and not (self.training and self.config.dropout)

    def _encode(self, tokens: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        # [B, T]
        is_token = tokens.ne(self.config.padding_idx)
        # Padding in an empty sentence attends to itself; otherwise the softmax would be 0/0.
        attends = is_token[:, None, None, :] | ~is_token.any(dim=1)[:, None, None, None]
        x = self._states(embedded, attends, slice(tokens.shape[1]))
        if not self.config.order_coefficients:
            return POOLINGS[self.config.pooling](x, is_token), x
        weights = order_weights(is_token, self.config.order_coefficients)
        with torch.autocast(x.device.type, enabled=False):
            coefficients = torch.einsum("kbt,btd->kbd", weights, x.float())
        return self._weigh(coefficients).to(x.dtype), x

    def _states(self, embedded: Tensor, attends: Tensor, positions: Tensor | slice) -> Tensor:
        """Return the last states [B, T, D].

        Args:
            embedded: [B, T, D] token embeddings.
            attends: see `SelfAttention`.
            positions: position of each piece, [B, T], or a slice that applies to all sentences.
        """
        if not self.config.gated:
            x = self.dropout(self.layer_norm(embedded + self.embed_positions.weight[positions]))
            for layer in self.layers:
                x = layer(x, attends)
            return x
        x = self.dropout(embedded * self.config.embed_dim**0.5)
        for layer in self.layers:
            x = layer(x, attends, self.embed_positions.weight[positions])
        return x

    def batches(
        self, pieces: FlatPieces, batch_size: int, batch_pieces: int = BATCH_PIECES
    ) -> Batches:
        """Pack sentences into rows for `forward_rows`."""
        return row_batches(pieces, batch_size, self.config.padding_idx, batch_pieces)

    def embed_batch(self, *inputs: Tensor) -> Tensor:
        return self.forward_rows(*inputs)

    def embed_padded(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens)[0]

    def forward_rows(
        self, tokens: Tensor, positions: Tensor, sentence: Tensor, pieces: Tensor, starts: Tensor
    ) -> Tensor:
        """Return the embeddings that `forward` computes, float32 [S, E], for packed sentences.

        Args:
            tokens: [R, W] ids of the pieces.
            positions: [R, W] position of each piece in its sentence.
            sentence: [R, W] sentence index of each piece; at padding -1, or an index that no
                sentence uses.
            pieces: [P] index of each piece in the flattened rows, in the order of the sentences.
            starts: [S] index in `pieces` of the first piece of each sentence.
        """
        # [R, 1, W, W]
        attends = sentence[:, None, :, None] == sentence[:, None, None, :]
        x = self._states(self.embed_tokens(tokens), attends, positions)
        modes = self.config.pooling.split("_")
        states = x.flatten(0, 1).float()
        if not self.config.order_coefficients:
            return torch.cat(
                [F.embedding_bag(pieces, states, starts, mode=mode) for mode in modes], dim=1
            )
        # [S]
        lengths = torch.diff(F.pad(starts, (0, 1), value=len(pieces)))
        # Pass output_size, because the host would otherwise wait for the device to compute it.
        first, length = (
            part.repeat_interleave(lengths, output_size=len(pieces)) for part in (starts, lengths)
        )
        position = torch.arange(len(pieces), device=pieces.device) - first
        # [k + 1, P]
        weights = cosine_weights(position, length, self.config.order_coefficients)
        sums = [
            F.embedding_bag(pieces, states, starts, mode="sum", per_sample_weights=row)
            for row in weights
        ]
        return self._weigh(torch.stack(sums))


class ReconstructionHead(nn.Module):
    """Head for the generative losses: maps sentence or token states to vocabulary logits.

    The layers are Linear(E, D), swish, LayerNorm, and the tied token embeddings plus a bias. The
    sentence embedding is the input of the head, which is only used in training.

    Source: Mao et al. 2021, section 3.1; swish and LayerNorm are only in the released code
    (config.py, line 17; bertModel.py, lines 304 to 314).

    Example:
        >>> head, table = ReconstructionHead(8, 8, num_embeddings=20), torch.randn(20, 8)
        >>> head(torch.randn(2, 8), table).shape
        torch.Size([2, 20])
    """

    def __init__(
        self,
        input_dim: int,
        embed_dim: int,
        num_embeddings: int,
        layer_norm_eps: float = LAYER_NORM_EPS,
    ):
        super().__init__()
        self.dense = nn.Linear(input_dim, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim, layer_norm_eps)
        self.bias = nn.Parameter(self.dense.bias.new_zeros(num_embeddings))

    def forward(self, states: Tensor, embeddings: Tensor) -> Tensor:
        """Return the logits [R, V] of states [R, E]; token embeddings [V, D] are the last layer."""
        return F.linear(self.layer_norm(F.silu(self.dense(states))), embeddings, self.bias)
