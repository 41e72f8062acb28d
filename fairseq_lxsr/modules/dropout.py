"""Dropout that is cheap on a CPU too."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 2**16  # a drop is decided by 16 random bits
SMALLEST = torch.iinfo(torch.int64).min


class Dropout(nn.Module):
    """As torch.nn.Dropout; on a CPU the probability is rounded to 1/65,536.

    torch draws a random number of 32 bits for each value there, 15 % of a training step of T-LASER; 16 bits are enough,
    and four of them come at a time.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape -> the same shape, values zero with probability p and the others scaled by 1 / (1 - p)."""
        if not (self.training and self.p):
            return x
        dropped = round(self.p * LEVELS)
        if x.is_cuda or not 0 < dropped < LEVELS:
            return F.dropout(x, self.p)
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(SMALLEST, None)
        kept = bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - LEVELS // 2
        return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}"
