"""Skyformer attention (Chen, Zeng, Ji and Yang, NeurIPS 2021)."""

from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from ..ops.gaussian import gaussian_kernel
from ..ops.pinv import Inverse, cubic, is_batch_dependent
from ..ops.precision import full_precision
from ..ops.segments import real_first
from ..ops.selection import Resample, gather_tokens
from ..options import Positive, Range
from .base import Attention, Sizes


class Skyformer(Attention):
    """κ(Q,S) M⁻¹ κ(S,K) V, the Nyström approximation of Gaussian kernel attention κ(Q,K) V.

        κ(a, b) = exp(-||a - b||² / (2 √D)),   M = κ(S,S) + ridge I
        M⁻¹ = R^-½ pinv(R^-½ M R^-½) R^-½ with the row sums R of M (section 4)

    The rows S are landmarks of the one kernel matrix over queries and keys together, of which κ(Q,K) is a block: half
    of them queries, half keys, drawn uniformly and with replacement among the real tokens, at the same positions in
    every head. Nothing is normalised: rows of the weights do not sum to one. Time O(L m (D + E) + m³) for m landmarks.

    Args:
        samples: drawn queries, and as many keys.
        ridge: added to the diagonal of M, as released; M without it is singular if a token is drawn twice.
        resample: ``train`` draws anew at every call while training and keeps one draw, the same for every example, in
            evaluation; ``always`` draws anew in evaluation too, as released.
        pinv: (...,m,m) -> the same.
    """

    hole_free = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        samples: Positive = 64,
        ridge: Annotated[float, Range(0)] = 0.1,
        resample: Resample = "train",
        pinv: Inverse = partial(cubic, steps=6),
    ):
        super().__init__(sizes)
        self.ridge, self.resample, self.pinv = ridge, resample, pinv
        self.mixes_batch = is_batch_dependent(pinv)
        self.register_buffer("draw", torch.rand(2 * samples))  # of evaluation

    @full_precision
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k = q * q.shape[-1] ** -0.25, k * k.shape[-1] ** -0.25
        s = self.landmarks(q, k, mask)  # (N,H,m,D)
        m = gaussian_kernel(s, s) + self.ridge * torch.eye(s.shape[2], dtype=s.dtype, device=s.device)
        r = m.sum(-1, keepdim=True).rsqrt()  # (N,H,m,1)
        w = gaussian_kernel(s, k) @ (v if mask is None else v * mask[:, None, :, None])  # (N,H,m,E)
        return gaussian_kernel(q, s) @ (r * (self.pinv(r * m * r.mT) @ (r * w)))

    def landmarks(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Drawn rows of q, then of k, (N,H,m,D): number u of the draw is real token floor(u n_real)."""
        N, H, L, _ = q.shape
        draw = torch.rand_like(self.draw) if self.training or self.resample == "always" else self.draw
        real = torch.full((N, 1), L, device=q.device) if mask is None else mask.sum(-1, keepdim=True).clamp(min=1)
        rank = (draw * real).long().minimum(real - 1)  # (N,m); a product may round up to n_real
        if mask is not None:
            rank = real_first(mask).gather(1, rank)
        rows, cols = rank[:, None].expand(-1, H, -1).chunk(2, -1)
        return torch.cat([gather_tokens(q, rows), gather_tokens(k, cols)], 2)
