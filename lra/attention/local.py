"""Local attention: every token sees only the tokens of its group (Long Range Arena: Tay et al. 2021)."""

from typing import Literal

from torch import Tensor

from ..ops.blocks import attend, blocks, real_blocks
from ..options import Positive
from .base import Attention, Sizes

Grouping = Literal["contiguous", "strided"]


class Local(Attention):
    """softmax(q kᵀ / √D) v within groups of ``block`` tokens, O(L block D) time.

    Args:
        block: tokens of a group, b.
        grouping: ``contiguous`` is the published description, with groups {j b, ..., j b + b - 1}. ``strided`` follows
            the released code, which pads ``length`` to the next larger multiple of b (by a whole block if b divides it)
            and folds the sequence along the other axis: a group is {j, j + s, j + 2 s, ...} with
            s = floor(length / b) + 1.
    """

    def __init__(self, sizes: Sizes, *, block: Positive = 50, grouping: Grouping = "contiguous"):
        super().__init__(sizes)
        self.block = block
        self.grouping = grouping

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        seq_len = q.shape[2]
        is_strided = self.grouping == "strided"
        size = self.sizes.length // self.block + 1 if is_strided else min(self.block, seq_len)

        # Fold the sequence.
        q, k, v = (blocks(t, size) for t in (q, k, v))  # (N,H,B,b,D)
        real = real_blocks(mask, seq_len, size, q.device)  # (N,B,b)
        if is_strided:
            # Groups are the columns.
            q, k, v = (t.transpose(2, 3) for t in (q, k, v))  # (N,H,s,members,D)
            real = None if real is None else real.mT

        allowed = None if real is None else real[:, None, :, None]
        out = attend(q, k, v, allowed)
        if is_strided:
            out = out.transpose(2, 3)
        return out.flatten(2, 3)[:, :, :seq_len]
