"""fairseq optimizer `torch_adam`: Adam and AdamW as in PyTorch, in its one-pass form, with AMSGrad.

fairseq's own `adam` is AdamW without AMSGrad; on a CPU its update takes six times as long, because
each of its eight operations reads and writes all weights.
"""

import ast
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II
from torch import Tensor

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import option


@dataclass
class TorchAdamConfig(FairseqDataclass):
    """Options with the names of fairseq's `adam`; `checks.py` has their ranges."""

    adam_betas: Any = option("decay rates of the two moments", (0.9, 0.999))
    weight_decay: float = option("share of the weights that is added to their gradient (L2)", 0.0)
    decoupled_weight_decay: bool = option(
        "take it off the weights at each update, times --lr (AdamW)", False
    )
    amsgrad: bool = option("divide by the largest second moment so far, not by the last", False)
    lr: list[float] = field(default=II("optimization.lr"))


@register_optimizer("torch_adam", dataclass=TorchAdamConfig)
class TorchAdam(FairseqOptimizer):
    """torch.optim.Adam (Kingma and Ba 2015; AMSGrad: Reddi, Kale and Kumar 2018; AdamW: Loshchilov
    and Hutter 2019).
    """

    def __init__(self, cfg: TorchAdamConfig, params: Any):
        super().__init__(cfg)
        self._optimizer = torch.optim.Adam(params, **self.optimizer_config, fused=True)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """Arguments of torch.optim.Adam; that the betas are two numbers was checked before."""
        betas = self.cfg.adam_betas
        return {
            "lr": self.cfg.lr[0],
            "betas": tuple(ast.literal_eval(betas) if isinstance(betas, str) else betas),
            "weight_decay": self.cfg.weight_decay,
            "amsgrad": self.cfg.amsgrad,
            "decoupled_weight_decay": self.cfg.decoupled_weight_decay,
        }

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Any = None) -> Tensor:
        """Limit the norm of the gradients, 0 for no limit, and return the norm before.

        On a GPU, fairseq launches two kernels for each weight; this launches a few for all weights.
        """
        grads = [weight.grad for weight in self.params if weight.grad is not None]
        if aggregate_norm_fn or not all(grad.is_cuda for grad in grads) or not grads:
            return super().clip_grad_norm(max_norm, aggregate_norm_fn)
        norm = torch.nn.utils.get_total_norm([grad.float() for grad in grads], foreach=True)
        if max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self.params, max_norm, norm, foreach=True)
        return norm

    def load_state_dict(
        self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None
    ) -> None:
        """Load the state of a checkpoint: moments and learning rate; all other options are as they
        are now.
        """
        kept = any(group["amsgrad"] for group in state_dict["param_groups"])
        if kept != self.cfg.amsgrad:
            with_or_without = {True: "with", False: "without"}
            raise InputError(
                f"--optimizer torch_adam of the checkpoint: {with_or_without[kept]} --amsgrad, and now "
                f"{with_or_without[not kept]}; give the same options, or --reset-optimizer, or another --save-dir"
            )
        now = {name: value for name, value in self.optimizer_config.items() if name != "lr"}
        super().load_state_dict(state_dict, now | (optimizer_overrides or {}))
        # the fused step would read beyond smaller moments
        for weights, state in self.optimizer.state.items():
            if any(
                getattr(value, "shape", ()) not in ((), weights.shape) for value in state.values()
            ):
                raise InputError(
                    "--optimizer torch_adam: its state has not the weights' sizes; give --reset-optimizer"
                )

    @property
    def supports_flat_params(self) -> bool:
        """Every weight is updated by itself, so that fairseq may join them into one tensor."""
        return True
