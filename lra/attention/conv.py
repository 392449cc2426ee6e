"""Control: a convolution of fixed width for each channel, so that no token sees further than its neighbours."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.convolution import convolve_rows
from ..ops.precision import full_precision
from ..options import Positive
from .base import Mixer, Sizes


class Conv(Mixer):
    """Projection to values, depth-wise convolution, output projection: (N,L,d) -> (N,L,d).

        y_ic = Σ_j w_c,j-i v_jc / Σ_j |w_c,j-i|,  over the real tokens j with |j - i| <= width / 2

    The weights depend on the distance alone and, unlike those of attention, have a sign; dividing by the sum of their
    sizes keeps y at the scale of the values at every width, at the ends of a row and beside padding. O(L width d) time.

    Args:
        width: tokens that one output sees, odd; with ``causal`` the token itself and the ``width - 1`` before it.
        causal: no token ahead.

    Raises:
        ValueError: an even width without ``causal``.

    Source: the short convolutions of Miralles-González et al. 2025 (docs/formulas.md), here inside this encoder.
    """

    def __init__(self, sizes: Sizes, *, dim: int, width: Positive = 11, causal: bool = False):
        super().__init__(sizes, dim=dim)
        if not causal and width % 2 == 0:
            raise ValueError(f"width must be odd, not {width}")
        self.causal = causal
        self.values, self.output = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.filters = nn.Parameter(torch.empty(dim, width).uniform_(-(width**-0.5), width**-0.5))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.output(self._mix(self.values(x), mask).to(x.dtype))

    @full_precision
    def _mix(self, v: Tensor, mask: Tensor | None) -> Tensor:
        filters = self.filters.to(v.dtype)
        if self.causal:  # the last tap is the token itself, zeros are those ahead
            filters = F.pad(filters, (0, filters.shape[1] - 1))
        filters = filters[:, None, :, None]  # (d,1,width,1)
        real = v.new_ones(1, v.shape[1]) if mask is None else mask.to(v.dtype)
        v = v if mask is None else v * real[..., None]
        total = convolve_rows(real[:, None, :, None].expand(-1, len(filters), -1, -1), filters.abs())
        mixed = convolve_rows(v.mT[..., None], filters) / (total + (total == 0))  # no real neighbour: 0 / 1
        return mixed[..., 0].mT
