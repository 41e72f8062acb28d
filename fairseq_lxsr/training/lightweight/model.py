"""fairseq model `lxsr`, the lightweight model, and its named sizes, the values of `--arch`."""

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
    register_presets,
    sizes,
    transformer_sizes,
)

# Mao et al. 2021: two layers of width 512; the other presets vary it. `static` has no layers.
LXSR_PRESETS = {
    "lxsr_base": sizes(512, 1024, 8, layers=2),
    "lxsr_static": sizes(512, 1024, 8, layers=0),
    "lxsr_1layer": sizes(512, 1024, 8, layers=1),
    "lxsr_3layers": sizes(512, 1024, 8, layers=3),
    "lxsr_4layers": sizes(512, 1024, 8, layers=4),
    "lxsr_6layers": sizes(512, 1024, 8, layers=6),
    "lxsr_small": sizes(256, 512, 4, layers=2),
    # no layers, plain embeddings and the order of words: for little text and time
    # (benchmarks/notebook/results.md)
    "lxsr_best": sizes(512, 1024, 8, layers=0)
    | {"gated": True, "order_coefficients": 1, "dropout": 0.0},
    "lxsr_tiny": sizes(32, 64, 2, layers=2),
}

ENCODER = "encoder."  # prefix of the encoder's weights; all others belong to the heads


@dataclass
class LxsrModelConfig(TransformerOptions):
    gated: bool = option(
        "start as the mean of plain embeddings; layers add to them through gates that are zero at first. "
        "--finetune-from-model takes a model of fewer layers then",
        False,
    )
    order_coefficients: int = option(
        "add to the mean so many cosine coefficients of the states over the sentence, each unit weighted "
        "(learnt, zero at first): the order of words for next to no time",
        0,
        at_least(0, 16),
    )
    layer_norm_eps: float = option(
        "added to the variance in every LayerNorm; the released code has 1e-12",
        LAYER_NORM_EPS,
        EPSILON,
    )
    init_weights: ChoiceEnum(INIT_WEIGHTS) = option(  # type: ignore[valid-type]
        "initial weights: scaled, embeddings of standard deviation D^-0.5 and Xavier matrices; or those of "
        "the released code, embeddings N(0, 1), matrices and biases uniform in +-fan_in^-0.5, all layers alike; "
        "not with --gated",
        "scaled",
    )


@register_model("lxsr", dataclass=LxsrModelConfig)
class LxsrModel(BaseFairseqModel):
    """Encodes the sides of a batch of pairs, and applies the heads of the terms.

    It has only weights that its losses use, because several GPUs wait for the gradient of every
    weight. A model with another encoder is a sub-class.

    The encoder is a network that also encodes several batches at once: `embed(*tokens)` returns [B,
    E] for each, `forward(*tokens)` the states [B, T, D] beside them.
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
                "--init-weights released with --gated, which scales its embeddings; expected scaled"
            )
        sizes = transformer_sizes(cfg, task.source_dictionary)
        sizes |= {
            name: getattr(cfg, name) for name in ("gated", "order_coefficients", "layer_norm_eps")
        }
        encoder = TransformerSentenceEncoder(TransformerConfig(**sizes))
        if released:
            encoder.reset_as_released()
        return cls(encoder, task.terms, cfg.cpu_precision)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Adapt a checkpoint to this model: what it lacks of `grown` weights keeps its initial
        values.

        Missing heads keep their initial weights too, and heads that this model does not have are
        removed.
        """
        own = self.state_dict()
        grown = tuple(ENCODER + part for part in self.encoder.grown)
        for part, value in own.items():
            if part.startswith(grown) or not part.startswith(ENCODER):
                state_dict.setdefault(part, value)
        for part in [
            part for part in state_dict if not part.startswith(ENCODER) and part not in own
        ]:
            del state_dict[part]

    def max_positions(self) -> int:
        return self.encoder.config.max_positions

    def forward(self, batch: Batch) -> Encoded:
        """Encode all fields of `net_input` in one pass, and apply the heads."""
        names, tokens = zip(*batch["net_input"].items(), strict=True)
        with cpu_autocast(self.cpu_dtype, tokens[0]):
            if any(term.needs_states for term in self.terms):
                embeddings, states = zip(*self.encoder(*tokens), strict=True)
            else:
                embeddings, states = tuple(self.encoder.embed(*tokens)), ()
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
