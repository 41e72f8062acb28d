"""fairseq optimizer `torch_adam`: PyTorch's fused Adam and AdamW, optionally with AMSGrad.

On a CPU, the update of fairseq's own `adam` (AdamW without AMSGrad) takes six times as long,
because each of its eight operations reads and writes all weights.
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

# Value of the attribute `param_group` of the encoder's token embeddings.
EMBEDDINGS = "embeddings"


@dataclass
class TorchAdamConfig(FairseqDataclass):
    """Options with the same names as in fairseq's `adam`; `checks.py` defines their ranges."""

    adam_betas: Any = option("decay rates of the first and second moment estimates", (0.9, 0.999))
    weight_decay: float = option(
        "weight decay factor: adds this multiple of the weights to their gradients (L2)", 0.0
    )
    decoupled_weight_decay: bool = option(
        "apply weight decay separately from the gradients: subtract weight decay x learning rate "
        "x weights in each update (AdamW)",
        False,
    )
    amsgrad: bool = option(
        "use the AMSGrad variant, which divides by the largest second moment so far", False
    )
    embed_lr_scale: float = option(
        "multiplier of the learning rate for the encoder's token embeddings, at every update of "
        "the schedule; with --fp16, requires --fp16-no-flatten-grads",
        1.0,
    )
    lr: list[float] = field(default=II("optimization.lr"))


@register_optimizer("torch_adam", dataclass=TorchAdamConfig)
class TorchAdam(FairseqOptimizer):
    """Makes torch.optim.Adam available as a fairseq optimizer.

    Source: Kingma and Ba 2015; AMSGrad: Reddi, Kale and Kumar 2018; AdamW: Loshchilov and Hutter
    2019.
    """

    def __init__(self, cfg: TorchAdamConfig, params: Any):
        super().__init__(cfg)
        groups = [{"params": list(params)}]
        if cfg.embed_lr_scale != 1:
            groups = separate_embeddings(groups[0]["params"])
            # For example, --fp16 joins all weights into one.
            if not groups[1]["params"]:
                raise InputError(
                    f"--embed-lr-scale {cfg.embed_lr_scale:g} requires token embeddings as "
                    "separate weights; with --fp16, add --fp16-no-flatten-grads, or use --amp"
                )
        self._optimizer = torch.optim.Adam(groups, **self.optimizer_config, fused=True)
        self.set_lr(cfg.lr[0])

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """Arguments for torch.optim.Adam. The betas have already been checked by `checks.py`."""
        betas = self.cfg.adam_betas
        if isinstance(betas, str):
            betas = ast.literal_eval(betas)
        return {
            "lr": self.cfg.lr[0],
            "betas": tuple(betas),
            "weight_decay": self.cfg.weight_decay,
            "amsgrad": self.cfg.amsgrad,
            "decoupled_weight_decay": self.cfg.decoupled_weight_decay,
        }

    def set_lr(self, lr: float) -> None:
        """Set the learning rate, and the multiple of it for the token embeddings."""
        super().set_lr(lr)
        for group in self.param_groups[1:]:
            group["lr"] = lr * self.cfg.embed_lr_scale

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Any = None) -> Tensor:
        """Clip the gradient norm (0 means no limit), and return the norm before clipping.

        On a GPU, fairseq launches two kernels per weight. This method launches a few kernels in
        total.
        """
        grads = [weight.grad for weight in self.params if weight.grad is not None]
        if aggregate_norm_fn or not all(grad.is_cuda for grad in grads) or not grads:
            return super().clip_grad_norm(max_norm, aggregate_norm_fn)
        norm = torch.nn.utils.get_total_norm([grad.float() for grad in grads], foreach=True)
        if max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self.params, max_norm, norm, foreach=True)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer state. Moments that are zero in most rows are packed.

        If a large embedding table is trained on little text, most rows of its moments are zero.
        Without packing, a checkpoint would be three times as large.
        """
        state = super().state_dict()
        packed = {}
        for number, moments in state["state"].items():
            packed[number] = {name: pack_rows(value) for name, value in moments.items()}
        return state | {"state": packed}

    def load_state_dict(
        self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None
    ) -> None:
        """Load only the moments and the learning rate from a checkpoint.

        Raises:
            InputError: if the checkpoint's AMSGrad setting, groups of weights or moment shapes do
                not match this run.
        """
        # Change the dict in place, because fairseq's 16-bit optimizers read the same dict again.
        for moments in state_dict["state"].values():
            for name, value in moments.items():
                moments[name] = unpack_rows(value)
        stored = state_dict["param_groups"]
        had_amsgrad = any(group["amsgrad"] for group in stored)
        _check_same("--amsgrad", had_amsgrad, self.cfg.amsgrad)
        _check_same("--embed-lr-scale", len(stored) > 1, len(self.param_groups) > 1)
        current = dict(self.optimizer_config)
        del current["lr"]
        super().load_state_dict(state_dict, current | (optimizer_overrides or {}))
        # The checkpoint may have another --embed-lr-scale.
        self.set_lr(self.get_lr())
        # The fused update does not check sizes. It would read past the end of moments that are too
        # small.
        for weights, state in self.optimizer.state.items():
            for value in state.values():
                if getattr(value, "shape", ()) not in ((), weights.shape):
                    raise InputError(
                        "--optimizer torch_adam: the checkpoint's moments and the weights differ "
                        "in shape; use --reset-optimizer"
                    )

    @property
    def supports_flat_params(self) -> bool:
        """Always True, because every weight is updated independently of the others."""
        return True


def separate_embeddings(weights: list[Tensor]) -> list[dict[str, list[Tensor]]]:
    """Return two groups of weights: all others, and the encoder's token embeddings."""
    embeddings = []
    network_weights = []
    for weight in weights:
        if getattr(weight, "param_group", None) == EMBEDDINGS:
            embeddings.append(weight)
        else:
            network_weights.append(weight)
    return [{"params": network_weights}, {"params": embeddings}]


def _check_same(option: str, stored: bool, current: bool) -> None:
    if stored != current:
        prepositions = {True: "with", False: "without"}
        raise InputError(
            f"--optimizer torch_adam: the checkpoint was trained {prepositions[stored]} {option}, "
            f"but this run is {prepositions[current]} it; use the same options, "
            "--reset-optimizer, or another --save-dir"
        )


def pack_rows(value: Any) -> Any:
    """Pack a matrix into its non-zero rows if most rows are zero; return other values unchanged."""
    if not isinstance(value, Tensor) or value.dim() != 2:
        return value
    rows = value.any(dim=1).nonzero()[:, 0]
    if 2 * len(rows) > len(value):
        return value
    return {"rows": rows, "values": value[rows], "length": len(value)}


def unpack_rows(value: Any) -> Any:
    """Unpack a matrix packed by `pack_rows`; return other values unchanged."""
    if not isinstance(value, dict):
        return value
    values = value["values"]
    matrix = values.new_zeros(value["length"], values.shape[1])
    matrix[value["rows"]] = values
    return matrix
