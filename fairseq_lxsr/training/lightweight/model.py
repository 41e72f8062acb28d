"""fairseq model `lxsr`, the lightweight model, and its presets for `--arch`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.modules.cpu import cpu_autocast, cpu_autocast_dtype
from fairseq_lxsr.modules.sizes import EPSILON, LAYER_NORM_EPS
from fairseq_lxsr.options import at_least, option
from fairseq_lxsr.training.lightweight.terms import Batch, Encoded, Term
from fairseq_lxsr.training.model_options import (
    INIT_WEIGHTS,
    TransformerOptions,
    initialize_branches,
    register_presets,
    transformer_preset,
    transformer_sizes,
)

# Mao et al. 2021 use two layers of width 512; the other presets are variants.
LXSR_PRESETS = {
    "lxsr_base": transformer_preset(512, 1024, 8, layers=2),
    "lxsr_static": transformer_preset(512, 1024, 8, layers=0),
    "lxsr_1layer": transformer_preset(512, 1024, 8, layers=1),
    "lxsr_3layers": transformer_preset(512, 1024, 8, layers=3),
    "lxsr_4layers": transformer_preset(512, 1024, 8, layers=4),
    "lxsr_6layers": transformer_preset(512, 1024, 8, layers=6),
    "lxsr_small": transformer_preset(256, 512, 4, layers=2),
    # For small corpora and short training: token embeddings with word order, but no layers
    # (benchmarks/notebook/results.md).
    "lxsr_best": transformer_preset(512, 1024, 8, layers=0)
    | {"gated": True, "order_coefficients": 1, "dropout": 0.0},
    "lxsr_tiny": transformer_preset(32, 64, 2, layers=2),
}

# Name prefix of the encoder weights; all other weights belong to the heads.
ENCODER = "encoder."


@dataclass
class LxsrModelConfig(TransformerOptions):
    gated: bool = option(
        "start as a mean of token embeddings; layers contribute through gates that are "
        "initially zero, so --finetune-from-model also accepts a model with fewer layers",
        False,
    )
    order_coefficients: int = option(
        "number of cosine (DCT) coefficients over the token positions to add to mean pooling, each "
        "with learnt weights per dimension (initially zero); models word order at almost no "
        "cost",
        0,
        at_least(0, 16),
    )
    layer_norm_eps: float = option(
        "epsilon added to the variance in every LayerNorm; the released code uses 1e-12",
        LAYER_NORM_EPS,
        EPSILON,
    )
    init_weights: ChoiceEnum(INIT_WEIGHTS) = option(  # type: ignore[valid-type]
        "weight initialization: scaled (embeddings with standard deviation D^-0.5, Xavier "
        "matrices), released (as in the released code: embeddings from N(0, 1), matrices and "
        "biases uniform in ±fan_in^-0.5 and identical in all layers; does not support --gated)",
        "scaled",
    )


@register_model("lxsr", dataclass=LxsrModelConfig)
class LxsrModel(BaseFairseqModel):
    """Encodes both sides of a batch, and applies the heads of the loss terms.

    It contains only weights that its losses use, because training on several GPUs waits for the
    gradient of every weight. A model with another encoder is a subclass.

    Args:
        encoder: network that encodes several batches at once: `embed(*tokens)` returns [B, E] for
            each batch, `forward(*tokens)` also returns the states [B, T, D].
        terms: loss terms; terms with weight 0 are ignored.
        cpu_precision: float32, or bfloat16 for faster training on a CPU.
    """

    def __init__(self, encoder: Any, terms: Sequence[Term] = (), cpu_precision: str = "float32"):
        super().__init__()
        self.encoder = encoder
        self.terms = [term for term in terms if term.weight]
        for term in self.terms:
            for name, module in term.heads(encoder.config).items():
                self.add_module(name, module)
        self.cpu_dtype = cpu_autocast_dtype(cpu_precision)

    @classmethod
    def build_model(cls, cfg: LxsrModelConfig, task) -> "LxsrModel":
        released = cfg.init_weights == "released"
        if released and cfg.gated:
            raise InputError(
                "--init-weights released does not support --gated, which scales the embeddings; "
                "use --init-weights scaled"
            )
        sizes = transformer_sizes(cfg, task.source_dictionary)
        sizes |= {
            "gated": cfg.gated,
            "order_coefficients": cfg.order_coefficients,
            "layer_norm_eps": cfg.layer_norm_eps,
        }
        encoder = TransformerSentenceEncoder(TransformerConfig(**sizes))
        if released:
            encoder.reset_as_released()
        initialize_branches(encoder.layers, cfg)
        return cls(encoder, task.terms, cfg.cpu_precision)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Adapt a checkpoint to this model, in place.

        Heads and `grown` weights that are missing in the checkpoint keep their initial values.
        Heads that this model does not have are dropped.
        """
        initial = self.state_dict()
        grown = tuple(ENCODER + part for part in self.encoder.grown)
        for key, value in initial.items():
            if key.startswith(grown) or not key.startswith(ENCODER):
                state_dict.setdefault(key, value)
        for key in list(state_dict):
            if not key.startswith(ENCODER) and key not in initial:
                del state_dict[key]

    def max_positions(self) -> int:
        return self.encoder.config.max_positions

    def forward(self, batch: Batch) -> Encoded:
        """Encode all fields of `net_input` in one pass, and apply the heads."""
        names, tokens = zip(*batch["net_input"].items(), strict=True)
        with cpu_autocast(self.cpu_dtype, tokens[0]):
            if any(term.needs_states for term in self.terms):
                embeddings, states = zip(*self.encoder(*tokens), strict=True)
            else:
                embeddings = tuple(self.encoder.embed(*tokens))
                states = ()
            encoded = Encoded(
                embeddings=dict(zip(names, embeddings, strict=True)),
                states=dict(zip(names, states, strict=False)),
                outputs={},
            )
            for term in self.terms:
                output = term.output(self, encoded, batch)
                if output is not None:
                    encoded["outputs"][term.name] = output
        return encoded


register_presets("lxsr", LXSR_PRESETS)
