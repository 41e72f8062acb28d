"""Dropout that is also fast on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lxsr.modules.cpu import on_cpu

LEVELS = 2**16  # a drop is decided by 16 random bits
LEAST_INT64 = torch.iinfo(torch.int64).min


class Dropout(nn.Module):
    """Works like torch.nn.Dropout; on a CPU the probability is rounded to a multiple of 1/65,536.

    On a CPU torch draws a random number of 32 bits for each value, which takes 15 percent of a
    training step of T-LASER; 16 bits are enough, and one random number of 64 bits serves four
    values.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Set values of x, of any shape, to zero with probability p and scale the others by 1 / (1
        - p).
        """
        if not (self.training and self.p):
            return x
        dropped = round(self.p * LEVELS)
        if not on_cpu(x) or not 0 < dropped < LEVELS:
            return F.dropout(x, self.p)
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(
            LEAST_INT64, None
        )
        kept = bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - LEVELS // 2
        return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))
