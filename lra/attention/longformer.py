"""Longformer attention (Beltagy et al. 2020)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.blocks import attend, blocks, windows
from ..options import Positive, Range, in_range
from .base import Attention, Sizes


class Longformer(Attention):
    """softmax(q kᵀ / √D) v over a band of ``window`` positions, and ``global_tokens`` that see and are seen by all.

    Query i sees the positions i - floor((w - 1) / 2) .. i + floor(w / 2), itself included (section 3.1), and the global
    ones, which are the first of the row. A global query sees every token (symmetric, section 3.1). The paper gives
    global attention projections of its own; here, as in the released LRA code, it shares those of the band.

    O(L w) time. Raises ValueError for global_tokens outside 0 .. length.
    """

    def __init__(self, sizes: Sizes, *, window: Positive = 512, global_tokens: int = 0):
        super().__init__(sizes)
        in_range("global_tokens", global_tokens, Range(0, sizes.length), "length")
        self.window, self.global_tokens = window, global_tokens

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        L, g = q.shape[2], min(self.global_tokens, q.shape[2])
        left, right = min((self.window - 1) // 2, L), min(self.window // 2, L)
        size = min(max(self.window // 4, 16), L)  # long enough to gather little twice, short enough to mask little out
        real = q.new_ones(1, L, dtype=torch.bool) if mask is None else mask
        step = torch.arange(left + size + right, device=q.device) - torch.arange(size, device=q.device)[:, None]
        band = (step >= 0) & (step <= left + right)  # (b,j)
        local = real & (torch.arange(L, device=q.device) >= g)  # the global ones are listed apart
        allowed = band & windows(local, size, left, right, 1)[:, None, :, None]  # (N,1,B,b,j)
        keys, values = windows(k, size, left, right), windows(v, size, left, right)  # (N,H,B,j,D)
        queries = blocks(q, size)
        if g:
            B = queries.shape[2]
            first = lambda t: t[:, :, None, :g].expand(-1, -1, B, -1, -1)
            keys, values = torch.cat([first(k), keys], 3), torch.cat([first(v), values], 3)
            seen = real[:, None, None, None, :g].expand(-1, -1, B, size, -1)
            allowed = torch.cat([seen, allowed], -1)
        out = attend(queries, keys, values, allowed).flatten(2, 3)[:, :, :L]
        if not g:
            return out
        keys = None if mask is None else mask[:, None, None]
        return torch.cat([F.scaled_dot_product_attention(q[:, :, :g], k, v, keys), out[:, :, g:]], 2)
