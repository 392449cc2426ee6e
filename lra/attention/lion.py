"""LION, full linear attention with decays in both directions (Afzal et al., 2025)."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.decay_attention import scalar_decay_attention
from ..ops.precision import full_precision, upcast
from .base import Mixer, Sizes, divide_sums, merge_heads, split_heads, zero_padding
from .recurrent_parts import log_decays_by_horizon


class LionS(Mixer):
    """o_i = Σ_j M_ij (φ(q_i)·φ(k_j)) v_j / Σ_j M_ij φ(q_i)·φ(k_j) with decays M_ij.

    M_ij is the product of λ_t from key j, included, to query i, excluded, and M_ii = 1 (eq. 9). λ_t = 1 - σ(w·x_t + b)
    depends on the token (LION-S). φ(x) = (silu(x) + ½) / |silu(x) + ½| has positive entries, so the denominator cannot
    vanish.
    O(L C (D + E) + L D E) time per head with chunks of C = 64 tokens; a state of H D (E + 1) numbers for each
    direction.

    The biases b give horizons 1 / (1 - λ) from 2 tokens to the maximum length, log-spaced over the heads; a single head
    has the longest. The paper initialises its Long Range Arena models "HiPPO-like" and has not released the details, so
    this choice is the suite's.

    Args:
        causal: whether a token sees only itself and earlier tokens.

    Source: the paper, sections 3.2 and 4. The released image model detaches λ, the language model does not; here
    gradients flow through it.
    ``lra/reference/decay_attention.py`` has the recurrence and says how LION shifts its decays.
    """

    compactable = True
    # The parameters of the decays: a Linear, in LION-D a Parameter.
    gate: Any

    def __init__(self, sizes: Sizes, *, dim: int, causal: bool = False):
        super().__init__(sizes, dim=dim)
        self.causal = causal
        width = sizes.heads * sizes.head_dim
        # Numerator and denominator.
        self.state_size = width * (sizes.head_dim + 1)
        self.inputs = nn.Linear(dim, 3 * width)
        self.output = nn.Linear(width, dim)
        log_decays = log_decays_by_horizon(sizes.heads, 2, sizes.length)
        self.gate = self.make_gate(dim, log_decays)

    def make_gate(self, dim: int, log_decays: Float[Tensor, " H"]) -> nn.Module | nn.Parameter:
        """Create the parameters of the decays, which start at these values."""
        gate = nn.Linear(dim, self.sizes.heads)
        with torch.no_grad():
            # Initially λ = 1 - σ(bias), so bias = -logit λ.
            logits = torch.logit(log_decays.exp())
            gate.bias.copy_(-logits)
        return gate

    def log_decay(self, x: Float[Tensor, "N L d"]) -> Float[Tensor, "N H L"]:
        """Compute log λ of each token and head: log(1 - σ(y)) = logsigmoid(-y)."""
        y = upcast(self.gate(x))  # (N,L,H)
        return F.logsigmoid(-y).mT

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        projections = self.inputs(x).chunk(3, -1)
        q, k, v = (split_heads(part, self.sizes.heads) for part in projections)
        log_decay = self.log_decay(x)
        if mask is not None:
            # Padding leaves the state unchanged: it writes nothing and does not decay the state.
            is_padding = ~mask[:, None]  # (N,1,L)
            log_decay = log_decay.masked_fill(is_padding, 0)
        out = self.attend(q, k, v, log_decay, mask)  # (N,H,L,E)
        merged = merge_heads(out)  # (N,L,H E)
        return self.output(merged.to(x.dtype))

    @full_precision
    def attend(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        log_decay: Float[Tensor, "N H L"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N H L E"]:
        """Compute o_i of all tokens."""
        phi_q = _feature_map(q)  # (N,H,L,D)
        phi_k = _feature_map(k)  # (N,H,L,D)
        phi_k = zero_padding(phi_k, mask)

        # Numerator and denominator by one recurrence: a column of ones is appended to the values.
        ones = torch.ones_like(v[..., :1])
        v_ones = torch.cat([v, ones], dim=-1)  # (N,H,L,E + 1)
        bidirectional = not self.causal
        sums = scalar_decay_attention(
            phi_q, phi_k, v_ones, log_decay, scale=1.0, bidirectional=bidirectional, key_decays=True
        )
        return divide_sums(sums, mask)


class LionD(LionS):
    """LION with one learned decay λ = σ(a) for each head (LION-D).

    O(L C (D + E) + L D E) time per head with chunks of C = 64 tokens. In plain torch:
    ``lra/reference/decay_attention.py``.
    """

    def make_gate(self, dim: int, log_decays: Float[Tensor, " H"]) -> nn.Parameter:
        return nn.Parameter(torch.logit(log_decays.exp()))

    def log_decay(self, x: Float[Tensor, "N L d"]) -> Float[Tensor, "N H L"]:
        N, L, _ = x.shape
        log_decay = F.logsigmoid(self.gate)  # (H,)
        return log_decay[None, :, None].expand(N, -1, L)


def _feature_map(x: Float[Tensor, "N H L D"]) -> Float[Tensor, "N H L D"]:
    """Compute φ(x) = (silu(x) + ½) / |silu(x) + ½|."""
    positive = F.silu(x) + 0.5
    return F.normalize(positive, dim=-1)
