"""Hyena, gated long convolutions whose filters are small networks of the lag (Poli et al., ICML 2023)."""

import math

import torch
from torch import Tensor, nn

from ..ops.ssm import fft_conv, pack_bidirectional
from ..options import Above, Positive
from .base import Mixer, Sizes
from .gated import ShortConvolution, mask_tokens


class Hyena(Mixer):
    """v ← h_i * (x_i v) + D_i (x_i v) for i = order - 1, ..., 1, then W_o(x_0 v).

    x_0, ..., x_(order-1) and v are linear maps of the input through a convolution over three tokens. The filter
    h_i(t) is a network of sine activations of the lag t, times exp(-|δ| t) + shift. Lags are relative to the maximum
    length of the task, so a filter does not depend on the padding. O(order L log L) time for each channel.

    Args:
        causal: only earlier tokens and the token itself, as published. Otherwise a second network gives the filters
            over the tokens ahead, the next one first.
        order: number of gates; order - 1 long convolutions.
        hidden: width of the filters' network.
        features: entries of the encoding of a lag: the lag and (features - 1) / 2 cosines and sines.
        frequency: initial frequency of the sine activations.
        shift: constant added to the window exp(-|δ| t).
        rate: factor of the learning rate of the filters, which have no weight decay.

    Raises:
        ValueError: features is even or below 3, or order is below 2.

    Source: the paper, section 3; the window and initial values by the released code.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: int,
        causal: bool = False,
        order: Positive = 2,
        hidden: Positive = 64,
        features: Positive = 3,
        frequency: Above = 10.0,
        shift: float = 0.0,
        rate: Above = 1.0,
    ):
        super().__init__(sizes, dim=dim)
        if features % 2 == 0 or features < 3:
            raise ValueError(f"features must be odd and at least 3, got {features}")
        if order < 2:
            raise ValueError(f"order must be at least 2, got {order}")
        self.causal = causal
        self.order = order
        self.inputs = nn.Linear(dim, (order + 1) * dim)
        self.conv = ShortConvolution((order + 1) * dim, 3, causal=causal, bias=True, activation=False)
        directions = 1 if causal else 2
        options = {"hidden": hidden, "features": features, "frequency": frequency, "shift": shift, "rate": rate}
        self.filters = nn.ModuleList(HyenaFilter((order - 1) * dim, sizes.length, **options) for _ in range(directions))
        self.D = nn.Parameter(torch.randn(order - 1, dim))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        *gates, v = self.conv(self.inputs(x), mask).chunk(self.order + 1, dim=-1)  # (N,L,d)
        with torch.autocast(x.device.type, enabled=False):
            kernels = pack_bidirectional(torch.stack([filters(length) for filters in self.filters]))
            kernels = kernels.unflatten(0, (self.order - 1, -1))  # (order - 1,d,L or 2 L)
            # v ← h_i * (x_i v) + D_i (x_i v)
            for i in range(self.order - 1, 0, -1):
                gated = gates[i] * v
                kernel = kernels[self.order - 1 - i]
                v = fft_conv(gated.mT, kernel, mask).mT + self.D[self.order - 1 - i] * gated
            mixed = gates[0] * v
        return self.output(mask_tokens(mixed, mask).to(x.dtype))


class HyenaFilter(nn.Module):
    """The filters of all channels as a function of the lag: (length) -> (channels, length)."""

    def __init__(
        self,
        channels: int,
        longest: int,
        *,
        hidden: int,
        features: int,
        frequency: float,
        shift: float,
        rate: float,
    ):
        super().__init__()
        self.longest = longest
        self.shift = shift
        self.features = features
        self.layers = nn.ModuleList([nn.Linear(features, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)])
        self.frequency = nn.Parameter(torch.full((hidden,), frequency))
        self.last = nn.Linear(hidden, channels, bias=False)
        # Windows that fall to 1 % within 0.3 to 1.5 of the longest sequence.
        decays = torch.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, channels)
        self.decay: Tensor
        self.register_buffer("decay", decays, persistent=False)
        self.rates = {"frequency": rate}
        for layer in (*self.layers, self.last):
            layer.rates = {name: rate for name, _ in layer.named_parameters()}

    def forward(self, length: int) -> Tensor:
        time = torch.arange(length, device=self.decay.device, dtype=self.last.weight.dtype)
        lag = (time / max(self.longest - 1, 1))[:, None]  # (L,1), from 0 to 1
        hidden = self.encode(time, lag)
        for layer in self.layers:
            hidden = (self.frequency * layer(hidden)).sin()
        window = (-lag * self.decay.abs()).exp() + self.shift
        return (self.last(hidden) * window).mT

    def encode(self, time: Tensor, lag: Tensor) -> Tensor:
        """Encode lags as [lag, cos(2π f t / L), -sin(2π f t / L)] with frequencies f: (L,features)."""
        bands = (self.features - 1) // 2
        frequencies = torch.linspace(1e-4, bands - 1, bands, device=lag.device, dtype=lag.dtype)
        angle = 2 * math.pi * time[:, None] / self.longest * frequencies
        return torch.cat([lag, angle.cos(), -angle.sin()], dim=-1)
