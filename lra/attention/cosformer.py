"""cosFormer attention (Qin et al., ICLR 2022)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.kernel_features import attend
from ..ops.precision import full_precision
from ..options import Above
from .base import Attention, Sizes


class CosFormer(Attention):
    """Σ_j w_ij v_j / Σ_j w_ij with w_ij = relu(q_i)·relu(k_j) cos(π (i - j) / 2M) (section 3).

    The cosine of the difference is cos cos + sin sin, so that w is a product of features

        φ(x_i) = [relu(x_i) cos(π i / 2M), relu(x_i) sin(π i / 2M)]

    M is the configured length, whatever a batch is padded to; all differences are below it, so w is never negative.
    There is no scale: it would cancel. O(L D E) time.

    Args:
        eps: the least denominator, as a mean of w over the real keys: all w of a query can be 0.
    """

    def __init__(self, sizes: Sizes, *, eps: Above = 1e-6):
        super().__init__(sizes)
        self.eps = eps

    @full_precision
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        angle = torch.arange(q.shape[2], dtype=q.dtype, device=q.device)[:, None] * (math.pi / 2 / self.sizes.length)
        cos, sin = angle.cos(), angle.sin()  # (L,1)
        q, k = (torch.cat([x * cos, x * sin], -1) for x in (F.relu(q), F.relu(k)))  # (N,H,L,2D)
        return attend(q, k, v, mask, floor=self.eps)
