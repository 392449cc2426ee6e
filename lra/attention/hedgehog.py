"""Hedgehog attention (Zhang, Bhatia, Kumbong and Re, ICLR 2024)."""

from typing import Literal

import torch
from torch import Tensor, nn

from ..ops.kernel_features import attend
from ..ops.precision import at_least_float32, full_precision
from .base import Attention, Sizes

Softmax = Literal["halves", "joint"]


class Hedgehog(Attention):
    """Linear attention φ(q) Σ φ(k) vᵀ / φ(q) Σ φ(k) with learned features that are as spiky as softmax (section 4).

        φ(x) = [exp(y), exp(-y)] up to a normalisation,   y = x W + b

    W and b are each head's own, W starts at the identity and b at 0. Trained from scratch; the paper's distillation
    from softmax attention is left out. O(L D E) time.

    Args:
        softmax: the normalisation over features, for numerical range. ``halves``: [softmax(y), softmax(-y)], the
            authors' code. ``joint``: softmax([2y, -2y]), that of flash-linear-attention.
        tie_qk: queries and keys share W and b.

    Source: the paper and the code named in docs/formulas.md.
    """

    hole_free = True

    def __init__(self, sizes: Sizes, *, softmax: Softmax = "halves", tie_qk: bool = False):
        super().__init__(sizes)
        self.softmax = softmax
        H, D, maps = sizes.heads, sizes.head_dim, 1 if tie_qk else 2
        self.weight = nn.Parameter(torch.eye(D).repeat(maps, H, 1, 1))  # of queries, of keys
        self.bias = nn.Parameter(torch.zeros(maps, H, 1, D))

    @full_precision
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        weight, bias = at_least_float32((self.weight, self.bias))
        q, k = self.features(q @ weight[0] + bias[0]), self.features(k @ weight[-1] + bias[-1])
        return attend(q, k, v, mask, floor=torch.finfo(q.dtype).tiny)  # positive features need no floor

    def features(self, y: Tensor) -> Tensor:
        """(N,H,L,D) -> (N,H,L,2D), positive."""
        if self.softmax == "joint":
            return torch.cat([2 * y, -2 * y], -1).softmax(-1)
        return torch.cat([y.softmax(-1), (-y).softmax(-1)], -1)
