"""FLARE, fast low-rank attention routing engine (Puri et al. 2025, arXiv 2508.12594)."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..options import Positive
from .base import Attention, Sizes, as_attn_mask

Scale = Literal["one", "sqrt"]


class FLARE(Attention):
    """Route the tokens through M learned latents Λ per head.

        1. z = softmax(s Λ kᵀ) v      encode L tokens into M latents                       (N,H,M,E)
        2. out = softmax(s k Λᵀ) z    decode the latents for every token                   (N,H,L,E)

    There are no queries: keys score in both directions, so the attention map has rank M at most. Padding is masked in
    the encoding. O(L M (D + E)) time. In plain torch: ``lra/reference/latents.py``.

    Args:
        sizes: its dropout acts on both softmaxes.
        latents: M. Λ is initially normal with standard deviation 0.1.
        scale: s. ``one``: s = 1; ``sqrt``: s = 1 / √D.
    """

    has_dropout = True
    shared_qk = True
    compactable = True

    def __init__(self, sizes: Sizes, *, latents: Positive = 128, scale: Scale = "one"):
        super().__init__(sizes)
        self.scale = 1.0 if scale == "one" else sizes.head_dim**-0.5
        initial = torch.empty(sizes.heads, latents, sizes.head_dim).normal_(std=0.1)
        self.latents = nn.Parameter(initial)

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        latents = self.latents.to(k.dtype)  # (H,M,D)
        latents = latents.expand(len(k), -1, -1, -1)  # (N,H,M,D)
        dropout_p = self.sizes.dropout if self.training else 0.0

        # 1. Encode.
        attn_mask = as_attn_mask(mask)
        z = F.scaled_dot_product_attention(latents, k, v, attn_mask, dropout_p=dropout_p, scale=self.scale)  # (N,H,M,E)

        # 2. Decode.
        return F.scaled_dot_product_attention(k, latents, z, dropout_p=dropout_p, scale=self.scale)
