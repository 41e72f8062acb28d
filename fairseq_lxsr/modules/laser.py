"""LASER's sentence encoder: bidirectional LSTM layers followed by max pooling."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lxsr.modules.cpu import cpu_has_bfloat16_lstm, on_cpu
from fairseq_lxsr.modules.dropout import Dropout
from fairseq_lxsr.modules.network import SentenceNetwork, stacked
from fairseq_lxsr.modules.pooling import max_pool
from fairseq_lxsr.modules.sizes import PROBABILITY, SOME_LAYERS, WIDTH, EncoderSize
from fairseq_lxsr.options import limited

Module = TypeVar("Module", bound=nn.Module)
# LASER draws its initial weights uniformly from ±0.1.
INIT = 0.1
# Special ids that are the same in every fairseq dictionary.
BOS_IDX = 0
EOS_IDX = 2


@dataclass(frozen=True)
class LaserConfig(EncoderSize):
    """Sizes of a `LaserSentenceEncoder`, and whether it adds BOS and EOS to each sentence.

    Sentence length is not limited.

    Example:
        >>> LaserConfig(vocab_size=50_000, padding_idx=1, num_layers=6).output_dim  # LASER_6
        1024
    """

    embed_dim: int = limited(320, WIDTH)
    hidden_size: int = limited(512, WIDTH)
    num_layers: int = limited(1, SOME_LAYERS)
    dropout: float = limited(0.1, PROBABILITY)
    prepend_bos: bool = False
    append_eos: bool = False

    @property
    def output_dim(self) -> int:
        """Embedding width: the states of both directions are concatenated."""
        return 2 * self.hidden_size

    @property
    def max_positions(self) -> None:
        """None, because sentence length is not limited."""
        return None


def with_eos(tokens: Tensor, padding_idx: int) -> Tensor:
    """Append EOS to each sentence: ids [B, T], padded at the end, become ids [B, T + 1]."""
    # [B, 1]
    lengths = tokens.ne(padding_idx).sum(dim=1, keepdim=True)
    return F.pad(tokens, (0, 1), value=padding_idx).scatter(1, lengths, EOS_IDX)


def uniform_(module: Module) -> Module:
    """Initialize all parameters of a module with LASER's distribution, and return the module."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -INIT, INIT)
    return module


class LSTM(nn.LSTM):
    """torch's LSTM, but always in float32 on CPUs without bfloat16 LSTM support."""

    def forward(self, x: Tensor, states: Any = None) -> Any:  # type: ignore[override]
        if not (on_cpu(x) and torch.is_autocast_enabled("cpu")) or cpu_has_bfloat16_lstm():
            return super().forward(x, states)
        with torch.autocast("cpu", enabled=False):
            if states is not None:
                states = tuple(state.float() for state in states)
            return super().forward(x.float(), states)


class BidirectionalLSTM(nn.Module):
    """Bidirectional LSTM layer with one LSTM per direction; both process padding after the text.

    Sequences therefore need no packing, which would take two to three times as long on a CPU.
    """

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__()
        self.ahead = uniform_(LSTM(input_size, hidden_size, batch_first=True))
        self.back = uniform_(LSTM(input_size, hidden_size, batch_first=True))

    def forward(self, x: Tensor, mirrored: Tensor) -> Tensor:
        """Compute the concatenated states of both directions, [B, T, 2H].

        Args:
            x: [B, T, E] inputs.
            mirrored: [B, T] position of the piece that the backward LSTM processes at each step.
        """
        ahead, _ = self.ahead(x)
        back, _ = self.back(torch.take_along_dim(x, mirrored[..., None], dim=1))
        return torch.cat((ahead, torch.take_along_dim(back, mirrored[..., None], dim=1)), dim=2)


class LaserSentenceEncoder(SentenceNetwork):
    """LASER's encoder: bidirectional LSTM layers and max pooling map ids to embeddings.

    Use it to compare with LASER, and for text of any length. It computes one step per piece, so
    `TLaserSentenceEncoder` trains faster and `TransformerSentenceEncoder` encodes faster.

    Source: Artetxe and Schwenk 2019, section 3; sizes of LASER_1 and LASER_6 from Li and Mak 2020,
    who did not train a five-layer model.

    Example:
        >>> encoder = LaserSentenceEncoder(LaserConfig(20, 1, embed_dim=8, hidden_size=4)).eval()
        >>> encoder(torch.tensor([[5, 6, 7], [5, 1, 1]])).shape  # 1 is padding
        torch.Size([2, 8])
    """

    name = "laser"
    Config = LaserConfig
    options: ClassVar[Mapping[str, str]] = {
        "hidden_size": "encoder_hidden_size",
        "num_layers": "encoder_layers",
        "prepend_bos": "encoder_prepend_bos",
        "append_eos": "encoder_append_eos",
    }
    # int8 is not listed, because LSTMs cannot be quantized.
    dtypes = ("float32", "bfloat16", "float16")

    def __init__(self, config: LaserConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = uniform_(
            nn.Embedding(config.vocab_size, config.embed_dim, config.padding_idx)
        )
        nn.init.zeros_(self.embed_tokens.weight[config.padding_idx])
        self.dropout = Dropout(config.dropout)
        sizes = [config.embed_dim] + [config.output_dim] * (config.num_layers - 1)
        self.layers = nn.ModuleList(BidirectionalLSTM(size, config.hidden_size) for size in sizes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [B, 2H] of ids [B, T], padded at the end with `padding_idx`."""
        if self.config.append_eos:
            tokens = with_eos(tokens, self.config.padding_idx)
        if self.config.prepend_bos:
            tokens = F.pad(tokens, (1, 0), value=BOS_IDX)
        # [B, T]
        is_token = tokens.ne(self.config.padding_idx)
        position = torch.arange(tokens.shape[1], device=tokens.device)
        # [B, T]
        from_end = is_token.sum(dim=1, keepdim=True) - 1 - position
        mirrored = torch.where(is_token, from_end, position)
        x = self.dropout(self.embed_tokens(tokens))
        for layer in self.layers:
            x = self.dropout(layer(x, mirrored))
        return max_pool(x, is_token)

    def forward_both(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of ids [B, S] and [C, T], encoded as one batch.

        An LSTM computes one step per position, so one joint batch needs fewer steps than two
        batches.
        """
        embeddings = self(stacked((source, target), self.config.padding_idx))
        u, v = embeddings.split((len(source), len(target)))
        return u, v
