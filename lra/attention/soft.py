"""SOFT and SOFT++, attention without softmax (Lu et al., NeurIPS 2021; Lu et al. 2022, arXiv 2207.03341)."""

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from ..ops.blocks import blocks
from ..ops.kernel_features import zero_padding
from ..ops.pinv import newton
from ..ops.precision import at_least_float32, full_precision
from ..ops.scores import gaussian
from ..ops.segments import real_first, segment_means
from ..ops.selection import gather_kept
from ..ops.three_factor import Inverse
from ..options import Range, in_range
from .base import Attention, Sizes

Sample = Literal["pool", "conv", "random", "first"]


class Soft(Attention):
    """Pᵀ A⁺ (P v), P_ij = exp(-||q̃_i - q_j||² / (2 √D)), A_ij = exp(-||q̃_i - q̃_j||² / (2 √D)).

    One projection serves queries and keys. The m bottleneck tokens q̃ are, by ``sample``: means (``pool``) or a strided
    convolution (``conv``, shared by the heads) of windows of ``window`` positions, or ``random`` tokens, or the
    ``first`` ones. activate: LayerNorm and GELU behind the convolution, in the released code only. count: null takes
    one token for each window, so m = n / window and the inverse takes cubic time; a number keeps m fixed,
    ``pool`` then being over segments: token r of n_real lies in segment floor(r m / n_real).
    normalise: SOFT++, Pᵀ D^-½ A⁺ D^-½ (P v) with D the row sums of A. pinv: (..., m, m) -> (..., m, m).

    Padding enters no window. A bottleneck token without real tokens is a row and column of the identity in A: the
    inverse stays block diagonal, its start is that of the real block, whose largest column sum is at least the 1 of
    its diagonal, and the row of P v is zero, so that the result is that of the smaller problem.

    O(L m (D + E) + m³) time. Raises ValueError for a window or a count outside 1 .. length.
    """

    shares_qk = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        sample: Sample = "pool",
        window: int = 4,
        count: int | None = None,
        activate: bool = True,
        normalise: bool = False,
        pinv: Inverse = partial(newton, steps=20, init="soft", ridge=0.01),
    ):
        super().__init__(sizes)
        in_range("window", window, Range(1, sizes.length), "length")
        if count is not None:
            in_range("count", count, Range(1, sizes.length), "length")
        if count is not None and sample == "conv":
            raise ValueError(f"count must be null with sample=conv, whose windows are fixed, not {count}")
        self.sample, self.window, self.count, self.normalise, self.pinv = sample, window, count, normalise, pinv
        self.hole_free = sample == "first" or (sample == "pool" and count is not None)  # others look at positions
        if sample == "random":  # the draw used in evaluation
            self.register_buffer("draw", torch.rand(sizes.length))
        if sample == "conv":  # stride = kernel: a linear map of each window
            after = [nn.LayerNorm(sizes.head_dim), nn.GELU()] if activate else []
            self.conv = nn.Sequential(nn.Linear(window * sizes.head_dim, sizes.head_dim, bias=False), *after)

    def forward(self, q, k, v, mask=None):
        if mask is None:
            mask = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device)
        q = at_least_float32(q) * q.shape[-1] ** -0.25
        return self._product(q, v, mask, *self.bottleneck(q, mask))

    @full_precision
    def _product(self, q: Tensor, v: Tensor, mask: Tensor, marks: Tensor, real: Tensor) -> Tensor:
        """q (N,H,L,D), v (N,H,L,E), mask (N,L), marks q̃ (N,H,m,D), real (N,m): which of them hold real tokens."""
        p = gaussian(marks, q)  # (N,H,m,L)
        pairs = (real[:, :, None] & real[:, None])[:, None]  # (N,1,m,m)
        a = gaussian(marks, marks).where(pairs, torch.eye(marks.shape[2], dtype=q.dtype, device=q.device))
        w = p @ zero_padding(v, mask) * real[:, None, :, None]  # (N,H,m,E)
        if self.normalise:
            d = a.sum(-1, keepdim=True).rsqrt()
            return p.mT @ (d * (self.pinv(a) @ (d * w)))
        return p.mT @ (self.pinv(a) @ w)

    def bottleneck(self, q: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """q (N,H,L,D), mask (N,L) -> bottleneck tokens (N,H,m,D) and which of them hold real tokens (N,m)."""
        L, total = q.shape[2], mask.sum(-1, keepdim=True)  # (N,1)
        if self.count is None and self.sample in ("pool", "conv"):
            return self.windows(q, mask)
        if self.sample == "pool":
            (marks,), real = segment_means(mask, min(self.count, L), q)
            return marks, real
        if self.count is None:
            m, used = -(-L // self.window), -(-total // self.window)
        else:
            m, used = min(self.count, L), total.clamp(max=self.count)
        index = self.order(mask)[:, None, :m].expand(-1, q.shape[1], -1)
        return gather_kept(q, index), torch.arange(m, device=q.device) < used

    def windows(self, q: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        tokens = blocks(zero_padding(q, mask), self.window)  # (N,H,m,window,D)
        sizes = blocks(mask, self.window, 1).sum(-1)  # (N,m)
        if self.sample == "conv":
            return self.conv(tokens.flatten(3).to(self.conv[0].weight.dtype)), sizes > 0
        return tokens.sum(3) / sizes.clamp(min=1)[:, None, :, None], sizes > 0

    def order(self, mask: Tensor) -> Tensor:
        """Positions (N,L), real tokens first, by position or by a random number."""
        N, L = mask.shape
        if self.sample == "first":
            return real_first(mask)
        draw = torch.rand(N, L, device=mask.device) if self.training else self.draw[:L].expand(N, -1)
        return draw.masked_fill(~mask, 2).argsort(dim=-1)
