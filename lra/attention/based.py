"""Based's linear attention: the Taylor expansion of the exponential as features (Arora et al., 2024)."""

import torch
from torch import Tensor, nn

from ..ops.precision import full_precision
from ..ops.scalar_decay import scalar_decay_attention
from ..options import Positive
from .base import Mixer, Sizes
from .gated import merge_heads, split_heads


class Based(Mixer):
    """o_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j) with φ(q)·φ(k) = 1 + s + s²/2 and s = q·k D^-1/2.

    The second-order Taylor expansion of exp(s), at least ½, so the denominator cannot vanish. Queries and keys have D =
    ``features`` entries for each head, so φ has 1 + D + D² of them. O(L D² E) time; a state of H (1 + D + D²) (E + 1)
    numbers. The paper alternates it with layers of sliding windows (``attn=local``), which are not part of it.

    Args:
        causal: only earlier tokens and the token itself, as published.
        features: D.

    Source: the paper, section 4.1. In plain torch, with decays of 1: ``lra/reference/retention.py``.
    """

    hole_free = True

    def __init__(self, sizes: Sizes, *, dim: int, causal: bool = False, features: Positive = 16):
        super().__init__(sizes, dim=dim)
        self.causal = causal
        width = sizes.heads * sizes.head_dim
        num_features = 1 + features + features**2
        self.state_size = sizes.heads * num_features * (sizes.head_dim + 1)
        self.split = [sizes.heads * features, sizes.heads * features, width]
        self.inputs = nn.Linear(dim, sum(self.split), bias=False)
        self.output = nn.Linear(width, dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = self.inputs(x).split(self.split, dim=-1)
        q, k, v = (split_heads(part, self.sizes.heads) for part in parts)
        return self.output(merge_heads(self.attend(q, k, v, mask)).to(x.dtype))

    @full_precision
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Numerator and denominator at once: a column of ones is appended to the values."""
        q = _taylor_features(q)  # (N,H,L,F)
        k = _taylor_features(k)
        v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
        if mask is not None:
            k = k * mask[:, None, :, None]
        # A causal sum is a recurrence that forgets nothing.
        if self.causal:
            sums = scalar_decay_attention(q, k, v, torch.zeros_like(q[..., 0]), scale=1.0)
        else:
            sums = q @ (k.mT @ v)
        if mask is not None:
            # A padded query may see no key at all.
            sums = torch.where(mask[:, None, :, None], sums, 1)
        return sums[..., :-1] / sums[..., -1:]


def _taylor_features(x: Tensor) -> Tensor:
    """φ(x) = [1, x D^-1/4, x ⊗ x / (√2 D^1/2)]: (N,H,L,D) -> (N,H,L,1 + D + D²)."""
    size = x.shape[-1]
    products = (x[..., :, None] * x[..., None, :]).flatten(-2)  # (N,H,L,D²)
    constant = torch.ones_like(x[..., :1])
    linear = x * size**-0.25
    quadratic = products * (2 * size) ** -0.5
    return torch.cat([constant, linear, quadratic], dim=-1)
