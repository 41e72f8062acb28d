"""Linear layers whose weights are laid out once for the products of a CPU; for inference only."""

import platform

import torch
from torch import Tensor, nn

X86 = ("x86_64", "AMD64")  # where it was measured


class PackedLinear(nn.Module):
    """Works like the torch.nn.Linear on a CPU that it is made from, in a precision for which
    `can_pack`; no gradients.

    torch lays out bfloat16 weights for oneDNN anew at every call, and computes float32 with MKL,
    which is slow on AMD's processors. On one core with AVX-512 the products take 0.87 of the time
    in bfloat16, 0.78 in float32.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Compute x W^T + b: [..., I] -> [..., O]."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch and this processor compute packed layers in a precision."""
    operations = torch.ops.mkldnn
    known = all(
        hasattr(operations, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )
    if not known or platform.machine() not in X86 or not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16:
        return operations._is_mkldnn_bf16_supported()
    return dtype is torch.float32


def pack_linears(network: nn.Module) -> None:
    """Replace all linear layers of a network on a CPU by packed ones."""
    for module in network.modules():
        for name, child in module.named_children():
            # sub-classes have users that read their weights
            if type(child) is nn.Linear and can_pack(child.weight.dtype):
                setattr(module, name, PackedLinear(child))
