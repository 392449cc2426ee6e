"""RetNet's retention: linear attention with one fixed decay per head (Sun et al., 2023)."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.decay_attention import scalar_decay_attention
from ..options import Positive
from .base import Mixer, Sizes, merge_heads, split_heads, zero_padding
from .recurrent_parts import log_decays_by_horizon

Decays = Literal["length", "published"]


class RetNet(Mixer):
    """o_i = Σ_j γ^|i-j| (q_i·k_j) D^-1/2 v_j with rotated q and k; then W_o(silu(W_g x) norm(o)), a norm for each head.

    norm is an RMS norm without parameters, as released; the paper has a group norm. The paper and its code also divide
    the decays by the root of their row sum, and the scores by the absolute value of their row sum if it exceeds 1
    (section 2.2). The norm cancels both (up to its epsilon), so they are left out, as in flash-linear-attention. Values
    have size E = expand · D. O(L C (D + E) + L D E) time per head with chunks of C = 64 tokens; a state of H D E
    numbers per direction.

    Args:
        causal: whether a token sees only itself and earlier tokens, as published.
        expand: width of the values as a multiple of the head size; published: 2.
        decays: ``published``: γ_h = 1 - 2^(-5-h) for head h = 0, 1, ..., horizons of 32, 64, ... tokens. With two heads
            a token's weight is at most 4.3 % after 200 tokens. ``length``: horizons from 32 tokens to ``sizes.length``.

    Raises:
        ValueError: head_dim is odd.

    Source: the paper, sections 2.1 and 2.2; initial values of the released code. In plain torch:
    ``lra/reference/decay_attention.py``.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: int,
        causal: bool = False,
        expand: Positive = 2,
        decays: Decays = "length",
    ):
        super().__init__(sizes, dim=dim)
        if sizes.head_dim % 2:
            raise ValueError(f"head_dim must be even to rotate queries and keys, got {sizes.head_dim}")
        self.causal = causal
        width = sizes.heads * sizes.head_dim
        value_dim = expand * sizes.head_dim
        value_width = expand * width
        self.state_size = width * value_dim
        self.queries = nn.Linear(dim, width, bias=False)
        self.keys = nn.Linear(dim, width, bias=False)
        self.values = nn.Linear(dim, value_width, bias=False)
        self.gate = nn.Linear(dim, value_width, bias=False)
        self.norm = nn.RMSNorm(value_dim, eps=1e-6, elementwise_affine=False)
        self.output = nn.Linear(value_width, dim, bias=False)
        # Initial values of the released code.
        for layer in (self.queries, self.keys, self.values, self.gate):
            nn.init.xavier_uniform_(layer.weight, gain=2**-2.5)
        nn.init.xavier_uniform_(self.output.weight, gain=0.5)
        if decays == "published":
            exponent = 5 + torch.arange(sizes.heads)
            log_decay = torch.log1p(-(2.0**-exponent))
        else:
            log_decay = log_decays_by_horizon(sizes.heads, 32, sizes.length)
        self.log_decay: Tensor
        self.register_buffer("log_decay", log_decay, persistent=False)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        # Queries and keys rotated by their positions.
        heads = self.sizes.heads
        q = _rotate(split_heads(self.queries(x), heads))  # (N,H,L,D)
        k = _rotate(split_heads(self.keys(x), heads))  # (N,H,L,D)
        v = split_heads(self.values(x), heads)  # (N,H,L,E)

        # Retention.
        N, L, _ = x.shape
        log_decay = self.log_decay[None, :, None].expand(N, -1, L)
        # A padded token writes nothing. The decay follows the position, so it acts at padding too.
        k = zero_padding(k, mask)
        out = scalar_decay_attention(q, k, v, log_decay, bidirectional=not self.causal)  # (N,H,L,E)

        # Norm of each head, then the gate.
        normed = merge_heads(self.norm(out))  # (N,L,H E)
        gated = F.silu(self.gate(x)) * normed
        return self.output(gated.to(x.dtype))


def _rotate(x: Float[Tensor, "N H L D"]) -> Float[Tensor, "N H L D"]:
    """Rotate features i and D/2 + i of position t by the angle t 10000^(-i / (D/2 - 1)), in float32 at least.

    The angles are the released ones; RoPE has 10000^(-2i / D). The released code pairs features 2i and 2i + 1, which is
    the same up to a permutation of the features.
    """
    half = x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    exponents = torch.linspace(0, 1, half, dtype=dtype, device=x.device)
    frequencies = 10_000**-exponents
    positions = torch.arange(x.shape[2], dtype=dtype, device=x.device)
    angles = positions[:, None] * frequencies  # (L,D/2)
    cos = angles.cos()
    sin = angles.sin()
    x = x.to(dtype)
    first, second = x.chunk(2, dim=-1)
    rotated_first = first * cos - second * sin
    rotated_second = first * sin + second * cos
    return torch.cat([rotated_first, rotated_second], dim=-1)
