"""fairseq model `tlaser`: a transformer encoder and one transformer decoder layer.

The sentence embedding is the state of a tag that precedes the sentence.
"""

from dataclasses import dataclass

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_lxsr.modules import TLaserConfig, TLaserSentenceEncoder
from fairseq_lxsr.modules.dropout import Dropout
from fairseq_lxsr.modules.sizes import PROBABILITY, SOME_LAYERS, WIDTH
from fairseq_lxsr.modules.tlaser import scaled_embedding, sinusoidal_positions
from fairseq_lxsr.options import option
from fairseq_lxsr.training.laser.translation import (
    EncoderOut,
    SentenceDecoder,
    SentenceTranslationModel,
    TranslationEncoder,
)
from fairseq_lxsr.training.model_options import (
    INIT_WEIGHTS,
    TransformerOptions,
    initialize_branches,
    register_presets,
    transformer_preset,
    transformer_sizes,
)

# Width of the language embeddings in Li and Mak 2020.
DECODER = {"decoder_lang_embed_dim": 32}
TLASER_PRESETS = {
    "tlaser_base": transformer_preset(1024, 4096, 16, layers=6) | DECODER,
    "tlaser_small": transformer_preset(256, 512, 4, layers=3) | DECODER,
    "tlaser_tiny": transformer_preset(32, 64, 2, layers=2) | DECODER,
}
LANGUAGE_AT = ("input", "memory")
# Standard deviation of BERT's initial weights.
BERT_STD = 0.02


@dataclass
class TLaserModelConfig(TransformerOptions):
    encoder_embed_dim: int = option("width of the embeddings and the decoder (D)", 1024, WIDTH)
    encoder_ffn_embed_dim: int = option("width of the feed-forward layers", 4096, WIDTH)
    encoder_attention_heads: int = option("number of attention heads", 16, WIDTH)
    encoder_layers: int = option("number of encoder layers", 6, SOME_LAYERS)
    decoder_lang_embed_dim: int = option("width of the language embeddings", 32, WIDTH)
    dropout: float = option("dropout probability for embeddings and layers", 0.3, PROBABILITY)
    encoder_append_eos: bool = option("add </s> after each sentence in the encoder input", False)
    decoder_lang_at: ChoiceEnum(LANGUAGE_AT) = option(  # type: ignore[valid-type]
        "where to add the target language embedding: input (to each decoder input piece) or memory "
        "(to the sentence embedding)",
        "input",
    )
    init_weights: ChoiceEnum(INIT_WEIGHTS) = option(  # type: ignore[valid-type]
        "weight initialization: scaled (Xavier matrices, embeddings with standard deviation "
        "D^-0.5), released (N(0, 0.02) except for the output projection, as in the released code)",
        "scaled",
    )


class TLaserDecoder(SentenceDecoder):
    """One decoder layer: causal self-attention, attention to the sentence embedding, feed-forward.

    If `decoder_lang_at` is `input`, the target language embedding is concatenated to each input
    embedding, and a matrix projects the result to width D. If it is `memory`, the target language
    embedding is concatenated to the sentence embedding, as in Li and Mak's code (transformer_lw.py,
    line 1516).

    Args:
        dictionary: fairseq dictionary.
        num_languages: number of target languages.
        cfg: model options.
    """

    positions: Tensor

    def __init__(self, dictionary: Dictionary, num_languages: int, cfg: TLaserModelConfig):
        super().__init__(dictionary)
        dim = cfg.encoder_embed_dim
        self.embed_dim = dim
        self.embed_tokens = scaled_embedding(len(dictionary), dim, dictionary.pad())
        self.embed_languages = nn.Embedding(num_languages, cfg.decoder_lang_embed_dim)
        # Initialize these embeddings like the token embeddings.
        nn.init.normal_(self.embed_languages.weight, std=dim**-0.5)
        self.language_in_memory = cfg.decoder_lang_at == "memory"
        if not self.language_in_memory:
            self.input_projection = nn.Linear(dim + cfg.decoder_lang_embed_dim, dim)
        self.num_positions = 1 + cfg.max_positions
        # A target may begin with BOS, so one additional position is needed.
        table = sinusoidal_positions(self.num_positions + 1, dim)
        self.register_buffer("positions", table, persistent=False)
        self.layer = TransformerDecoderLayerBase(_layer_config(cfg))
        self.layer_norm = nn.LayerNorm(dim)
        self.output_projection = nn.Linear(dim, len(dictionary), bias=False)
        nn.init.normal_(self.output_projection.weight, std=dim**-0.5)
        self.dropout = Dropout(cfg.dropout)

    def states(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, incremental_state: dict | None
    ) -> Tensor:
        positions = self.positions[: prev_output_tokens.shape[1]]
        future = None
        if incremental_state is not None:
            prev_output_tokens = prev_output_tokens[:, -1:]
            positions = positions[-1:]
        else:
            shape = (len(positions), len(positions))
            future = torch.full(shape, float("-inf"), device=positions.device).triu(1)
        language = self.embed_languages(encoder_out["target_language"])  # [B, L]
        memory = encoder_out["embedding"]  # [B, D]
        x = self.embed_tokens(prev_output_tokens)  # [B, T, D]
        if self.language_in_memory:
            memory = torch.cat((memory, language.to(memory.dtype)), dim=1)  # [B, D + L]
        else:
            x = self.input_projection(
                torch.cat((x, language[:, None].expand(-1, x.shape[1], -1)), dim=2)
            )
        x = self.dropout(x * self.embed_dim**0.5 + positions)
        x, *_ = self.layer(
            x.transpose(0, 1),  # [T, B, D]
            memory[None],  # [1, B, D or D + L]
            incremental_state=incremental_state,
            self_attn_mask=None if future is None else future.to(x.dtype),
        )
        return self.layer_norm(x.transpose(0, 1))

    def max_positions(self) -> int:
        return self.num_positions


def _layer_config(cfg: TLaserModelConfig) -> TransformerConfig:
    layer = TransformerConfig(dropout=cfg.dropout, attention_dropout=cfg.attention_dropout)
    layer.encoder.embed_dim = layer.decoder.embed_dim = cfg.encoder_embed_dim
    if cfg.decoder_lang_at == "memory":
        # Width of the vectors that cross-attention attends to.
        layer.encoder.embed_dim += cfg.decoder_lang_embed_dim
    layer.decoder.ffn_embed_dim = cfg.encoder_ffn_embed_dim
    layer.decoder.attention_heads = cfg.encoder_attention_heads
    layer.decoder.normalize_before = True
    return layer


@register_model("tlaser", dataclass=TLaserModelConfig)
class TLaserModel(SentenceTranslationModel):
    """T-LASER (Li and Mak 2020), or cT-LASER if the criterion has a distance constraint."""

    @classmethod
    def build_model(cls, cfg: TLaserModelConfig, task) -> "TLaserModel":
        dictionary = task.source_dictionary
        config = TLaserConfig(
            **transformer_sizes(cfg, dictionary), append_eos=cfg.encoder_append_eos
        )
        network = TLaserSentenceEncoder(config)
        decoder = TLaserDecoder(dictionary, len(task.languages), cfg)
        if cfg.init_weights == "released":
            _initialize_as_released(network, decoder)
        initialize_branches(network.layers, cfg)
        return cls(TranslationEncoder(dictionary, network), decoder, cfg.cpu_precision)


def _initialize_as_released(network: TLaserSentenceEncoder, decoder: TLaserDecoder) -> None:
    """Initialize all matrices like BERT, from N(0, 0.02), except the output projection.

    Li and Mak's code calls fairseq's init_bert_params (transformer_lw.py, line 400). It skips the
    output projection, which is a plain parameter there.
    """
    output = decoder.output_projection.weight.detach().clone()
    for part in (network, decoder):
        part.apply(_draw)
    nn.init.normal_(network.tag, std=BERT_STD)
    decoder.output_projection.weight.data.copy_(output)


def _draw(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=BERT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        nn.init.zeros_(module.weight[module.padding_idx])


register_presets("tlaser", TLASER_PRESETS)
