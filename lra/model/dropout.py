"""Dropout with fast random numbers on a CPU."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..options import Range, in_range

LEVELS = 2**16
PIECE = 2**19  # entries for each stream of random numbers
ONE = {dtype: torch.ones((), dtype=dtype).view(torch.uint16).item() for dtype in (torch.bfloat16, torch.float16)}


class Dropout(nn.Module):
    """Dropout in training: zero entries with probability p and divide the others by 1 - p, for any shape.

    torch's own dropout draws a double for every entry on a CPU, a quarter of a training step. Here four entries share
    64 bits of numpy's SFC64, seeded by one draw of torch's generator, so p is rounded to a multiple of 2^-16. Large
    tensors are drawn in pieces by as many threads as torch has, whose number does not change the result. On other
    devices and in compiled code it is torch's own.

    Args:
        p: probability.
        tied: whether the positions of (N,L,d) share their zeros.

    Raises:
        ValueError: p is outside [0, 1].
    """

    def __init__(self, p: float, *, tied: bool = False):
        super().__init__()
        in_range("dropout", p, Range(0, 1))
        self.p, self.tied = p, tied

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        drawn = x[..., :1, :] if self.tied else x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return x * F.dropout(torch.ones_like(drawn), self.p) if self.tied else F.dropout(x, self.p)
        dropped = round(self.p * LEVELS)
        if dropped == LEVELS:
            return x * torch.zeros_like(drawn)
        scale = LEVELS / (LEVELS - dropped)
        if x.dtype in ONE:
            return _Scaled.apply(x, self._drawn(drawn, dropped, ONE[x.dtype], np.uint16).view(x.dtype), scale)
        return x * self._drawn(drawn, dropped, scale, np.float64 if x.dtype == torch.float64 else np.float32)

    @torch.no_grad()
    def _drawn(self, x: Tensor, dropped: int, kept_as: float, dtype: type) -> Tensor:
        """Draw a tensor of the shape of x: 0 with probability dropped / LEVELS, else ``kept_as``."""
        seed = int(torch.empty((), dtype=torch.int64).random_())
        factors = np.empty(x.numel(), dtype)

        def fill(first: int) -> None:
            part = factors[first : first + PIECE]
            stream = np.random.Generator(np.random.SFC64((seed, first)))
            draws = stream.integers(2**64, size=-(-part.size // 4), dtype=np.uint64)
            kept = draws.view(np.uint16)[: part.size] >= dropped  # numpy is faster than torch at 16 bits
            np.multiply(kept, kept_as, out=part, dtype=part.dtype)

        pieces = range(0, factors.size, PIECE)
        if len(pieces) > 1 and torch.get_num_threads() > 1:
            list(_threads(torch.get_num_threads()).map(fill, pieces))  # numpy works without Python's lock
        else:
            list(map(fill, pieces))
        return torch.from_numpy(factors).view(x.shape)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Scaled(torch.autograd.Function):
    """x · kept · scale with one rounding: 1 / (1 - p) itself, rounded to 16 bits, would be wrong by up to 2^-9."""

    @staticmethod
    def forward(ctx, x, kept, scale):
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return torch.addcmul(x.new_zeros(()), x, kept, value=scale)

    @staticmethod
    def backward(ctx, grad):
        (kept,) = ctx.saved_tensors
        return torch.addcmul(grad.new_zeros(()), grad, kept, value=ctx.scale), None, None


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)
