"""Local attention: every token sees the tokens of its own group and no others (Long Range Arena: Tay et al. 2021)."""

from typing import Literal

from torch import Tensor

from ..ops.blocks import attend, blocks, real_blocks
from ..options import Positive
from .base import Attention, Sizes

Grouping = Literal["contiguous", "strided"]


class Local(Attention):
    """softmax(q kᵀ / √D) v within groups of ``block`` tokens, O(L block) time.

    grouping: ``contiguous`` groups {j b, ..., j b + b - 1}, the published description. ``strided`` groups are those of
    the released code: it fills ``length`` up to the next multiple of b above it (a whole extra block if b divides it)
    and folds the row the other way round, so a group is {j, j + s, j + 2 s, ...} with s = floor(length / b) + 1.
    """

    def __init__(self, sizes: Sizes, *, block: Positive = 50, grouping: Grouping = "contiguous"):
        super().__init__(sizes)
        self.block, self.grouping = block, grouping

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        L = q.shape[2]
        strided = self.grouping == "strided"
        size = self.sizes.length // self.block + 1 if strided else min(self.block, L)
        q, k, v = (blocks(t, size) for t in (q, k, v))  # (N,H,B,b,D)
        real = real_blocks(mask, L, size, q.device)  # (N,B,b)
        if strided:  # groups are the columns: (N,H,s,members,D)
            q, k, v = (t.transpose(2, 3) for t in (q, k, v))
            real = None if real is None else real.mT
        out = attend(q, k, v, None if real is None else real[:, None, :, None])
        out = out.transpose(2, 3) if strided else out
        return out.flatten(2, 3)[:, :, :L]
