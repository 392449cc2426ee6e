"""Control: a depth-wise convolution of fixed width, so a token sees only itself and its neighbours."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.convolution import convolve_sequence
from ..ops.precision import full_precision
from ..options import Positive
from .base import Mixer, Sizes


class Conv(Mixer):
    """Projection to values, depth-wise convolution and output projection, O(L d (width + d)) time.

        y_ic = Σ_j w_c,j-i v_jc / Σ_j |w_c,j-i|,  over the real tokens j with |j - i| <= width // 2,
                                                  with ``causal`` i - width < j <= i

    Each channel c has its own filter. Its weights depend on the distance only and, unlike attention weights, have a
    sign. Dividing by the sum of their magnitudes bounds |y| by the largest |v| in reach, also at both ends of a
    sequence and next to padding; for independent values the standard deviation of y initially falls as width^-1/2.

    Args:
        width: number of tokens that one output sees, odd; with ``causal`` the token and the ``width - 1`` before it.
        causal: whether the filter sees no later token.

    Raises:
        ValueError: ``width`` is even without ``causal``.

    Source: the short convolutions of Miralles-González et al. 2025 (docs/formulas.md), here inside this encoder. In
    plain torch: ``lra/reference/convolution.py``.
    """

    def __init__(self, sizes: Sizes, *, dim: int, width: Positive = 11, causal: bool = False):
        super().__init__(sizes, dim=dim)
        if not causal and width % 2 == 0:
            raise ValueError(f"width must be odd unless causal=true, not {width}")
        self.causal = causal
        self.values = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        bound = width**-0.5
        self.filters = nn.Parameter(torch.empty(dim, width).uniform_(-bound, bound))

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        mixed = self._mix(self.values(x), mask)
        return self.output(mixed.to(x.dtype))

    @full_precision
    def _mix(
        self,
        v: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N L d"]:
        """Compute y from the values: convolve them, and divide by the sum of the magnitudes in reach."""
        filters = self.filters.to(v.dtype)  # (d,width)
        if self.causal:
            # The last tap belongs to the token itself; the taps of later tokens are zero.
            num_later = filters.shape[1] - 1
            filters = F.pad(filters, (0, num_later))
        filters = filters[:, None, :, None]  # (d,1,width,1)

        # Numerator: padded values are zero.
        if mask is not None:
            v = v * mask[..., None]
        numerator = convolve_sequence(v.mT[..., None], filters)  # (N,d,L,1)

        # Denominator: a convolution of ones at real tokens with |w|. If no real token is in reach, both are 0.
        magnitudes = filters.abs()
        L = v.shape[1]
        width = filters.shape[2]
        if mask is None and width <= L:
            sums = _sums_in_range(magnitudes[:, 0, :, 0], L)  # (d,L)
            denominator = sums[None, ..., None]  # (1,d,L,1)
        else:
            is_real = v.new_ones(1, L) if mask is None else mask.to(v.dtype)  # (N or 1,L)
            ones = is_real[:, None, :, None].expand(-1, len(filters), -1, -1)  # (N or 1,d,L,1)
            denominator = convolve_sequence(ones, magnitudes)
        denominator = denominator + (denominator == 0)
        mixed = numerator * denominator.reciprocal()  # (N,d,L,1)
        return mixed[..., 0].mT


def _sums_in_range(filters: Float[Tensor, "d width"], seq_len: int) -> Float[Tensor, "d {seq_len}"]:
    """Sum the taps that lie inside a sequence of at least ``width`` positions, for each position."""
    reach = filters.shape[1] // 2
    # Position p < reach misses its first reach - p taps, so it sums from tap reach - p on. The q-th position after the
    # middle (q = 0 .. reach - 1) misses its last q + 1 taps, so it sums up to tap 2 reach - 1 - q.
    sums_from = filters.flip(1).cumsum(1).flip(1)  # (d,width), over taps t, t + 1, ...
    sums_to = filters.cumsum(1)  # (d,width), over taps ..., t - 1, t
    head = sums_from[:, 1 : reach + 1].flip(1)  # (d,reach)
    tail = sums_to[:, reach : 2 * reach].flip(1)  # (d,reach)
    num_inner = seq_len - 2 * reach
    middle = sums_from[:, :1].expand(-1, num_inner)
    return torch.cat([head, middle, tail], 1)
