"""Dropout whose random numbers cost no more than its arithmetic."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 2**16


class Dropout(nn.Module):
    """Zeroes entries with probability p while training and divides the others by what is kept: any shape -> the same.

    On a CPU torch's own draws a double for every entry, a quarter of a training step; here four entries share 64 bits
    of numpy's SFC64, which one draw of torch's generator seeds, so p is rounded to a multiple of 2^-16. Elsewhere, and
    compiled, it is torch's. Raises ValueError for p outside [0, 1].
    """

    def __init__(self, p: float):
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout must be between 0 and 1, not {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        return x * self._factors(x)

    @torch.no_grad()
    def _factors(self, x: Tensor) -> Tensor:
        dropped = round(self.p * LEVELS)
        if dropped == LEVELS:
            return torch.zeros_like(x)
        seed = int(torch.empty((), dtype=torch.int64).random_())
        draws = np.random.Generator(np.random.SFC64(seed)).integers(2**64, size=-(-x.numel() // 4), dtype=np.uint64)
        kept = draws.view(np.uint16)[: x.numel()] >= dropped  # numpy compares and converts 16 bits faster than torch
        wide = np.float64 if x.dtype == torch.float64 else np.float32
        factors = np.multiply(kept, LEVELS / (LEVELS - dropped), dtype=wide)
        return torch.from_numpy(factors).view(x.shape).to(x.dtype)

    def extra_repr(self) -> str:
        return f"p={self.p}"
