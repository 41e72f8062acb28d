"""Options that several models share, and named sizes."""

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY, register_model_architecture
from hydra.core.config_store import ConfigStore
from omegaconf import II

from fairseq_lxsr.modules.cpu import CPU_PRECISIONS
from fairseq_lxsr.modules.sizes import LAYERS, PROBABILITY, WIDTH

INIT_WEIGHTS = ("scaled", "released")


@dataclass
class EncoderOptions(FairseqDataclass):
    dropout: float = field(
        default=0.1, metadata={"help": "dropout probability of embeddings and layers", "range": PROBABILITY}
    )
    cpu_precision: ChoiceEnum(CPU_PRECISIONS) = field(  # type: ignore[valid-type]
        default="float32",
        metadata={
            "help": "precision of the matrix products on a CPU; bfloat16 is up to twice as fast where the CPU has "
            "instructions for it, auto takes it there and float32 elsewhere; on CUDA use --fp16 or --amp"
        },
    )


@dataclass
class TransformerOptions(EncoderOptions):
    encoder_embed_dim: int = field(default=512, metadata={"help": "width D of the states, in units", "range": WIDTH})
    encoder_ffn_embed_dim: int = field(
        default=1024, metadata={"help": "width of the feed-forward blocks, in units", "range": WIDTH}
    )
    encoder_attention_heads: int = field(default=8, metadata={"help": "number of attention heads", "range": WIDTH})
    encoder_layers: int = field(default=2, metadata={"help": "number of transformer layers", "range": LAYERS})
    attention_dropout: float = field(
        default=0.0, metadata={"help": "dropout probability of the attention weights", "range": PROBABILITY}
    )
    max_positions: int = II("task.max_positions")


def transformer_sizes(cfg: TransformerOptions, dictionary: Dictionary) -> dict[str, Any]:
    """Fill the fields that the configs of our transformer encoders share."""
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


def register_presets(model: str, presets: dict[str, dict[str, Any]]) -> None:
    """Make `--arch NAME` stand for option values of `model`; options on the command line take precedence."""
    for arch, preset in presets.items():
        _register_preset(model, arch, preset)


def _register_preset(model: str, arch: str, preset: dict[str, Any]) -> None:
    @register_model_architecture(model, arch)
    def fill_in(cfg) -> None:
        """Set missing options; fairseq-train calls this with its options as a Namespace."""
        for name, value in preset.items():
            vars(cfg).setdefault(name, value)

    # fairseq-hydra-train reads defaults from dataclasses only, and finds them by the name of the model
    config = preset_config(MODEL_DATACLASS_REGISTRY[model], arch, preset)
    MODEL_DATACLASS_REGISTRY[arch] = config
    ARCH_MODEL_NAME_REGISTRY[arch] = arch
    ConfigStore.instance().store(name=arch, group="model", node=config(_name=arch), provider="fairseq")


def preset_config(config: type, arch: str, preset: dict[str, Any]) -> type:
    """Derive a dataclass from `config` with other defaults."""
    declared = {item.name: item for item in fields(config)}
    changed = [
        (name, declared[name].type, field(default=value, metadata=declared[name].metadata))
        for name, value in preset.items()
    ]
    return make_dataclass(f"{config.__name__}_{arch}", changed, bases=(config,))
