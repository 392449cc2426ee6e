"""Dropout whose random numbers cost no more than its arithmetic."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 2**16


class Dropout(nn.Module):
    """Zeroes entries with probability p while training and divides the others by what is kept: any shape -> the same.

    On a CPU torch's own draws a double for every entry, a quarter of a training step; here four entries share 64 random
    bits, so p is rounded to a multiple of 2^-16. Elsewhere it is torch's. Raises ValueError for p outside [0, 1].
    """

    def __init__(self, p: float):
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout must be between 0 and 1, not {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return x * self._factors(x)

    @torch.no_grad()
    def _factors(self, x: Tensor) -> Tensor:
        dropped = round(self.p * LEVELS)
        if dropped == LEVELS:
            return torch.zeros_like(x)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
        levels = draws.view(torch.int16)[: x.numel()].view(x.shape)  # uniform from -2^15 to 2^15 - 1
        return (levels >= dropped - LEVELS // 2).to(x.dtype).mul_(LEVELS / (LEVELS - dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}"
