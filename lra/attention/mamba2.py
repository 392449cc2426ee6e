"""State-space layers with one decay per head: Mamba-2 (Dao and Gu, ICML 2024), Hydra (Hwang et al., NeurIPS 2024)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.precision import upcast
from ..ops.scalar_decay import scalar_decay_attention
from ..options import Above, Positive
from .base import Mixer, Sizes
from .gated import HeadNorm, ShortConvolution, initial_steps, split_heads


class Mamba2(Mixer):
    """S_t = exp(Δ_t A) S_(t-1) + B_t (Δ_t x_t)ᵀ, o_t = C_tᵀ S_t + D x_t for each head, then RMSNorm(o silu(z)).

    One linear map gives z, x, B, C and Δ; x, B and C pass a short convolution and SiLU. B and C, of n entries, are
    shared by the heads, whose width is expand · dim / heads. O(L C (n + E) + L n E) time with chunks of C = 64
    tokens; a state of n E numbers for each head and direction.

    Args:
        causal: only earlier tokens and the token itself, as published.
        states: n.
        expand: width of x as a multiple of dim.
        conv: tokens that the short convolution sees.
        step_min, step_max: range of the initial step sizes, drawn log-uniformly.

    Raises:
        ValueError: the heads do not divide expand · dim.

    Source: the paper, sections 5 to 7. In plain torch: ``lra/reference/retention.py``.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: int,
        causal: bool = False,
        states: Positive = 64,
        expand: Positive = 2,
        conv: Positive = 4,
        step_min: Above = 0.001,
        step_max: Above = 0.1,
    ):
        super().__init__(sizes, dim=dim)
        inner = expand * dim
        if inner % sizes.heads:
            raise ValueError(f"model.heads must divide expand * dim = {inner}, got {sizes.heads}")
        self.causal = causal
        self.states = states
        self.inner = inner
        self.state_size = inner * states
        self.directions = self.num_directions()
        heads = sizes.heads
        maps = 2 * self.directions * states  # B and C
        self.inputs = nn.Linear(dim, 2 * inner + maps + self.directions * heads, bias=False)
        self.conv = ShortConvolution(inner + maps, conv, causal=causal, bias=True)
        self.step_bias = nn.Parameter(initial_steps(heads, step_min, step_max))
        self.log_A = nn.Parameter(self.initial_log_A(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.rates = {"log_A": 1.0, "D": 1.0, "step_bias": 1.0}  # without weight decay
        self.norm = HeadNorm(inner)
        self.output = nn.Linear(inner, dim, bias=False)

    def num_directions(self) -> int:
        """Number of directions that have separate B, C and Δ."""
        return 1

    def initial_log_A(self, heads: int) -> Tensor:
        """A starts between -1 and -16."""
        return torch.empty(heads).uniform_(1, 16).log()

    def project(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute z (N,L,inner), x (N,L,inner), the maps B, C of all directions (N,L,·) and steps Δ (N,L,·)."""
        maps = 2 * self.directions * self.states
        sizes = [self.inner, self.inner + maps, self.directions * self.sizes.heads]
        z, mixed, delta = self.inputs(x).split(sizes, dim=-1)
        u, maps_BC = self.conv(mixed, mask).split([self.inner, maps], dim=-1)
        delta = F.softplus(upcast(delta) + self.step_bias.repeat(self.directions))
        if mask is not None:
            # A padded token is the identity: a step of zero neither decays the state nor writes to it.
            delta = delta.masked_fill(~mask[..., None], 0)
        return z, u, maps_BC, delta

    def scan(self, u: Tensor, maps_BC: Tensor, delta: Tensor, *, bidirectional: bool) -> Tensor:
        """Run the recurrence: u (N,L,inner), B and C (N,L,2 n), Δ (N,L,H) -> (N,L,H,E)."""
        heads = self.sizes.heads
        B, C = (part[:, None].expand(-1, heads, -1, -1) for part in maps_BC.chunk(2, dim=-1))  # (N,H,L,n)
        values = split_heads(u, heads) * delta.mT[..., None]  # (N,H,L,E)
        log_decay = (-self.log_A.exp() * delta).mT  # (N,H,L)
        out = scalar_decay_attention(C, B, values, log_decay, scale=1.0, bidirectional=bidirectional)
        return out.transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        z, u, maps_BC, delta = self.project(x, mask)
        out = self.scan(u, maps_BC, delta, bidirectional=not self.causal)
        out = out + self.D[:, None] * u.unflatten(-1, (self.sizes.heads, -1))

        # The gate comes before the norm.
        gated = out.flatten(2) * F.silu(z)
        return self.output(self.norm(gated).to(x.dtype))


class Hydra(Mamba2):
    """A quasiseparable mixer: Mamba-2 from both sides without the own token, plus a diagonal.

    y_i = Σ_(j<i) of a scan from the left + Σ_(j>i) of a scan from the right + (W_D x_i + D) x_i, then RMSNorm(y)
    silu(z). B, C and Δ of the two directions are separate; x, z, A and the bias of Δ are shared. The scans are
    shifted by one token, so that token i reads what token i - 1 (i + 1) would have read. The short convolution is
    centred.

    Args:
        causal: the scan from the left and the diagonal alone.

    Source: the paper, section 3; the shift and initial values by its released code. In plain torch:
    ``lra/reference/retention.py``.
    """

    def __init__(self, sizes: Sizes, *, dim: int, conv: Positive = 7, **options):
        super().__init__(sizes, dim=dim, conv=conv, **options)
        self.diagonal = nn.Linear(self.inner, sizes.heads, bias=False)

    def num_directions(self) -> int:
        return 1 if self.causal else 2

    def initial_log_A(self, heads: int) -> Tensor:
        return torch.zeros(heads)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        z, u, maps_BC, delta = self.project(x, mask)
        maps_ahead, *maps_behind = maps_BC.chunk(self.directions, dim=-1)
        delta_ahead, *delta_behind = delta.chunk(self.directions, dim=-1)
        if self.causal:
            out = _shift(self.scan(u, maps_ahead, delta_ahead, bidirectional=False))
        else:
            # Both directions are one batch: the second half of the examples runs from right to left.
            sequences = torch.cat([u, u.flip(1)])
            maps = torch.cat([maps_ahead, maps_behind[0].flip(1)])
            steps = torch.cat([delta_ahead, delta_behind[0].flip(1)])
            forward, backward = _shift(self.scan(sequences, maps, steps, bidirectional=False)).chunk(2)
            out = forward + backward.flip(1)

        # The diagonal: the token itself.
        diagonal = self.diagonal(u) + self.D  # (N,L,H)
        out = out + diagonal[..., None] * u.unflatten(-1, (self.sizes.heads, -1))

        # The gate comes after the norm.
        gated = self.norm(out.flatten(2)) * F.silu(z)
        return self.output(gated.to(x.dtype))


def _shift(x: Tensor) -> Tensor:
    """Move every token (N,L,...) one position to the right; the first one becomes zero."""
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
