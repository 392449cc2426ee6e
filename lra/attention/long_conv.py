"""Long convolutions with a regularised kernel (Fu, Epstein, Nguyen et al., ICML 2023)."""

from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.ssm import long_conv, pack_bidirectional
from ..options import Above, Range
from .base import Mixer, Sizes


class LongConv(Mixer):
    """y = K * x + D x with one kernel per channel whose entries are parameters, O(d L log L) time.

    K = squash(weights) with squash(k) = sign(k) max(|k| - λ, 0) (section 3.2), then dropout of its entries in training.
    D is one learned number per channel. The kernel is as long as the longest sequence: O(d length) parameters. Masked
    tokens enter the convolution as zeros.

    Args:
        sizes: ``length`` is the length of the kernel, ``dropout`` the dropout of its entries.
        bidirectional: whether to add a second kernel over later tokens, the next one first; otherwise the layer is
            causal.
        squash: λ, the threshold of the function squash.
        scale: standard deviation of the initial weights.
        rate: learning-rate factor of the kernel, which has no weight decay.

    Source: the paper, section 3, and the released code, which by default is causal with λ = 0.1; docs/ssm.md has its
    settings for each task. In plain torch: ``lra/reference/convolution.py``.
    """

    has_dropout = True

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
        self.squash = squash
        self.rates = {"weights": rate}
        num_kernels = 2 if bidirectional else 1
        self.weights = nn.Parameter(scale * torch.randn(num_kernels, dim, sizes.length))
        self.skip = nn.Parameter(torch.randn(dim))

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        # y = K * x + D x; ``skip`` is D.
        return long_conv(x, self.skip, self.kernel, mask).to(x.dtype)

    def kernel(self, length: int) -> Float[Tensor, "d lags"]:
        """Compute K in the layout of ``fft_conv``: L lags of a causal model, 2 L of a bidirectional one."""
        squashed = F.softshrink(self.weights[..., :length], self.squash)  # (1 or 2,d,L)
        dropped = F.dropout(squashed, self.sizes.dropout, self.training)
        return pack_bidirectional(dropped)
