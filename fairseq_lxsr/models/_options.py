"""Options that several models share, and named sizes."""

from dataclasses import dataclass, field
from typing import Any

from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model_architecture
from omegaconf import II, DictConfig, open_dict

from fairseq_lxsr.modules.cpu import CPU_PRECISIONS


@dataclass
class EncoderOptions(FairseqDataclass):
    dropout: float = field(default=0.1, metadata={"help": "dropout probability of embeddings and layers"})
    cpu_precision: ChoiceEnum(CPU_PRECISIONS) = field(  # type: ignore[valid-type]
        default="float32",
        metadata={
            "help": "precision of the matrix products on a CPU; bfloat16 is up to twice as fast where the CPU has "
            "instructions for it, auto takes it there and float32 elsewhere; on CUDA use "
            "--fp16, --bf16 or --amp"
        },
    )


@dataclass
class TransformerOptions(EncoderOptions):
    encoder_embed_dim: int = field(default=512, metadata={"help": "width D of the states, in units"})
    encoder_ffn_embed_dim: int = field(default=1024, metadata={"help": "width of the feed-forward blocks, in units"})
    encoder_attention_heads: int = field(default=8, metadata={"help": "number of attention heads"})
    encoder_layers: int = field(default=2, metadata={"help": "number of transformer layers"})
    attention_dropout: float = field(default=0.0, metadata={"help": "dropout probability of the attention weights"})
    activation_dropout: float = field(
        default=0.0, metadata={"help": "dropout probability inside the feed-forward blocks"}
    )
    max_positions: int = II("task.max_positions")


def transformer_sizes(cfg: TransformerOptions, dictionary: Dictionary) -> dict[str, Any]:
    """Fields that the configs of our transformer encoders share."""
    return {
        "vocab_size": len(dictionary),
        "padding_idx": dictionary.pad(),
        "embed_dim": cfg.encoder_embed_dim,
        "ffn_embed_dim": cfg.encoder_ffn_embed_dim,
        "num_heads": cfg.encoder_attention_heads,
        "num_layers": cfg.encoder_layers,
        "max_positions": cfg.max_positions,
        "dropout": cfg.dropout,
        "attention_dropout": cfg.attention_dropout,
        "activation_dropout": cfg.activation_dropout,
    }


def register_presets(model: str, presets: dict[str, dict[str, Any]]) -> None:
    """Make `--arch NAME` stand for option values of `model`; options given on the command line win."""
    for arch, preset in presets.items():
        _register_preset(model, arch, preset)


def _register_preset(model: str, arch: str, preset: dict[str, Any]) -> None:
    @register_model_architecture(model, arch)
    def fill_in(cfg) -> None:
        if isinstance(cfg, DictConfig):
            with open_dict(cfg):
                cfg.update({name: value for name, value in preset.items() if name not in cfg})
        else:
            for name, value in preset.items():
                vars(cfg).setdefault(name, value)
