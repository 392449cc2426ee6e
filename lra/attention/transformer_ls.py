"""Long-short transformer, bidirectional (Transformer-LS; Zhu et al., NeurIPS 2021)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.blocks import blocks, windows
from ..ops.convolution import convolve_rows
from ..ops.precision import full_precision
from ..options import Positive, Whole
from .base import Mixer, Sizes


class TransformerLS(Mixer):
    """One softmax over ``rank`` compressed keys (long-range) and a window of tokens (short-term, section 3).

        k, v = LN_l(x W_k), LN_l(x W_v)          one LayerNorm over all heads together
        P = softmax over the tokens of x W_p     (N,H,rank,L), the dynamic projection
        k', v' = LN_s(P k), LN_s(P v)            the second LayerNorm, likewise
        out_i = softmax(q_i [k' k_W]ᵀ / √D) [v' v_W],   W the window of i

    Windows are consecutive segments of ``window`` queries that see their own tokens and max(window // 2, 1) on either
    side; what is padding or outside the row has no weight, and neither has it in P. Padded queries give 0. kernel:
    width of a depth-wise convolution of v, one filter per head, added to the result and initially zero; 0 for none, as
    on LRA. W_p has no bias: it would add the same to every token. dropout acts on the weights.

    O(L (rank + window) D) time. Raises ValueError for an even kernel.
    """

    drops = True

    def __init__(self, sizes: Sizes, *, dim: int, rank: Positive = 32, window: Positive = 8, kernel: Whole = 0):
        super().__init__(sizes, dim=dim)
        if kernel and kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, or 0 for no convolution, not {kernel}")
        self.window, self.reach = window, max(window // 2, 1)
        H, width = sizes.heads, sizes.heads * sizes.head_dim
        self.inputs = nn.Linear(dim, 3 * width)
        self.project = nn.Linear(dim, H * rank, bias=False)
        self.token_norm, self.compressed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.conv = None
        if kernel:
            self.conv = nn.Conv2d(H, H, (kernel, 1), groups=H, bias=False)  # holds the filters
            nn.init.zeros_(self.conv.weight)
        self.output = nn.Linear(width, dim)

    def forward(self, x, mask=None):
        N, L, _ = x.shape
        real = x.new_ones(N, L, dtype=torch.bool) if mask is None else mask
        q, k, v = self.inputs(x).chunk(3, -1)
        k, v = self.token_norm(k), self.token_norm(v)
        mixed = self._mix(x, *map(self._split, (q, k, v)), real)
        return self.output(merge(mixed).to(x.dtype))

    @full_precision
    def _mix(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
        """x (N,L,d), q, k, v (N,H,L,D), real (N,L) -> (N,H,L,D)."""
        p = self._split(self.project(x).masked_fill(~real[..., None], float("-inf")).softmax(1))  # (N,H,L,rank)
        k_long, v_long = (self._split(self.compressed_norm(merge(p.mT @ t))) for t in (k, v))  # (N,H,rank,D)
        mixed = self._attend(q * q.shape[-1] ** -0.5, k, v, k_long, v_long, real)
        mixed = mixed.masked_fill(~real[:, None, :, None], 0.0)
        return mixed if self.conv is None else mixed + convolve_rows(v * real[:, None, :, None], self.conv.weight)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, k_long: Tensor, v_long: Tensor, real: Tensor) -> Tensor:
        """q scaled, k, v (N,H,L,D), k_long, v_long (N,H,rank,D), real (N,L) -> (N,H,L,D)."""
        L, w, rank = q.shape[2], self.window, k_long.shape[2]
        place = w, self.reach, self.reach  # of each of the S segments, which sees W = w + 2 reach positions
        k_near, v_near = windows(k, *place), windows(v, *place)  # (N,H,S,W,D)
        q, seen = blocks(q, w), windows(real, *place, 1)[:, None, :, None]  # (N,H,S,w,D), (N,1,S,1,W)
        far = (q.flatten(2, 3) @ k_long.mT).unflatten(2, (-1, w))
        near = (q @ k_near.mT).masked_fill(~seen, float("-inf"))
        scores = torch.cat([far, near], -1)  # (N,H,S,w,rank + W)
        weights = F.dropout(scores.softmax(-1), self.sizes.dropout, self.training)
        mixed = weights[..., :rank].flatten(2, 3) @ v_long + (weights[..., rank:] @ v_near).flatten(2, 3)
        return mixed[:, :, :L]

    def _split(self, x: Tensor) -> Tensor:
        """(N,L,H D) -> (N,H,L,D)"""
        return x.unflatten(-1, (self.sizes.heads, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """(N,H,L,D) -> (N,L,H D)"""
    return x.transpose(1, 2).flatten(2)
