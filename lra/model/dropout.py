"""Dropout with fast random numbers on a CPU."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# Probabilities are rounded to multiples of 1 / LEVELS: each entry gets 16 random bits.
LEVELS = 2**16
# Entries per stream of random numbers.
PIECE = 2**19
# Draws of 64 bits per stream at a time.
BLOCK = 256
# The bits of the number 1 in 16-bit formats.
ONE = {torch.bfloat16: 0x3F80, torch.float16: 0x3C00}


class Dropout(nn.Module):
    """Dropout in training: zero entries with probability p and divide the others by 1 - p, for any shape.

    On a CPU, torch's dropout draws a double for every entry and takes a quarter of a training step. Here four entries
    share 64 bits of numpy's SFC64, so p is rounded to a multiple of 2^-16. Other devices and code in torch.compile use
    torch's dropout.

    Args:
        p: probability.
        tied: whether the positions of a sequence share one mask; x is then (..., L, d).
    """

    def __init__(self, p: float, *, tied: bool = False):
        super().__init__()
        self.p = p
        self.tied = tied

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.training or self.p == 0:
            return x
        # A mask of one position is broadcast over all positions.
        template = x[..., :1, :] if self.tied else x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            if not self.tied:
                return F.dropout(x, self.p)
            mask = F.dropout(torch.ones_like(template), self.p)
            return x * mask

        threshold = round(self.p * LEVELS)
        if threshold == LEVELS:
            return x * torch.zeros_like(template)
        scale = LEVELS / (LEVELS - threshold)
        # In 16 bits the mask is 0 or 1, and _Scaled multiplies by the scale before it rounds.
        if x.dtype in ONE:
            bits = self._draw_mask(template, threshold, ONE[x.dtype], np.uint16)
            return _Scaled.apply(x, bits.view(x.dtype), scale)
        dtype = np.float64 if x.dtype == torch.float64 else np.float32
        mask = self._draw_mask(template, threshold, scale, dtype)
        return x * mask

    @torch.no_grad()
    def _draw_mask(self, x: Tensor, threshold: int, value: float, dtype: type) -> Tensor:
        """Draw a tensor of the shape of x: 0 with probability threshold / LEVELS, else ``value``."""
        # Streams: one draw of torch's generator, which was seeded from (seed, step, micro-batch, rank), is the seed of
        # this mask. Piece i of PIECE entries has its own SFC64, seeded from (seed of the mask, i PIECE): ``_draw``
        # advances these independent streams together.
        seed = int(torch.empty((), dtype=torch.int64).random_())
        # Four entries share a draw of 64 bits.
        size = math.ceil(x.numel() / 4) * 4
        states = []
        for first in range(0, size, PIECE):
            generator = np.random.SFC64((seed, first))
            states.append(generator.state["state"]["state"])

        # The full pieces are drawn together, then the shorter last one.
        mask: np.ndarray = np.empty(size, dtype)
        num_full = size // PIECE
        full_size = num_full * PIECE
        values: np.ndarray = np.array([0, value], dtype)
        draw = _compiled_draw()
        if num_full:
            full_states = np.array(states[:num_full])
            full_pieces = mask[:full_size]
            full_pieces = full_pieces.reshape(num_full, -1)
            draw(full_states, threshold, values, full_pieces)
        if full_size < size:
            last_state = np.array(states[num_full:])
            last_piece = mask[full_size:]
            last_piece = last_piece.reshape(1, -1)
            draw(last_state, threshold, values, last_piece)
        entries = mask[: x.numel()]
        return torch.from_numpy(entries).view(x.shape)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Scaled(torch.autograd.Function):
    """x · mask · scale with one rounding. The scale, rounded to bfloat16, would have a relative error of up to 2^-9."""

    @staticmethod
    def forward(ctx, x, mask, scale):
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return torch.addcmul(x.new_zeros(()), x, mask, value=scale)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return torch.addcmul(grad.new_zeros(()), grad, mask, value=ctx.scale), None, None


@cache
def _compiled_draw() -> Callable:
    """Compile ``_draw``."""
    # Numba is imported on first use: only training with dropout on a CPU needs it.
    from ..compiled import compiled

    return compiled(_draw)


def _draw(states, threshold, values, out):
    """Draw masks of zeros and another value, with the random numbers of numpy's SFC64.

    All streams advance together, a block at a time, so that the processor works at several numbers at once.

    Args:
        states: states of the streams, uint64 (S,4).
        threshold: draws of 16 bits below it become zero.
        values: zero and the other value, in the dtype of out.
        out: masks (S,n), n a multiple of 4.
    """
    zero = values[0]
    other = values[1]
    increment = np.uint64(1)
    a_shift = np.uint64(11)
    b_shift = np.uint64(3)
    c_left = np.uint64(24)
    c_right = np.uint64(40)
    a = states[:, 0].copy()
    b = states[:, 1].copy()
    c = states[:, 2].copy()
    counter = states[:, 3].copy()
    numbers = np.empty((len(states), BLOCK), np.uint64)
    for first in range(0, out.shape[1], 4 * BLOCK):
        # A block of 64-bit numbers of every stream.
        for i in range(BLOCK):
            for s in range(len(states)):
                x = a[s] + b[s] + counter[s]
                counter[s] += increment
                a[s] = b[s] ^ (b[s] >> a_shift)
                b[s] = c[s] + (c[s] << b_shift)
                c[s] = (c[s] << c_left | c[s] >> c_right) + x
                numbers[s, i] = x
        # Each number has four quarters of 16 bits, one per entry.
        for s in range(len(states)):
            quarters = numbers[s].view(np.uint16)
            part = out[s, first : first + 4 * BLOCK]
            for i in range(len(part)):
                part[i] = other if quarters[i] >= threshold else zero
