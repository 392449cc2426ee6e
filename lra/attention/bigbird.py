"""BigBird attention, block-sparse form (Zaheer et al. 2020)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.blocks import attend, blocks, gather_blocks
from ..options import Positive, Whole
from .base import Attention, Sizes


class BigBird(Attention):
    """softmax(q kᵀ / √D) v over global, neighbouring and random blocks (section 2).

    A query of block i sees the first and the last block, the ``window`` blocks around and including i, and ``random``
    others, distinct from these if there are enough; queries of the first and the last block see every token. The
    last block is the one that holds the example's last real token, however far the batch or the task is padded.

    Random blocks are drawn per head: anew at every call and for every example while training; in evaluation from one
    fixed draw, an order of preference over all blocks of ``length`` of which an example takes the first it has.

    O(L block (window + random)) time. Raises ValueError for an even window.
    """

    def __init__(self, sizes: Sizes, *, block: Positive = 64, window: Positive = 3, random: Whole = 3):
        super().__init__(sizes)
        if window % 2 == 0:
            raise ValueError(f"window must be odd, in blocks, not {window}")
        self.block, self.window, self.random = block, window, random
        count = -(-sizes.length // block)
        self.register_buffer("draw", torch.rand(sizes.heads, count, count))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        N, _, L, _ = q.shape
        real = q.new_ones(N, L, dtype=torch.bool) if mask is None else mask
        last = (real * torch.arange(L, device=q.device)).amax(-1) // self.block  # (N,)
        qb, kb, vb = (blocks(t, self.block) for t in (q, k, v))  # (N,H,B,b,D)
        index, listed = self._choose(qb, last)  # (N,H,B,m)
        here = blocks(real, self.block, 1)[torch.arange(N, device=q.device)[:, None, None, None], index]
        allowed = (here & listed[..., None]).flatten(3)[:, :, :, None]  # (N,H,B,1,m b)
        keys, values = (gather_blocks(t, index).flatten(3, 4) for t in (kb, vb))  # (N,H,B,m b,D)
        out = attend(qb, keys, values, allowed)  # (N,H,B,b,E)

        ends = torch.stack([torch.zeros_like(last), last], -1)[:, None].expand(-1, q.shape[1], -1)  # (N,H,2)
        keys = None if mask is None else mask[:, None, None]
        wide = F.scaled_dot_product_attention(gather_blocks(qb, ends).flatten(2, 3), k, v, keys)
        wide = wide.unflatten(2, (2, -1))  # (N,H,2,b,E)
        block = torch.arange(qb.shape[2], device=q.device)[:, None, None]
        out = torch.where(block == 0, wide[:, :, :1], out)
        out = torch.where(block == last[:, None, None, None, None], wide[:, :, 1:], out)
        return out.flatten(2, 3)[:, :, :L]

    @torch.no_grad()
    def _choose(self, qb: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """The blocks that each block sees, and which entries of that list count, both (N,H,B,m)."""
        N, H, B = qb.shape[:3]
        block = torch.arange(B, device=qb.device)
        last = last[:, None, None, None]
        near = block[:, None] + torch.arange(-(self.window // 2), self.window // 2 + 1, device=qb.device)  # (B,window)
        near = near.expand(N, H, -1, -1)
        draw = torch.rand(N, H, B, B, device=qb.device) if self.training else self.draw[:, :B, :B].expand(N, -1, -1, -1)
        taken = ((block - block[:, None]).abs() <= self.window // 2) | (block == 0) | (block >= last)  # (N,1,B,B)
        other = draw.masked_fill(taken, -1.0).topk(min(self.random, B), sorted=False)
        ends = [torch.zeros_like(near[..., :1]), last.expand(N, H, B, 1)]
        index = torch.cat([*ends, near.clamp(0, B - 1), other.indices], -1)
        listed = [torch.ones_like(ends[0]), ends[1] > 0, (near > 0) & (near < last), other.values >= 0]
        return index, torch.cat([t.bool() for t in listed], -1)
