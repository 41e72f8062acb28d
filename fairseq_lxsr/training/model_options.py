"""Options shared by several models, and presets of model sizes."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from typing import Any

from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import MODEL_DATACLASS_REGISTRY, register_model_architecture
from omegaconf import II

from fairseq_lxsr.modules.sizes import LAYERS, PROBABILITY, WIDTH
from fairseq_lxsr.options import CPU_PRECISIONS, option
from fairseq_lxsr.training.fairseq_patches import add_preset_to_hydra

INIT_WEIGHTS = ("scaled", "released")
INIT_BRANCHES = ("random", "zero")


@dataclass
class EncoderOptions(FairseqDataclass):
    dropout: float = option("dropout probability for embeddings and layers", 0.1, PROBABILITY)
    cpu_precision: ChoiceEnum(CPU_PRECISIONS) = option(  # type: ignore[valid-type]
        "precision of matrix multiplications on a CPU: bfloat16 is up to twice as fast if the "
        "CPU has instructions for it; auto measures both, and uses bfloat16 only if it is clearly "
        "faster; on a GPU, use --fp16 or --amp",
        "float32",
    )


@dataclass
class TransformerOptions(EncoderOptions):
    encoder_embed_dim: int = option("width of the hidden states (D)", 512, WIDTH)
    encoder_ffn_embed_dim: int = option("width of the feed-forward layers", 1024, WIDTH)
    encoder_attention_heads: int = option("number of attention heads", 8, WIDTH)
    encoder_layers: int = option("number of transformer layers", 2, LAYERS)
    attention_dropout: float = option("dropout probability for attention weights", 0.0, PROBABILITY)
    init_branches: ChoiceEnum(INIT_BRANCHES) = option(  # type: ignore[valid-type]
        "initial weights of the last projection of each residual branch of the encoder's layers "
        "(attention and feed-forward): random, or zero, so that a layer first passes its input on "
        "(with --gated, the gates are then initially one)",
        "random",
    )
    max_positions: int = II("task.max_positions")


def transformer_sizes(cfg: TransformerOptions, dictionary: Dictionary) -> dict[str, Any]:
    """Return the config fields shared by the transformer encoders of this package."""
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
    }


def initialize_branches(layers: Iterable[Any], cfg: TransformerOptions) -> None:
    """Apply --init-branches to the layers of a new encoder."""
    if cfg.init_branches == "zero":
        for layer in layers:
            layer.zero_branches()


def transformer_preset(
    embed_dim: int, ffn_embed_dim: int, attention_heads: int, layers: int
) -> dict[str, Any]:
    """Return the option values for a transformer preset."""
    return {
        "encoder_embed_dim": embed_dim,
        "encoder_ffn_embed_dim": ffn_embed_dim,
        "encoder_attention_heads": attention_heads,
        "encoder_layers": layers,
    }


def register_presets(model: str, presets: dict[str, dict[str, Any]]) -> None:
    """Register presets as values of `--arch`. Options on the command line take precedence.

    Args:
        model: name of the model.
        presets: maps preset names to option values.
    """
    for arch, preset in presets.items():
        register_model_architecture(model, arch)(partial(_fill_in, preset))
        add_preset_to_hydra(arch, preset_config(MODEL_DATACLASS_REGISTRY[model], arch, preset))


def _fill_in(preset: dict[str, Any], cfg: Any) -> None:
    """Fill in missing options in the Namespace that fairseq-train passes."""
    for name, value in preset.items():
        vars(cfg).setdefault(name, value)


def preset_config(config: type, arch: str, preset: dict[str, Any]) -> type:
    """Return a subclass of an options dataclass, with a preset's values as defaults."""
    declared = {item.name: item for item in fields(config)}
    changed = []
    for name, value in preset.items():
        default = field(default=value, metadata=declared[name].metadata)
        changed.append((name, declared[name].type, default))
    return make_dataclass(f"{config.__name__}_{arch}", changed, bases=(config,))
