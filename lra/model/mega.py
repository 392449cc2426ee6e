"""MEGA, moving average equipped gated attention (Ma et al., ICLR 2023), around any mechanism."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.base import Attention, Sizes
from ..ops.blocks import blocks, real_blocks
from ..ops.precision import full_precision
from ..ops.ssm import fft_conv
from ..options import Checked, Positive
from .norm import Norm, make_norm


class Mega(Checked, nn.Module):
    """A whole layer: gated attention over a moving average, then a feed-forward layer.

        c = EMA(x̂)                  x̂ = norm(x), v = SiLU(W_v x̂)
        u, z, r, h = split(W c)     u sigmoid; z, r SiLU
        q, k = z g_0 + b_0, z g_1 + b_1
        x + u (SiLU(h + W_h(r attention(q, k, v))) - x)

    Args:
        attention: a factory that takes ``Sizes``: heads is 1, head_dim ``z``, value_dim ``hidden``.
        dim, hidden, length, z: sizes.
        dropout: dropout rate of c and of the addition of each half; the published dropout inside them is 0 on every
            task of LRA.
        ndim, truncation: options of the ``EMA``.
        chunk: restricts attention to consecutive chunks of that many tokens, so that only the moving average connects
            them; null for none.
        norm: ``layer`` | ``scale`` | ``rms`` | ``batch``.
        prenorm: whether the norms are before each half, else after it.
        bias: whether a learned number for each distance of two tokens is added to the scores; without it any mechanism
            can be used.

    Raises:
        ValueError: the mechanism takes no bias.
    """

    def __init__(
        self,
        attention: Callable[[Sizes], Attention],
        *,
        dim: int,
        hidden: int,
        dropout: float,
        length: int,
        z: Positive = 32,
        ndim: Positive = 16,
        truncation: Positive | None = 1024,
        chunk: Positive | None = None,
        norm: Norm = "layer",
        prenorm: bool = True,
        bias: bool = True,
    ):
        super().__init__()
        self.chunk, self.prenorm, self.widths = chunk, prenorm, [dim, z, hidden, dim]
        reach = min(chunk or length, length)
        self.attention = attention(Sizes(heads=1, head_dim=z, value_dim=hidden, length=reach))
        if bias and not self.attention.takes_bias:
            raise ValueError(f"bias must be false around {type(self.attention).__name__}, which takes no position bias")
        self.bias = RelativeBias(reach) if bias else None
        self.ema = EMA(dim, ndim=ndim, truncation=truncation)
        self.norm, self.mlp_norm = (make_norm(norm, dim) for _ in range(2))
        self.values, self.gates = nn.Linear(dim, hidden), nn.Linear(dim, sum(self.widths))
        self.output = nn.Linear(hidden, dim)
        self.qk_scale, self.qk_shift = nn.Parameter(torch.empty(2, z)), nn.Parameter(torch.zeros(2, z))
        self.dropout = nn.Dropout(dropout)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, dim), nn.Dropout(dropout))
        nn.init.normal_(self.qk_scale, std=0.02)
        for layer in (self.values, self.gates, self.output, self.mlp[0], self.mlp[2]):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, mask: Tensor | None, memory=None):
        y = self.norm(x, mask) if self.prenorm else x
        v = F.silu(self.values(y))  # (N,L,hidden)
        u, z, r, h = self.gates(self.dropout(self.ema(y, mask).to(y.dtype))).split(self.widths, -1)
        q, k = (F.silu(z)[..., None, :] * self.qk_scale + self.qk_shift).unbind(-2)  # (N,L,z)
        mixed = self._attend(*(t[:, None] for t in (q, k, v)), mask)[:, 0].to(v.dtype)
        h = self.dropout(F.silu(h + self.output(mixed * F.silu(r))))
        x = x + u.sigmoid() * (h - x)
        if self.prenorm:
            return x + self.mlp(self.mlp_norm(x, mask)), memory
        x = self.norm(x, mask)
        return self.mlp_norm(x + self.mlp(x), mask), memory

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attend within chunks: q, k (N,1,L,z), v (N,1,L,hidden) -> (N,1,L,hidden)."""
        N, _, L, _ = q.shape
        options = {} if self.bias is None else {"bias": self.bias}
        if self.chunk is None or self.chunk >= L:
            return self.attention(q, k, v, mask, **options)
        real = real_blocks(mask, L, self.chunk, q.device)  # (N or 1,B,chunk)
        if real is not None:
            real = real | ~real.any(-1, keepdim=True)  # a chunk of padding attends to itself; its rows are not used
            real = real.expand(N, -1, -1).flatten(0, 1)
        q, k, v = (blocks(t, self.chunk).transpose(1, 2).flatten(0, 1) for t in (q, k, v))  # (N B,1,chunk,.)
        out = self.attention(q, k, v, real, **options)
        return out.unflatten(0, (N, -1)).transpose(1, 2).flatten(2, 3)[:, :, :L]


class EMA(Checked, nn.Module):
    """Multi-dimensional damped moving average in both directions: x (N,L,d), mask (N,L) -> (N,L,d) in float32 at least.

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

    @full_precision
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
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


class RelativeBias(nn.Module):
    """A learned number for each distance: positions rows (..., i), cols (..., j) below ``length`` -> (..., i, j)."""

    def __init__(self, length: int):
        super().__init__()
        self.length = length
        self.weight = nn.Parameter(torch.empty(2 * length - 1).normal_(std=0.02))

    def forward(self, rows: Tensor, cols: Tensor) -> Tensor:
        distance = self.length - 1 + cols[..., None, :] - rows[..., :, None]
        return self.weight.index_select(0, distance.flatten()).view_as(distance)


class MegaHead(nn.Module):
    """Linear, dropout, GELU, Linear without bias on the pooled vectors of all towers side by side (B,T,d)."""

    def __init__(self, *, dim: int, hidden: int, outputs: int, towers: int, dropout: float = 0.0):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(towers * dim, hidden), nn.Dropout(dropout), nn.GELU(), nn.Linear(hidden, outputs, bias=False)
        )
        for layer in (self.mlp[0], self.mlp[3]):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.mlp[0].bias)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.mlp(pooled.flatten(1))
