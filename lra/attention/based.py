"""Based's linear attention: the Taylor expansion of the exponential as features (Arora et al., 2024)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.decay_attention import scalar_decay_attention
from ..ops.precision import full_precision
from ..options import Positive
from .base import Mixer, Sizes, divide_sums, merge_heads, split_heads, zero_padding


class Based(Mixer):
    """o_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j) with φ(q)·φ(k) = 1 + s + s²/2 and s = q·k D^-1/2.

    φ(q)·φ(k) is the second-order Taylor expansion of exp(s), at least ½, so the denominator cannot vanish. Queries and
    keys have D = ``features`` entries for each head, so φ has 1 + D + D² of them. O(L D² E) time per head, with
    ``causal`` also O(L C (D² + E)) for chunks of C = 64 tokens; a state of H (1 + D + D²) (E + 1) numbers. The released
    models alternate it with causal sliding windows (``attn=longformer`` has windows to both sides) and short
    convolutions; this class is the linear attention alone.

    Args:
        causal: whether a token sees only itself and earlier tokens, as published.
        features: D.

    Source: the paper, section 4.1. In plain torch: ``lra/reference/feature_maps.py``.
    """

    compactable = True

    def __init__(self, sizes: Sizes, *, dim: int, causal: bool = False, features: Positive = 16):
        super().__init__(sizes, dim=dim)
        self.causal = causal
        width = sizes.heads * sizes.head_dim
        num_features = 1 + features + features**2
        self.state_size = sizes.heads * num_features * (sizes.head_dim + 1)
        qk_width = sizes.heads * features
        self.widths = [qk_width, qk_width, width]
        self.inputs = nn.Linear(dim, sum(self.widths), bias=False)
        self.output = nn.Linear(width, dim, bias=False)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        projections = self.inputs(x).split(self.widths, dim=-1)
        q, k, v = (split_heads(part, self.sizes.heads) for part in projections)
        out = merge_heads(self.attend(q, k, v, mask))  # (N,L,H E)
        return self.output(out.to(x.dtype))

    @full_precision
    def attend(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N H L E"]:
        """Compute o_i of all tokens."""
        phi_q = _taylor_features(q)  # (N,H,L,F)
        phi_k = _taylor_features(k)  # (N,H,L,F)
        phi_k = zero_padding(phi_k, mask)

        # Numerator and denominator in one product: a column of ones is appended to the values.
        ones = torch.ones_like(v[..., :1])
        v_ones = torch.cat([v, ones], dim=-1)  # (N,H,L,E + 1)
        if self.causal:
            # A causal sum is a recurrence that forgets nothing.
            log_decay = torch.zeros_like(phi_q[..., 0])  # (N,H,L)
            sums = scalar_decay_attention(phi_q, phi_k, v_ones, log_decay, scale=1.0)
        else:
            sums = phi_q @ (phi_k.mT @ v_ones)
        return divide_sums(sums, mask)


def _taylor_features(x: Float[Tensor, "N H L D"]) -> Float[Tensor, "N H L F"]:
    """Compute φ(x) = [1, x D^-1/4, x ⊗ x / (√2 D^1/2)], F = 1 + D + D²."""
    D = x.shape[-1]
    column = x[..., :, None]  # (N,H,L,D,1)
    row = x[..., None, :]  # (N,H,L,1,D)
    products = (column * row).flatten(-2)  # (N,H,L,D²)
    constant = torch.ones_like(x[..., :1])
    linear = x * D**-0.25
    quadratic = products * (2 * D) ** -0.5
    return torch.cat([constant, linear, quadratic], dim=-1)
