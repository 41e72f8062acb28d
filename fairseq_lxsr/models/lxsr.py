"""fairseq model `lxsr`: one encoder for both sides of a pair and the head of the generative losses."""

from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models import BaseFairseqModel, register_model
from omegaconf import II
from torch import Tensor, nn

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.models._options import TransformerOptions, register_presets, transformer_sizes
from fairseq_lxsr.modules import ReconstructionHead, TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.modules.cpu import cpu_autocast, cpu_autocast_dtype
from fairseq_lxsr.modules.pooling import POOLINGS

OF_LOSSES = ("head.", "projection.", "log_scale")  # weights that only some losses have

# Mao et al. 2021: two layers of width 512; the others vary one thing of it. `static` has no layer at all.
BASE: dict[str, Any] = {
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 1024,
    "encoder_attention_heads": 8,
    "encoder_layers": 2,
}
ARCHITECTURES = {
    "lxsr_base": BASE,
    "lxsr_static": BASE | {"encoder_layers": 0},
    "lxsr_1layer": BASE | {"encoder_layers": 1},
    "lxsr_3layers": BASE | {"encoder_layers": 3},
    "lxsr_4layers": BASE | {"encoder_layers": 4},
    "lxsr_6layers": BASE | {"encoder_layers": 6},
    "lxsr_small": BASE | {"encoder_embed_dim": 256, "encoder_ffn_embed_dim": 512, "encoder_attention_heads": 4},
    # no layer either, plain embeddings and the order of words: for little text and time (docs/results.md)
    "lxsr_best": BASE | {"encoder_layers": 0, "gated": True, "order_coefficients": 1, "dropout": 0.0},
    "lxsr_tiny": BASE | {"encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2},
}


@dataclass
class LxsrModelConfig(TransformerOptions):
    pooling: ChoiceEnum(tuple(POOLINGS)) = field(  # type: ignore[valid-type]
        default="mean",
        metadata={"help": "embedding of a sentence: mean of its states, or mean and maximum, twice as wide"},
    )
    gated: bool = field(
        default=False,
        metadata={
            "help": "start as the mean of plain embeddings; layers add to them through gates that are zero at first. "
            "--finetune-from-model takes a model of fewer layers then"
        },
    )
    order_coefficients: int = field(
        default=0,
        metadata={
            "help": "add to the mean so many cosine coefficients of the states over the sentence, each unit weighted "
            "(learnt, zero at first): the order of words for next to no time"
        },
    )
    learn_temperature: bool = field(
        default=False,
        metadata={"help": "learn the temperature of the align loss, starting at --align-temperature"},
    )
    gen_weight: float = II("criterion.gen_weight")
    distill_loss: str = II("criterion.distill_loss")
    distill_weight: float = II("criterion.distill_weight")


@register_model("lxsr", dataclass=LxsrModelConfig)
class LxsrModel(BaseFairseqModel):
    """Encodes the two sides of a batch of pairs; logits where a generative loss reads them.

    It has the weights that its losses use and no others: several GPUs wait for the gradient of every one.
    """

    def __init__(
        self,
        config: TransformerConfig,
        learn_temperature: bool = False,
        cpu_precision: str = "float32",
        teacher_dim: int | None = None,
        reconstructs: bool = True,
    ):
        super().__init__()
        self.encoder = TransformerSentenceEncoder(config)
        self.head = ReconstructionHead(config.output_dim, config.embed_dim, config.vocab_size) if reconstructs else None
        # log of 1 / temperature, relative to --align-temperature
        self.log_scale = nn.Parameter(torch.zeros(())) if learn_temperature else None
        # to the width of a teacher's embeddings; only distillation reads it
        self.projection = nn.Linear(config.output_dim, teacher_dim, bias=False) if teacher_dim else None
        self.cpu_dtype = cpu_autocast_dtype(cpu_precision)

    @classmethod
    def build_model(cls, cfg: LxsrModelConfig, task) -> "LxsrModel":
        sizes = transformer_sizes(cfg, task.source_dictionary)
        config = TransformerConfig(
            **sizes, pooling=str(cfg.pooling), gated=cfg.gated, order_coefficients=cfg.order_coefficients
        )
        if config.pooling != "mean" and task.cfg.objective == "mlm":
            raise InputError(
                f"--pooling {config.pooling} with --objective mlm, whose head reads single states; use mean"
            )
        projects = cfg.distill_weight != 0 and cfg.distill_loss != "similarity"
        reconstructs = cfg.gen_weight != 0 and task.cfg.objective != "none"
        teacher_dim = task.teacher_dim if projects else None
        return cls(config, cfg.learn_temperature, cfg.cpu_precision, teacher_dim, reconstructs)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Gated layers that a checkpoint does not have are as at the start: they change nothing.

        What only some losses have is as at the start too, and left out where it is not needed any more.
        """
        own = self.state_dict()
        grown = ("encoder.layers.", "encoder.embed_positions.") if self.encoder.config.gated else ()
        for part, value in own.items():
            if part.startswith((*grown, "encoder.order", *OF_LOSSES)):
                state_dict.setdefault(part, value)
        for part in [part for part in state_dict if part.startswith(OF_LOSSES) and part not in own]:
            del state_dict[part]

    def max_positions(self) -> int:
        return self.encoder.config.max_positions

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        negative: Tensor | None = None,
        predict: tuple[Tensor, Tensor] | None = None,
    ) -> dict[str, Tensor | None]:
        """Encode both sides.

        Args:
            source, target: [B, T], [B, T'] ids as the encoder reads them.
            negative: [B, T''] ids of one more sentence for each pair.
            predict: [K], [K'] places, in either side read as one row, of the tokens to predict from their own states;
                without them the head reads one sentence embedding per pass.
        Returns: embeddings `source`, `target`, `negative` [B, E], E = D or, with `mean_max` pooling, 2D; `logits`
            [2B, V] (source passes first) or [K + K', V]; `log_scale`, scalar; `student` [2B, E'], sources first, as
            wide as a teacher's; None for what was not asked for.
        """
        with cpu_autocast(self.cpu_dtype, source):
            extra = () if negative is None else (negative,)
            if predict is None:
                u, v, *more = inputs = self.encoder.embed(source, target, *extra)
            else:
                (u, v, *more), states = zip(*self.encoder(source, target, *extra), strict=True)
                inputs = [side.flatten(0, 1)[places] for side, places in zip(states, predict, strict=False)]
            student = None if self.projection is None else self.projection(torch.cat((u, v)))
            logits = None if self.head is None else self.head(torch.cat(inputs[:2]), self.encoder.embed_tokens.weight)
        embeddings = {"source": u, "target": v, "negative": more[0] if more else None}
        return {**embeddings, "logits": logits, "log_scale": self.log_scale, "student": student}


register_presets("lxsr", ARCHITECTURES)
