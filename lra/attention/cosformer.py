"""cosFormer attention (Qin et al., ICLR 2022)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.linear_attention import linear_attention
from ..ops.precision import full_precision
from ..options import Above
from .base import Attention, Sizes


class CosFormer(Attention):
    """Linear attention with cosine re-weighting (section 3.2), O(L D E) time.

        out_i = Σ_j w_ij v_j / Σ_j w_ij,   w_ij = relu(q_i)·relu(k_j) cos(π (i - j) / 2M)   (eq. 10)

    The cosine of a difference is cos cos + sin sin (eq. 11), so w_ij = φ(q_i)·φ(k_j) with features

        φ(x_i) = [relu(x_i) cos(π i / 2M), relu(x_i) sin(π i / 2M)]

    M is ``sizes.length``, whatever the padded length of a batch, so |i - j| < M and w is never negative. The features
    need no scale: it would cancel. In plain torch: ``lra/reference/feature_maps.py``.

    Args:
        eps: lower bound on the denominator divided by the number of real keys, because all w of a query can be 0.
    """

    def __init__(self, sizes: Sizes, *, eps: Above = 1e-6):
        super().__init__(sizes)
        self.eps = eps

    @full_precision
    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        # π i / 2M
        position = torch.arange(q.shape[2], dtype=q.dtype, device=q.device)[:, None]  # (L,1)
        angle = position * (math.pi / 2 / self.sizes.length)
        cos = angle.cos()
        sin = angle.sin()

        # Eq. 11: the features of queries and keys.
        relu_q = F.relu(q)
        relu_k = F.relu(k)
        phi_q = torch.cat([relu_q * cos, relu_q * sin], -1)  # (N,H,L,2D)
        phi_k = torch.cat([relu_k * cos, relu_k * sin], -1)  # (N,H,L,2D)
        return linear_attention(phi_q, phi_k, v, mask, floor=self.eps)
