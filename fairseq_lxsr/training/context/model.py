"""fairseq model `context_transformer`, which scores how well a sentence matches its context."""

from dataclasses import dataclass
from typing import Optional

from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from omegaconf import II
from torch import Tensor, nn

from fairseq_lxsr import losses
from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.modules.cpu import cpu_autocast, cpu_autocast_dtype
from fairseq_lxsr.modules.pooling import POOLINGS
from fairseq_lxsr.modules.sizes import LAYERS, WIDTH
from fairseq_lxsr.options import option
from fairseq_lxsr.training.criterion import SummedCriterion, log_means
from fairseq_lxsr.training.model_options import (
    TransformerOptions,
    initialize_branches,
    register_presets,
    transformer_preset,
    transformer_sizes,
)

# Wang et al. use three layers of width 512 with 8 heads, but do not give the feed-forward width.
CONTEXT_PRESETS = {
    "context_transformer_base": transformer_preset(512, 2048, 8, layers=3),
    "context_transformer_small": transformer_preset(256, 512, 4, layers=3),
    # A preset without layers, for small corpora. examples/context compares the pooling methods.
    "context_transformer_static": transformer_preset(256, 512, 4, layers=0),
    "context_transformer_static_mean": transformer_preset(256, 512, 4, layers=0)
    | {"pooling": "mean"},
    "context_transformer_tiny": transformer_preset(32, 64, 2, layers=1),
}


@dataclass
class ContextTransformerConfig(TransformerOptions):
    encoder_ffn_embed_dim: int = option("width of the feed-forward layers", 2048, WIDTH)
    encoder_layers: int = option("number of transformer layers", 3, LAYERS)
    pooling: ChoiceEnum(tuple(POOLINGS)) = option(  # type: ignore[valid-type]
        "pooling of token states into sentence embeddings: mean and maximum (mean_max), or mean",
        "mean_max",
    )


@register_model("context_transformer", dataclass=ContextTransformerConfig)
class ContextTransformerModel(BaseFairseqModel):
    """A sentence encoder with a linear layer that scores a sentence in its context.

    The score is a logit in stage 1 and a cosine in stage 2, which starts from the weights of
    stage 1.

    Args:
        config: encoder sizes.
        cpu_precision: precision of matrix products on a CPU.
    """

    def __init__(self, config: TransformerConfig, cpu_precision: str = "float32"):
        super().__init__()
        self.encoder = TransformerSentenceEncoder(config)
        self.score = nn.Linear(config.output_dim, 1)
        self.cpu_dtype = cpu_autocast_dtype(cpu_precision)

    @classmethod
    def build_model(cls, cfg: ContextTransformerConfig, task) -> "ContextTransformerModel":
        sizes = transformer_sizes(cfg, task.source_dictionary)
        config = TransformerConfig(**sizes, pooling=str(cfg.pooling))
        model = cls(config, cfg.cpu_precision)
        initialize_branches(model.encoder.layers, cfg)
        return model

    def max_positions(self) -> int:
        return self.encoder.config.max_positions

    def forward(self, tokens: Tensor) -> Tensor:
        """Score sentences in their contexts.

        Args:
            tokens: ids of the sentences in their contexts [B, T].

        Returns:
            Scores [B].
        """
        with cpu_autocast(self.cpu_dtype, tokens):
            [(embeddings, _)] = self.encoder(tokens)
            return self.score(embeddings).squeeze(1)


register_presets("context_transformer", CONTEXT_PRESETS)


@dataclass
class SentContextLossConfig(FairseqDataclass):
    mined: Optional[str] = II("task.mined")


@register_criterion("sent_context_loss", dataclass=SentContextLossConfig)
class SentContextLoss(SummedCriterion):
    """Criterion: binary cross-entropy in nats (stage 1) or squared error (stage 2), per sample."""

    def __init__(self, cfg: SentContextLossConfig, task):
        super().__init__(task)
        self.classifies = cfg.mined is None
        # Metrics that --best-checkpoint-metric accepts.
        self.metrics = ("loss", "accuracy") if self.classifies else ("loss",)

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Compute the loss of a batch without waiting for the device.

        Returns:
            The loss, summed over the samples; the number of samples; and the values to log.
        """
        scores = model(**sample["net_input"])
        labels = sample["label"]
        num_samples = sample["nsentences"]
        if self.classifies:
            loss = losses.context_classification_loss(scores, labels)
        else:
            loss = losses.coherence_regression_loss(scores, labels)
        logged = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": num_samples,
            "sample_size": num_samples,
        }
        if self.classifies:
            logged["accuracy"] = scores.detach().gt(0).eq(labels.gt(0)).sum()
        return loss, num_samples, logged

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        """Log means per sample over all workers and batches."""
        log_means(logging_outputs, {"loss": "sample_size", "accuracy": "sample_size"})
