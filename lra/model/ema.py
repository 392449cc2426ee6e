"""The moving average of MEGA (Ma et al., ICLR 2023): multi-dimensional and damped."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.precision import full_precision
from ..ops.ssm import fft_conv
from ..options import Checked, Positive


class EMA(Checked, nn.Module):
    """Multi-dimensional damped moving average in both directions: x (N,L,d), mask (N,L) -> (N,L,d).

    Each channel has ``ndim`` averages h with decay q = 1 - p sigmoid(α) and gain p = sigmoid(δ):

        h_t = q h_(t-1) + p β x_t,    y_t = γ·h_t / √ndim + the same from the right end,    SiLU(y + ω x)

    Hence y is a convolution with a kernel of exponentials, computed by FFT in O(L log L) time, with O(d ndim T) for the
    kernel of T lags. Padding counts as zero in y, and rows do not affect each other.

    Args:
        dim: d.
        ndim: averages of a channel.
        truncation: T, the lags in each direction, lag 0 included; null for all.
    """

    def __init__(self, dim: int, *, ndim: Positive = 16, truncation: Positive | None = None):
        super().__init__()
        self.truncation = truncation
        self.delta, self.alpha, self.beta, self.gamma = (nn.Parameter(torch.empty(2, dim, ndim)) for _ in range(4))
        self.omega = nn.Parameter(torch.empty(dim))
        for name, std in {"delta": 0.2, "alpha": 0.2, "beta": 0.02, "gamma": 1, "omega": 1}.items():
            nn.init.normal_(getattr(self, name), std=std)
        with torch.no_grad():
            self.beta += (-1.0) ** torch.arange(ndim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._average(x, mask).to(x.dtype)

    @full_precision
    def _average(self, x: Tensor, mask: Tensor | None) -> Tensor:
        L = x.shape[1]
        forth, back = self.kernel(min(self.truncation or L, L))  # (d,T)
        gap = forth.new_zeros(forth.shape[0], L - forth.shape[1] + 1)  # L + T lags, so that no end meets the other
        lags = torch.cat([forth[:, :1] + back[:, :1], forth[:, 1:], gap, back[:, 1:].flip(-1)], -1)
        y = fft_conv(x.mT, lags, mask).mT
        return F.silu(y + self.omega * x)

    def kernel(self, lags: int) -> Tensor:
        """The weight of each lag in both directions, (2,d,lags)."""
        p = self.delta.sigmoid()
        q = 1 - p * self.alpha.sigmoid()
        powers = q[..., None] ** torch.arange(lags, device=q.device)  # (2,d,ndim,lags)
        amplitude = p * self.beta * self.gamma * q.shape[-1] ** -0.5
        return (amplitude[..., None, :] @ powers).squeeze(-2)
