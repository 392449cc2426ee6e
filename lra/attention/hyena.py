"""Hyena, gated long convolutions whose filters are small networks of the lag (Poli et al., ICML 2023)."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.ssm import fft_conv, pack_bidirectional
from ..options import Above, Positive
from .base import Mixer, Sizes
from .recurrent_parts import ShortConvolution, mask_tokens


class Hyena(Mixer):
    """v ← h_i * (x_i v) + D_i (x_i v) for i = order - 1, ..., 1, then W_o(x_0 v); * is the convolution over tokens.

    x_0, ..., x_(order-1) and v are linear maps of the input through a convolution over three tokens. The filter h_i
    is a network of sine activations of the lag l, times (exp(-δ t) + shift) with relative lag t = l / (length - 1) and
    a fixed decay rate δ > 0 for each filter. ``length`` is the maximum length of the task, so a filter does not depend
    on the padding. O(order L log L) time for each channel and example, plus O(order L hidden) for each channel and
    O(L hidden²) for the filters, once per batch. Heads are ignored.

    Args:
        causal: whether a token sees only itself and earlier tokens, as published. Otherwise a second network gives the
            filters over later tokens; their entry 0 is the next token.
        order: number of gates; order - 1 long convolutions.
        hidden: width of the filters' network.
        features: entries of the encoding of a lag: t, (features - 1) / 2 cosines and as many sines. The first frequency
            is 1e-4 periods per sequence, so with 3 features the network sees t alone. The released layer has 3, its
            experiments 5 or 33.
        frequency: initial frequency of the sine activations. The released layer has 1, as its experiments on images;
            others have 10 or 14.
        shift: constant added to the window exp(-δ t).
        rate: factor of the learning rate of the filters, which have no weight decay.

    Raises:
        ValueError: features is even or below 3, or order is below 2.

    Source: the paper, section 3; the window and other initial values of the released code, which trains the encoding of
    the lags too. In plain torch: ``lra/reference/convolution.py``.
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
        # The filters of earlier tokens, then of later ones.
        self.filters = nn.ModuleList()
        num_directions = 1 if causal else 2
        for _ in range(num_directions):
            network = HyenaFilter(
                (order - 1) * dim,
                sizes.length,
                hidden=hidden,
                features=features,
                frequency=frequency,
                shift=shift,
                rate=rate,
            )
            self.filters.append(network)
        self.D = nn.Parameter(torch.randn(order - 1, dim))
        self.output = nn.Linear(dim, dim)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        L = x.shape[1]
        num_filters = self.order - 1
        convolved = self.conv(self.inputs(x), mask)
        *gates, v = convolved.chunk(self.order + 1, dim=-1)  # (N,L,d)
        with torch.autocast(x.device.type, enabled=False):
            filters = torch.stack([network(L) for network in self.filters])  # (1 or 2,(order - 1) d,L)
            kernels = pack_bidirectional(filters)  # ((order - 1) d,L or 2 L)
            # Channel by channel, as released, so that every convolution has windows of all widths.
            by_channel = kernels.unflatten(0, (-1, num_filters))  # (d,order - 1,L or 2 L)
            kernels = by_channel.transpose(0, 1)  # (order - 1,d,L or 2 L)
            # v ← h_i * (x_i v) + D_i (x_i v) for i = order - 1, ..., 1. The filters are stored in this order, so
            # h_i and D_i have index n = order - 1 - i.
            for n, x_i in enumerate(reversed(gates[1:])):
                gated = x_i * v  # (N,L,d)
                filtered = fft_conv(gated.mT, kernels[n], mask).mT
                v = filtered + self.D[n] * gated
            # x_0 v
            mixed = gates[0] * v
        return self.output(mask_tokens(mixed, mask).to(x.dtype))


class HyenaFilter(nn.Module):
    """The filters of all long convolutions in one direction, as a function of the lag.

    Args:
        channels: number of filters, order - 1 for each channel of the layer.
        longest: maximum length of the task, for the relative lags; ``forward`` takes the length of the batch.
        hidden, features, frequency, shift, rate: see ``Hyena``.
    """

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
        self.layers = nn.ModuleList(
            [
                nn.Linear(features, hidden),
                nn.Linear(hidden, hidden),
                nn.Linear(hidden, hidden),
            ]
        )
        self.frequency = nn.Parameter(torch.full((hidden,), float(frequency)))
        self.last = nn.Linear(hidden, channels, bias=False)
        # Decay rates δ: the windows fall to 1 % after 0.3 to 1.5 times the maximum length.
        slowest = -math.log(0.01) / 1.5
        fastest = -math.log(0.01) / 0.3
        decay = torch.linspace(slowest, fastest, channels)
        self.decay: Tensor
        self.register_buffer("decay", decay, persistent=False)
        # All parameters of the filters have the learning-rate factor, and so no weight decay (``lra.train.optim``).
        self.rates = {"frequency": rate}
        for layer in (*self.layers, self.last):
            names = [name for name, _ in layer.named_parameters()]
            layer.rates = dict.fromkeys(names, rate)

    def forward(self, length: int) -> Float[Tensor, "channels {length}"]:
        lag = torch.arange(length, device=self.decay.device, dtype=self.last.weight.dtype)
        # Relative lags t, from 0 to 1.
        t = lag / max(self.longest - 1, 1)
        t = t[:, None]  # (L,1)
        hidden = self.encode(lag, t)
        for layer in self.layers:
            phase = self.frequency * layer(hidden)
            hidden = phase.sin()  # (L,hidden)
        window = (-t * self.decay).exp() + self.shift  # (L,channels)
        filters = self.last(hidden) * window
        return filters.mT

    def encode(self, lag: Float[Tensor, " L"], t: Float[Tensor, "L 1"]) -> Float[Tensor, "L features"]:
        """Encode lags as [t, cos(2π f l / longest), -sin(2π f l / longest)] with frequencies f.

        Args:
            lag: lags l in tokens.
            t: relative lags, 0 to 1.
        """
        bands = (self.features - 1) // 2
        f = torch.linspace(1e-4, bands - 1, bands, device=t.device, dtype=t.dtype)
        angle = 2 * math.pi * lag[:, None] / self.longest * f  # (L,bands)
        return torch.cat([t, angle.cos(), -angle.sin()], dim=-1)
