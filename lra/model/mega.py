"""MEGA, moving average equipped gated attention (Ma et al., ICLR 2023), around any mechanism."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.base import Attention, Sizes
from ..ops.attention_maps import ensure_nonempty
from ..ops.blocks import blocks, real_blocks
from ..ops.precision import full_precision
from ..ops.ssm import fft_conv
from ..options import Checked, Positive
from .norm import Norm, make_norm


class Mega(Checked, nn.Module):
    """A whole layer: gated attention over a moving average, then a feed-forward layer (section 3).

        1. c = EMA(x̂),   x̂ = norm(x),   v = SiLU(x̂ W_v)
        2. u, z, r, h = split(c W)
        3. q = SiLU(z) κ_q + μ_q,   k = SiLU(z) κ_k + μ_k
        4. o = attention(q, k, v)
        5. x ← x + sigmoid(u) (SiLU(h + (o SiLU(r)) W_o) - x)
        6. x + W_2 SiLU(W_1 norm(x))

    ``lra/reference/mega.py`` has the same equations for one sequence.

    Args:
        attention: a factory that takes ``Sizes`` with heads 1, head_dim ``z`` and value_dim ``hidden``.
        dim, hidden, length, z: sizes.
        dropout: dropout rate of c and of both residual branches; the published dropout inside them is 0 on every task
            of LRA.
        ndim, truncation: options of ``EMA``.
        chunk: attention is restricted to consecutive chunks of this many tokens, which only the moving average
            connects; null for none.
        norm: ``layer`` | ``scale`` | ``rms`` | ``batch``.
        prenorm: whether the norms come before each half, otherwise after it.
        bias: whether a learned number for each distance between tokens is added to the scores; without it any mechanism
            can be used.

    Raises:
        ValueError: bias is true and the mechanism takes no bias.
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
        self.chunk = chunk
        self.prenorm = prenorm
        self.widths = [dim, z, hidden, dim]
        reach = min(chunk or length, length)
        self.attention = attention(Sizes(heads=1, head_dim=z, value_dim=hidden, length=reach))
        if bias and not self.attention.supports_bias:
            raise ValueError(f"bias must be false around {type(self.attention).__name__}, which takes no position bias")
        self.bias = RelativeBias(reach) if bias else None
        self.ema = EMA(dim, ndim=ndim, truncation=truncation)
        # Of the moving average; attention over all tokens has none.
        self.state_size = dim * ndim
        self.norm = make_norm(norm, dim)
        self.mlp_norm = make_norm(norm, dim)
        # W_v, W, W_o, κ and μ.
        self.values = nn.Linear(dim, hidden)
        self.gates = nn.Linear(dim, sum(self.widths))
        self.output = nn.Linear(hidden, dim)
        self.qk_scale = nn.Parameter(torch.empty(2, z))
        self.qk_shift = nn.Parameter(torch.zeros(2, z))
        self.dropout = nn.Dropout(dropout)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, dim), nn.Dropout(dropout))
        nn.init.normal_(self.qk_scale, std=0.02)
        for layer in (self.values, self.gates, self.output, self.mlp[0], self.mlp[2]):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, mask: Tensor | None, memory=None):
        # 1. Moving average and values.
        normed = self.norm(x, mask) if self.prenorm else x
        v = F.silu(self.values(normed))  # (N,L,hidden)
        c = self.ema(normed, mask).to(normed.dtype)  # (N,L,d)

        # 2. and 3. Gates, queries and keys.
        u, z, r, h = self.gates(self.dropout(c)).split(self.widths, -1)
        q, k = (F.silu(z)[..., None, :] * self.qk_scale + self.qk_shift).unbind(-2)  # (N,L,z)

        # 4. Attention with one head.
        o = self._attend(q[:, None], k[:, None], v[:, None], mask)[:, 0].to(v.dtype)  # (N,L,hidden)

        # 5. Gated residual.
        candidate = self.dropout(F.silu(h + self.output(o * F.silu(r))))  # (N,L,d)
        x = x + u.sigmoid() * (candidate - x)

        # 6. Feed-forward layer.
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

        # Chunks become examples; a chunk of padding attends to itself, and its outputs are not used.
        chunk_mask = real_blocks(mask, L, self.chunk, q.device)  # (N or 1,B,chunk)
        if chunk_mask is not None:
            chunk_mask = ensure_nonempty(chunk_mask).expand(N, -1, -1).flatten(0, 1)
        q, k, v = (self._as_examples(x) for x in (q, k, v))  # (N B,1,chunk,·)
        out = self.attention(q, k, v, chunk_mask, **options)
        return out.unflatten(0, (N, -1)).transpose(1, 2).flatten(2, 3)[:, :, :L]

    def _as_examples(self, x: Tensor) -> Tensor:
        """Cut (N,1,L,·) into examples (N B,1,chunk,·)."""
        return blocks(x, self.chunk).transpose(1, 2).flatten(0, 1)


class EMA(Checked, nn.Module):
    """Multi-dimensional damped moving average in both directions: x (N,L,d), mask (N,L) -> (N,L,d).

    Each channel has ``ndim`` averages h with gain p = sigmoid(δ) and decay q = 1 - p sigmoid(α):

        h_t = q h_(t-1) + p β x_t,    y_t = γ·h_t / √ndim + the same from the right end,    SiLU(y + ω x)

    So y is a convolution with a sum of exponentials, Σ p β γ q^lag / √ndim. It is computed by FFT in O(L log L) time,
    in float32 or wider, after O(d ndim T) for a kernel of T lags. Padding counts as zero in y.

    Args:
        dim: d.
        ndim: number of averages per channel.
        truncation: T, the number of lags in each direction, lag 0 included; null for all.
    """

    def __init__(self, dim: int, *, ndim: Positive = 16, truncation: Positive | None = None):
        super().__init__()
        self.truncation = truncation
        self.delta = nn.Parameter(torch.empty(2, dim, ndim))
        self.alpha = nn.Parameter(torch.empty(2, dim, ndim))
        self.beta = nn.Parameter(torch.empty(2, dim, ndim))
        self.gamma = nn.Parameter(torch.empty(2, dim, ndim))
        self.omega = nn.Parameter(torch.empty(dim))
        for name, std in {"delta": 0.2, "alpha": 0.2, "beta": 0.02, "gamma": 1, "omega": 1}.items():
            nn.init.normal_(getattr(self, name), std=std)
        with torch.no_grad():
            self.beta += (-1.0) ** torch.arange(ndim)

    @full_precision
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        L = x.shape[1]
        forward, backward = self.kernel(min(self.truncation or L, L))  # (d,T) each

        # One circular kernel of L + T lags, so that the ends of the sequence do not meet: lag 0 of both directions, the
        # past, a gap, the future.
        gap = forward.new_zeros(forward.shape[0], L - forward.shape[1] + 1)
        lag_zero = forward[:, :1] + backward[:, :1]
        lags = torch.cat([lag_zero, forward[:, 1:], gap, backward[:, 1:].flip(-1)], -1)

        y = fft_conv(x.mT, lags, mask).mT
        return F.silu(y + self.omega * x)

    def kernel(self, lags: int) -> Tensor:
        """Compute the weight of each lag in both directions, (2,d,lags)."""
        p = self.delta.sigmoid()
        q = 1 - p * self.alpha.sigmoid()
        powers = q[..., None] ** torch.arange(lags, device=q.device)  # (2,d,ndim,lags)
        amplitude = p * self.beta * self.gamma * q.shape[-1] ** -0.5  # (2,d,ndim)
        return (amplitude[..., None, :] @ powers).squeeze(-2)


class RelativeBias(nn.Module):
    """A learned number for each distance between positions below ``length``."""

    def __init__(self, length: int):
        super().__init__()
        self.length = length
        self.weight = nn.Parameter(torch.empty(2 * length - 1).normal_(std=0.02))

    def forward(self, rows: Tensor, cols: Tensor) -> Tensor:
        """Compute the bias of query positions rows (..., i) and key positions cols (..., j): (..., i, j)."""
        distance = self.length - 1 + cols[..., None, :] - rows[..., :, None]
        return self.weight.index_select(0, distance.flatten()).view_as(distance)


class MegaHead(nn.Module):
    """Linear, dropout, GELU, Linear without bias on the concatenated pooled vectors of all towers, (B,T,d)."""

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
