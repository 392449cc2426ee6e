"""Gated linear attention, with a decay per key channel and token (Yang et al., ICML 2024)."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.decay_attention import channel_decay_attention
from ..ops.precision import upcast
from ..options import Above, Positive
from .base import Mixer, Sizes, merge_heads, split_heads


class GLA(Mixer):
    """S_t = diag(α_t) S_(t-1) + k_t v_tᵀ, o_t = D^-1/2 q_tᵀ S_t; then a norm for each head and a gate.

    α_t = σ(W_2 W_1 x_t + b)^(1/τ), a low-rank map of the token; output W_o(silu(W_g x) RMSNorm(o)). Queries and keys
    have half of the values' width. O(L C (D + E) + L D E) time per head with chunks of C = 32 tokens; a state of
    H D E numbers per direction.

    Args:
        causal: whether a token sees only itself and earlier tokens, as published. Otherwise the recurrence also runs
            from the right, with the same parameters, and both outputs are added; the token itself counts once.
        rank: width between W_1 and W_2.
        temperature: τ. With 16 the decays start near 0.958 = ½^(1/16), a horizon of about 24 tokens.

    Source: the paper, sections 4.1 and 4.4; RMS norm and gate without bias as in flash-linear-attention. The authors'
    first code (berlino/gated_linear_attention) has the factor E^-1/2, which the norm cancels, a layer norm without
    parameters, a gate with bias, and Xavier weights of queries, keys and decays with gain 2^-2.5. In plain torch:
    ``lra/reference/decay_attention.py``.
    """

    compactable = True

    def __init__(self, sizes: Sizes, *, dim: int, causal: bool = False, rank: Positive = 16, temperature: Above = 16.0):
        super().__init__(sizes, dim=dim)
        self.causal = causal
        self.temperature = temperature
        width = sizes.heads * sizes.head_dim
        key_dim = max(sizes.head_dim // 2, 1)
        key_width = sizes.heads * key_dim
        self.state_size = key_width * sizes.head_dim
        self.queries = nn.Linear(dim, key_width, bias=False)
        self.keys = nn.Linear(dim, key_width, bias=False)
        self.values = nn.Linear(dim, width, bias=False)
        # W_1, then W_2 and b.
        self.decay = nn.Sequential(
            nn.Linear(dim, rank, bias=False),
            nn.Linear(rank, key_width),
        )
        self.gate = nn.Linear(dim, width, bias=False)
        self.norm = nn.RMSNorm(sizes.head_dim, eps=1e-5)
        self.output = nn.Linear(width, dim, bias=False)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        heads = self.sizes.heads
        q = split_heads(self.queries(x), heads)  # (N,H,L,D)
        k = split_heads(self.keys(x), heads)  # (N,H,L,D)
        v = split_heads(self.values(x), heads)  # (N,H,L,E)

        # log α_t, one number per key channel.
        logits = split_heads(self.decay(x), heads)  # (N,H,L,D)
        log_decay = F.logsigmoid(upcast(logits)) / self.temperature
        if mask is not None:
            # Padding leaves the state unchanged: it writes nothing and does not decay the state.
            is_padding = ~mask[:, None, :, None]  # (N,1,L,1)
            k = k.masked_fill(is_padding, 0)
            log_decay = log_decay.masked_fill(is_padding, 0)
        out = channel_decay_attention(q, k, v, log_decay, bidirectional=not self.causal)  # (N,H,L,E)

        # Norm of each head, then the gate.
        normed = merge_heads(self.norm(out))  # (N,L,H E)
        gated = F.silu(self.gate(x)) * normed
        return self.output(gated.to(x.dtype))
