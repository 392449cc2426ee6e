"""Long convolutions with a regularised kernel (Fu, Epstein, Nguyen et al., ICML 2023)."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.ssm import both_ways, long_conv
from ..options import Above, Range
from .base import Mixer, Sizes


class LongConv(Mixer):
    """y = K * u + D u with a kernel for each channel whose entries are parameters, as long as the longest row.

    K = squash(parameters), squash(k) = sign(k) max(|k| - λ, 0), then dropout of its entries in training. A second
    kernel reads the tokens ahead, the next one first, if ``bidirectional``. A masked token counts as zero. O(d L log L)
    time, O(d length) parameters.

    Args:
        sizes: its length is the kernel's; its dropout is that of the kernel's entries.
        bidirectional: False: causal.
        squash: λ.
        scale: standard deviation that the parameters start with.
        rate: factor of the learning rate of the kernel, which has no weight decay.

    Source: the paper, section 3; defaults of the released code (docs/ssm.md).
    """

    drops = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: int,
        bidirectional: bool = True,
        squash: Annotated[float, Range(0)] = 0.003,
        scale: Above = 0.002,
        rate: Above = 1.0,
    ):
        super().__init__(sizes, dim=dim)
        self.causal = not bidirectional
        self.squash, self.rates = squash, {"weights": rate}
        self.weights = nn.Parameter(scale * torch.randn(1 + bidirectional, dim, sizes.length))
        self.skip = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return long_conv(x, self.skip, self.kernel, mask).to(x.dtype)

    def kernel(self, length: int) -> Tensor:
        """(d,L) of a causal model, (d,2L) of a bidirectional one, laid out as ``fft_conv`` takes it."""
        kernels = F.dropout(F.softshrink(self.weights[..., :length], self.squash), self.sizes.dropout, self.training)
        return both_ways(kernels)
