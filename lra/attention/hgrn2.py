"""HGRN2, a gated linear recurrence whose keys are what its decays forget (Qin et al., COLM 2024)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.decay_attention import channel_decay_attention
from ..ops.precision import upcast
from ..options import Share
from .base import Mixer, Sizes, merge_heads, split_heads


class HGRN2(Mixer):
    """S_t = diag(f_t) S_(t-1) + (1 - f_t) v_tᵀ, o_t = q_tᵀ S_t; then a layer norm over all heads.

    f = γ + (1 - γ) σ(W_f x) with a lower bound γ, q = σ(W_q x), v = silu(W_v x). O(L C (D + E) + L D E) time for
    each head with chunks of C = 32 tokens; a state of H D E numbers for each direction.

    In the paper one table holds the lower bounds of all layers, and they increase with depth. Here each layer learns
    its own bounds, which start at ``lower_bound``: a simplification, because a mixer does not know its depth.

    Args:
        causal: whether a token sees only itself and earlier tokens. Otherwise the recurrence also runs from the right,
            with the same parameters, and both outputs are added; the token itself counts once.
        lower_bound: initial γ of every channel.

    Source: the paper, section 3.2; activations as in its code for the Long Range Arena. In plain torch:
    ``lra/reference/decay_attention.py``.
    """

    compactable = True

    def __init__(self, sizes: Sizes, *, dim: int, causal: bool = False, lower_bound: Share = 0.5):
        super().__init__(sizes, dim=dim)
        self.causal = causal
        width = sizes.heads * sizes.head_dim
        self.state_size = width * sizes.head_dim
        self.inputs = nn.Linear(dim, 3 * width, bias=False)
        # Bounds of exactly 0 and 1 have no finite logit.
        bounds = torch.full((sizes.heads, 1, sizes.head_dim), lower_bound)
        bounds = bounds.clamp(1e-4, 1 - 1e-4)
        self.bound = nn.Parameter(bounds.logit())
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, dim, bias=False)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        projections = self.inputs(x).chunk(3, -1)
        q, logits, v = (split_heads(part, self.sizes.heads) for part in projections)
        q = q.sigmoid()  # (N,H,L,D)
        v = F.silu(v)  # (N,H,L,D)

        # Decays f between the lower bound and 1.
        bound = self.bound.sigmoid()  # (H,1,D)
        f = bound + (1 - bound) * upcast(logits).sigmoid()  # (N,H,L,D)
        if mask is not None:
            # Padding leaves the state unchanged: with f = 1 it forgets nothing and writes nothing.
            is_padding = ~mask[:, None, :, None]
            f = f.masked_fill(is_padding, 1)

        # Keys k = 1 - f.
        k = 1 - f
        out = channel_decay_attention(q, k, v, f.log(), scale=1.0, bidirectional=not self.causal)
        normed = self.norm(merge_heads(out))  # (N,L,H D)
        return self.output(normed.to(x.dtype))
