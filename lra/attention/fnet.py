"""FNet, Fourier transforms in place of attention (Lee-Thorp et al., NAACL 2022)."""

import torch
from torch import Tensor

from ..ops.fourier import dft
from ..ops.precision import full_precision
from ..ops.segments import real_first
from .base import Mixer


class FNet(Mixer):
    """Re(F_seq(F_hidden(x))), the real part of the transform along features and positions (section 3.2).

    It has no parameters, no projections and no normalisation. The transform along positions is that of the real tokens
    alone, over their own number n, so that n rows hold the whole spectrum and padding is no part of it. The released
    code knows no mask and transforms padding too, over the padded length; that is ``data.pad=fixed data.mask=false``.

    O(L log L) time. Heads play no role.
    """

    hole_free = True

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._transform(x, mask).to(x.dtype)

    @full_precision
    def _transform(self, x: Tensor, mask: Tensor | None) -> Tensor:
        hidden = torch.fft.fft(x, dim=-1)
        if mask is None:
            return torch.fft.fft(hidden, dim=1).real
        order = real_first(mask)[..., None].expand_as(hidden)  # real tokens side by side, and back to their places
        mixed = dft(hidden.gather(1, order), mask.sum(-1)).real
        return torch.zeros_like(mixed).scatter(1, order, mixed)
