"""Dropout with fast random numbers on a CPU."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..options import Range, in_range

LEVELS = 2**16
PIECE = 2**19  # entries for each stream of random numbers
BLOCK = 256  # draws of 64 bits of each stream at a time
ONE = {dtype: torch.ones((), dtype=dtype).view(torch.uint16).item() for dtype in (torch.bfloat16, torch.float16)}


class Dropout(nn.Module):
    """Dropout in training: zero entries with probability p and divide the others by 1 - p, for any shape.

    torch's own dropout draws a double for every entry on a CPU, a quarter of a training step. Here four entries share
    64 bits of numpy's SFC64, seeded by one draw of torch's generator, so p is rounded to a multiple of 2^-16. Pieces of
    a large tensor have a stream each. On other devices and in compiled code it is torch's own.

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
        factors = np.empty(-(-x.numel() // 4) * 4, dtype)
        states = [np.random.SFC64((seed, first)).state["state"]["state"] for first in range(0, factors.size, PIECE)]
        whole = factors.size // PIECE
        for part, pieces in ((factors[: whole * PIECE], states[:whole]), (factors[whole * PIECE :], states[whole:])):
            if pieces:
                _drawing()(np.array(pieces), dropped, np.array([0, kept_as], dtype), part.reshape(len(pieces), -1))
        return torch.from_numpy(factors[: x.numel()]).view(x.shape)

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
def _drawing() -> Callable:
    """``_draw``, compiled; numba is imported by those alone who train with dropout on a CPU."""
    from ..compiled import compiled

    return compiled(_draw)


def _draw(states, dropped, values, out):
    """Draw rows of zeros and other values.

    All streams advance together, a block at a time, so that the processor works at several numbers at once. The numbers
    are those of numpy's SFC64.

    Args:
        states: states of the streams, uint64 (S,4).
        dropped: draws of 16 bits below it become zero.
        values: zero and the other value, in the dtype of out.
        out: rows (S,n), n a multiple of 4.
    """
    zero, other = values[0], values[1]
    one, eleven, three, up, down = np.uint64(1), np.uint64(11), np.uint64(3), np.uint64(24), np.uint64(40)
    a, b, c, counter = states[:, 0].copy(), states[:, 1].copy(), states[:, 2].copy(), states[:, 3].copy()
    drawn = np.empty((len(states), BLOCK), np.uint64)
    for first in range(0, out.shape[1], 4 * BLOCK):
        for i in range(BLOCK):
            for s in range(len(states)):
                x = a[s] + b[s] + counter[s]
                counter[s] += one
                a[s] = b[s] ^ (b[s] >> eleven)
                b[s] = c[s] + (c[s] << three)
                c[s] = (c[s] << up | c[s] >> down) + x
                drawn[s, i] = x
        for s in range(len(states)):
            quarters, part = drawn[s].view(np.uint16), out[s, first : first + 4 * BLOCK]
            for i in range(len(part)):
                part[i] = other if quarters[i] >= dropped else zero
