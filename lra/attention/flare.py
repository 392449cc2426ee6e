"""FLARE, fast low-rank attention routing engine (Puri et al. 2025, arXiv 2508.12594)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..options import Positive
from .base import Attention, Sizes

Scale = Literal["one", "sqrt"]


class FLARE(Attention):
    """Route the tokens through M learned latents Λ per head.

        1. z = softmax(Λ kᵀ) v      encode L tokens into M latents                         (N,H,M,E)
        2. out = softmax(k Λᵀ) z    decode the latents for every token                     (N,H,L,E)

    There are no queries: keys score in both directions, so the attention map has rank M at most. Padding is masked in
    the encoding. O(L M (D + E)) time.

    Args:
        sizes: its dropout acts on both softmaxes.
        latents: M. Λ is normal with standard deviation 0.1 at the start.
        scale: factor of the scores: ``one``, or ``sqrt``, 1 / √D.
    """

    drops = True
    shares_qk = True
    hole_free = True

    def __init__(self, sizes: Sizes, *, latents: Positive = 128, scale: Scale = "one"):
        super().__init__(sizes)
        self.scale = 1.0 if scale == "one" else sizes.head_dim**-0.5
        self.latents = nn.Parameter(torch.empty(sizes.heads, latents, sizes.head_dim).normal_(std=0.1))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        latents = self.latents.to(k.dtype).expand(len(k), -1, -1, -1)  # (N,H,M,D)
        options = {"scale": self.scale, "dropout_p": self.sizes.dropout if self.training else 0.0}
        key_mask = None if mask is None else mask[:, None, None]
        z = F.scaled_dot_product_attention(latents, k, v, key_mask, **options)  # (N,H,M,E)
        return F.scaled_dot_product_attention(k, latents, z, **options)
