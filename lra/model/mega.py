"""MEGA, moving average equipped gated attention (Ma et al., ICLR 2023), around any mechanism."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..attention.base import Attention, Sizes
from ..ops.attention_maps import ensure_nonempty
from ..ops.blocks import real_blocks, split_blocks
from ..ops.precision import full_precision
from ..ops.ssm import fft_conv
from ..options import Checked, Positive
from .norm import Norm, make_norm


class Mega(Checked, nn.Module):
    """A whole layer: gated attention over a moving average, then a feed-forward layer (section 3).

        1. x̂ = norm(x),   v = SiLU(x̂ W_v),   c = EMA(x̂)
        2. u, Z, r, h = split(c W)
        3. q = SiLU(Z) κ_q + μ_q,   k = SiLU(Z) κ_k + μ_k
        4. o = attention(q, k, v)
        5. x ← x + sigmoid(u) (SiLU(h + (o SiLU(r)) W_o) - x)
        6. x + W_2 SiLU(W_1 norm(x))

    Softmax attention takes O(L min(chunk, L) (z + hidden)) time; without chunks the minimum is L. Like every block it
    takes a ``memory`` and passes it on (``lra.model.blocks``). ``lra/reference/mega.py`` has the same equations for one
    sequence.

    Args:
        attention: a factory that takes ``Sizes`` with heads 1, head_dim ``z`` and value_dim ``hidden``.
        dim: d.
        hidden: width of the values and of the feed-forward layer.
        length: maximum sequence length.
        z: width of queries and keys.
        dropout: dropout rate of c, of the candidate SiLU(h + ...) in step 5 and of the feed-forward output. Attention
            dropout is an option of the mechanism; MEGA's hidden dropout is left out. Both are 0 on every task of LRA.
        ndim, truncation: options of ``EMA``.
        chunk: attention is restricted to consecutive chunks of this many tokens, which only the moving average
            connects; None for none.
        norm: ``layer`` | ``scale`` | ``rms`` | ``batch``.
        prenorm: whether the norm of each half, attention and feed-forward layer, comes before it instead of after it.
        bias: whether a learned number for each signed distance between tokens is added to the scores. Mechanisms
            without ``supports_bias`` need False.

    Raises:
        ValueError: bias is true and the mechanism takes no bias, or an option has an invalid value.
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
        # Widths of u, Z, r and h.
        self.widths = [dim, z, hidden, dim]
        reach = min(chunk or length, length)
        sizes = Sizes(heads=1, head_dim=z, value_dim=hidden, length=reach)
        self.attention = attention(sizes)
        if bias and not self.attention.supports_bias:
            raise ValueError(f"bias must be false around {type(self.attention).__name__}, which takes no position bias")
        self.bias = RelativeBias(reach) if bias else None
        self.ema = EMA(dim, ndim=ndim, truncation=truncation)
        # The state of the moving average only; attention over all tokens has none.
        self.state_size = dim * ndim
        self.norm = make_norm(norm, dim)
        self.mlp_norm = make_norm(norm, dim)
        # W_v, W, W_o, κ and μ.
        self.values = nn.Linear(dim, hidden)
        self.gates = nn.Linear(dim, sum(self.widths))
        self.output = nn.Linear(hidden, dim)
        # With shared_qk one κ and μ give queries and keys.
        num_projections = 1 if self.attention.shared_qk else 2
        self.qk_scale = nn.Parameter(torch.empty(num_projections, z))
        self.qk_shift = nn.Parameter(torch.zeros(num_projections, z))
        self.dropout = nn.Dropout(dropout)
        mlp_inputs = nn.Linear(dim, hidden)
        mlp_output = nn.Linear(hidden, dim)
        self.mlp = nn.Sequential(mlp_inputs, nn.SiLU(), mlp_output, nn.Dropout(dropout))
        nn.init.normal_(self.qk_scale, std=0.02)
        for layer in (self.values, self.gates, self.output, mlp_inputs, mlp_output):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None,
        memory: Any = None,
    ) -> tuple[Float[Tensor, "N L d"], Any]:
        # 1. Values and moving average.
        normed = self.norm(x, mask) if self.prenorm else x
        v = F.silu(self.values(normed))  # (N,L,hidden)
        c = self.ema(normed, mask).to(normed.dtype)  # (N,L,d)

        # 2. The gates u and r, the vectors Z for queries and keys, and h, a part of the candidate.
        projected = self.gates(self.dropout(c))
        u, Z, r, h = projected.split(self.widths, -1)

        # 3. Queries and keys.
        shared = F.silu(Z)[..., None, :]  # (N,L,1,z)
        qk = shared * self.qk_scale + self.qk_shift  # (N,L,1 or 2,z)

        # 4. Attention with one head.
        q = qk[:, None, :, 0]  # (N,1,L,z)
        k = qk[:, None, :, -1]  # (N,1,L,z)
        o = self._attend(q, k, v[:, None], mask)  # (N,1,L,hidden)
        o = o[:, 0].to(v.dtype)  # (N,L,hidden)

        # 5. Gated residual.
        gated = self.output(o * F.silu(r))  # (N,L,d)
        candidate = F.silu(h + gated)
        candidate = self.dropout(candidate)
        x = x + u.sigmoid() * (candidate - x)

        # 6. Feed-forward layer. Without prenorm the norm of the attention half comes here, and the other norm last.
        if self.prenorm:
            x = x + self.mlp(self.mlp_norm(x, mask))
            return x, memory
        x = self.norm(x, mask)
        x = self.mlp_norm(x + self.mlp(x), mask)
        return x, memory

    def _attend(
        self,
        q: Float[Tensor, "N 1 L z"],
        k: Float[Tensor, "N 1 L z"],
        v: Float[Tensor, "N 1 L hidden"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N 1 L hidden"]:
        """Attend within chunks, or to all tokens."""
        N, _, L, _ = q.shape
        attend = self.attention if self.bias is None else partial(self.attention, bias=self.bias)
        if self.chunk is None or self.chunk >= L:
            return attend(q, k, v, mask)

        # Chunks become examples; a chunk of padding attends to itself, and its outputs are not used.
        chunk_mask = real_blocks(mask, L, self.chunk, q.device)  # (N or 1,B,chunk)
        chunk_mask = ensure_nonempty(chunk_mask)
        if chunk_mask is not None:
            chunk_mask = chunk_mask.expand(N, -1, -1).flatten(0, 1)  # (N B,chunk)
        q, k, v = (_as_examples(x, self.chunk) for x in (q, k, v))  # (N B,1,chunk,.)
        out = attend(q, k, v, chunk_mask)

        # Back to sequences.
        out = out.unflatten(0, (N, -1))  # (N,B,1,chunk,hidden)
        out = out.transpose(1, 2).flatten(2, 3)  # (N,1,B chunk,hidden)
        return out[:, :, :L]


def _as_examples(x: Float[Tensor, "N 1 L w"], chunk: int) -> Float[Tensor, "NB 1 {chunk} w"]:
    """Cut sequences into B chunks each, which become examples."""
    chunks = split_blocks(x, chunk)  # (N,1,B,chunk,w)
    return chunks.transpose(1, 2).flatten(0, 1)


class EMA(Checked, nn.Module):
    """Multi-dimensional damped moving average in both directions, plus ω x, then SiLU.

    Each channel has ``ndim`` averages h with gain p = sigmoid(δ) and decay q = 1 - p sigmoid(α):

        h_t = q h_(t-1) + p β x_t,    y_t = γ·h_t / √ndim + the same from the right end,    SiLU(y + ω x)

    The letters are the released code's: the paper writes α for p, δ for sigmoid(α) and η for γ.

    So y is a convolution with a sum of exponentials, Σ p β γ q^lag / √ndim. It is computed by FFT in O(d L log L) time
    per sequence, in float32 or wider, after O(d ndim T) for a kernel of T lags. Padding counts as zero in y.

    Args:
        dim: d.
        ndim: number of averages per channel.
        truncation: T, the number of lags in each direction, lag 0 included; None for all.
    """

    def __init__(self, dim: int, *, ndim: Positive = 16, truncation: Positive | None = None):
        super().__init__()
        self.truncation = truncation
        # One set of parameters for each direction.
        shape = (2, dim, ndim)
        # δ, α, β, γ and ω.
        self.delta = nn.Parameter(torch.empty(shape))
        self.alpha = nn.Parameter(torch.empty(shape))
        self.beta = nn.Parameter(torch.empty(shape))
        self.gamma = nn.Parameter(torch.empty(shape))
        self.omega = nn.Parameter(torch.empty(dim))
        # Keep this order, which decides the random numbers. β starts near 1, -1, 1, ...
        nn.init.normal_(self.delta, std=0.2)
        nn.init.normal_(self.alpha, std=0.2)
        nn.init.normal_(self.beta, std=0.02)
        nn.init.normal_(self.gamma, std=1)
        nn.init.normal_(self.omega, std=1)
        signs = (-1.0) ** torch.arange(ndim)
        with torch.no_grad():
            self.beta.add_(signs)

    @full_precision
    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        L = x.shape[1]
        T = min(self.truncation or L, L)
        forward, backward = self.kernel(T)  # (d,T) each

        # One circular kernel of L + T lags, so that the ends of the sequence do not meet: lag 0 of both directions, the
        # past, a gap, the future.
        lag_zero = forward[:, :1] + backward[:, :1]
        past = forward[:, 1:]
        gap = forward.new_zeros(len(forward), L - T + 1)
        future = backward[:, 1:].flip(-1)
        circular_kernel = torch.cat([lag_zero, past, gap, future], -1)  # (d,L + T)

        y = fft_conv(x.mT, circular_kernel, mask).mT  # (N,L,d)
        return F.silu(y + self.omega * x)

    def kernel(self, lags: int) -> Float[Tensor, "2 d {lags}"]:
        """Compute the weight of each lag in both directions."""
        p = self.delta.sigmoid()  # (2,d,ndim)
        q = 1 - p * self.alpha.sigmoid()
        # Σ p β γ q^lag / √ndim
        lag = torch.arange(lags, device=q.device)
        powers = q[..., None] ** lag  # (2,d,ndim,lags)
        ndim = q.shape[-1]
        amplitude = p * self.beta * self.gamma * ndim**-0.5  # (2,d,ndim)
        weights = amplitude[..., None, :] @ powers  # (2,d,1,lags)
        return weights.squeeze(-2)


class RelativeBias(nn.Module):
    """A learned number for each signed distance between two of ``length`` positions."""

    def __init__(self, length: int):
        super().__init__()
        self.length = length
        self.weight = nn.Parameter(torch.empty(2 * length - 1).normal_(std=0.02))

    def forward(
        self,
        query_positions: Int[Tensor, "*#batch i"],
        key_positions: Int[Tensor, "*#batch j"],
    ) -> Float[Tensor, "*batch i j"]:
        """Compute the bias of queries and keys at these positions."""
        distance = key_positions[..., None, :] - query_positions[..., :, None]  # (...,i,j)
        # The weight of distance 0 is in the middle.
        index = self.length - 1 + distance
        bias = self.weight.index_select(0, index.flatten())
        return bias.view_as(index)


class MegaHead(nn.Module):
    """Linear, dropout, GELU, Linear without bias on the concatenated pooled vectors of all towers."""

    def __init__(self, *, dim: int, hidden: int, outputs: int, towers: int, dropout: float = 0.0):
        super().__init__()
        first = nn.Linear(towers * dim, hidden)
        last = nn.Linear(hidden, outputs, bias=False)
        self.mlp = nn.Sequential(first, nn.Dropout(dropout), nn.GELU(), last)
        nn.init.xavier_uniform_(first.weight)
        nn.init.xavier_uniform_(last.weight)
        nn.init.zeros_(first.bias)

    def forward(self, pooled: Float[Tensor, "batch towers dim"]) -> Float[Tensor, "batch outputs"]:
        concatenated = pooled.flatten(1)  # (batch,towers dim)
        return self.mlp(concatenated)
