"""Sparse Transformer attention (Child et al. 2019), both factorisations with their two sets of keys merged."""

from typing import Literal

import torch
from torch import Tensor

from ..ops.blocks import Part, attend, blocks, merge, weigh, windows
from ..ops.precision import full_precision
from ..options import Positive, Range, in_range
from .base import Attention, Sizes

Pattern = Literal["strided", "fixed"]


class Sparse(Attention):
    """One softmax over a local set of keys and a sparse set that spans the row (section 4.3, merged as in section 5.1).

    pattern ``strided``, with l = stride, null for the rounded √length:
        query i sees a band of l positions, i - floor((l - 1) / 2) .. i + floor(l / 2), and every j = i (mod l);
        O(L (l + L / l)) time, L√L at l = √L.
    pattern ``fixed``, with b = block and c = summary:
        query i sees its own block of b positions, and in every block the places 0 and b - c .. b - 1;
        O(L (b + L c / b)) time: for a fixed b quadratic with a small constant.
    causal: only keys at or before the query, as published (the strided band is then i - l + 1 .. i). The released LRA
    code is causal ``fixed`` with b = 50, c = 10.

    Raises ValueError for a summary outside 1 .. block.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        pattern: Pattern = "strided",
        stride: Positive | None = None,
        block: Positive = 50,
        summary: int = 10,
        causal: bool = False,
    ):
        super().__init__(sizes)
        stride = round(sizes.length**0.5) if stride is None else stride
        in_range("summary", summary, Range(1, block), "block")
        self.pattern, self.stride, self.block, self.summary, self.causal = pattern, stride, block, summary, causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        real = q.new_ones(1, q.shape[2], dtype=torch.bool) if mask is None else mask
        return (self._fixed if self.pattern == "fixed" else self._strided)(q, k, v, real)

    @full_precision
    def _strided(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
        q = q * q.shape[-1] ** -0.5
        return merge([self._band(q, k, v, real), self._column(q, k, v, real)])[:, :, : real.shape[1]]

    def _band(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Part:
        """Tensors of the part are (N,H,B l,.)."""
        L, l = q.shape[2], self.stride
        left, right = (l - 1, 0) if self.causal else ((l - 1) // 2, l // 2)
        left, right, size = min(left, L), min(right, L), min(l, L)
        step = torch.arange(left + size + right, device=q.device) - torch.arange(size, device=q.device)[:, None]
        allowed = (step >= 0) & (step <= left + right) & windows(real, size, left, right, 1)[:, None, :, None]
        q, k, v = blocks(q, size), windows(k, size, left, right), windows(v, size, left, right)
        return Part(*(t.flatten(2, 3) for t in weigh(q @ k.mT, v, allowed)))

    def _column(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Part:
        """Keys at a distance of l, 2 l, ...; distance 0 lies in the band. Tensors of the part are (N,H,B l,.)."""
        size = min(self.stride, q.shape[2])
        q, k, v = (blocks(t, size).transpose(2, 3) for t in (q, k, v))  # (N,H,l,B,D)
        order = torch.arange(q.shape[3], device=q.device)
        others = order < order[:, None] if self.causal else order != order[:, None]
        allowed = others & blocks(real, size, 1).mT[:, None, :, None]  # (N,1,l,B,B)
        return Part(*(t.transpose(2, 3).flatten(2, 3) for t in weigh(q @ k.mT, v, allowed)))

    def _fixed(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
        L, b, device = q.shape[2], self.block, q.device
        q, k, v = (blocks(t, b) for t in (q, k, v))  # (N,H,B,b,D)
        B, real = q.shape[2], blocks(real, b, 1)  # (N or 1,B,b)
        place = torch.arange(b, device=device)
        places = torch.cat([place[: min(1, b - self.summary)], place[b - self.summary :]])  # the first and the last
        own = real[:, None, :, None]  # (N,1,B,1,b)
        block = torch.arange(B, device=device)
        others = block != block[:, None]
        if self.causal:
            own, others = own & (place <= place[:, None]), block < block[:, None]
        listed = others[..., None] & real[:, None, :, places]  # (N,B,B,summaries)
        listed = listed.flatten(2)[:, None, :, None].expand(-1, -1, -1, own.shape[3], -1)  # (N,1,B,1 or b,S)

        def gather(x):  # (N,H,B,b,D) -> (N,H,B,b + S,D)
            summaries = x[:, :, :, places].flatten(2, 3)[:, :, None]
            return torch.cat([x, summaries.expand(-1, -1, B, -1, -1)], 3)

        return attend(q, gather(k), gather(v), torch.cat([own, listed], -1)).flatten(2, 3)[:, :, :L]
