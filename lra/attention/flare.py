"""FLARE, fast low-rank attention routing engine (Puri et al. 2025, arXiv 2508.12594)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..options import Positive
from .base import Attention, Sizes

Scale = Literal["one", "sqrt"]


class FLARE(Attention):
    """softmax(K Λᵀ) (softmax(Λ Kᵀ) V): L tokens encoded into ``latents`` and decoded again.

    Λ (H,latents,D) is learned, normal with standard deviation 0.1, each head with its own. There are no queries: keys
    score both ways, so that the map is one of rank ``latents`` at most. Padding is masked where it is encoded.
    ``dropout`` acts on both softmaxes. O(L latents (D + E)) time.

    Args:
        latents: rows of Λ.
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
        keys = None if mask is None else mask[:, None, None]
        z = F.scaled_dot_product_attention(latents, k, v, keys, **options)  # (N,H,M,E)
        return F.scaled_dot_product_attention(k, latents, z, **options)
