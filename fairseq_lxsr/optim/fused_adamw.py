"""fairseq optimizer `fused_adamw`: the arithmetic of `--optimizer adam`, one pass over memory instead of ten."""

from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II


@dataclass
class FusedAdamWConfig(FairseqDataclass):
    adam_betas: list[float] = field(
        default_factory=lambda: [0.9, 0.999], metadata={"help": "decay rates of the two moments, for example 0.9,0.98"}
    )
    adam_eps: float = field(default=1e-8, metadata={"help": "added to the root of the second moment"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled weight decay, per update and learning rate"})
    lr: list[float] = II("optimization.lr")


@register_optimizer("fused_adamw", dataclass=FusedAdamWConfig)
class FusedAdamW(FairseqOptimizer):
    """torch's fused AdamW (Loshchilov and Hutter 2019) on CPU and CUDA.

    fairseq's own Adam decays weights in the same decoupled way; on CPUs it is not fused, and with V 50k it takes as long
    as the forward pass.
    """

    def __init__(self, cfg: FusedAdamWConfig, params):
        super().__init__(cfg)
        self._optimizer = torch.optim.AdamW(params, fused=True, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict:
        """What a resumed run may override in the checkpoint."""
        return {
            "lr": self.cfg.lr[0],
            "betas": tuple(self.cfg.adam_betas),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }
