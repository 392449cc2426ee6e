"""Local attention: every token sees only the tokens of its group (Long Range Arena: Tay et al. 2021)."""

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.blocks import attend_blocks, real_blocks, split_blocks
from ..options import Positive
from .base import Attention, Sizes

Grouping = Literal["contiguous", "strided"]


class Local(Attention):
    """softmax(q kᵀ / √D) v within groups of ``block`` tokens, O(L block D) time.

    In plain torch: ``lra/reference/sparse.py``.

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

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        L = q.shape[2]
        # The sequence is folded into rows of ``size`` tokens. A group is a row (contiguous: size = b) or a column
        # (strided: size = s, the number of groups).
        is_strided = self.grouping == "strided"
        size = self.sizes.length // self.block + 1 if is_strided else min(self.block, L)
        q, k, v = (split_blocks(x, size) for x in (q, k, v))  # (N,H,rows,size,.)
        real = real_blocks(mask, L, size, q.device)  # (N or 1,rows,size)
        if is_strided:
            q, k, v = (x.transpose(2, 3) for x in (q, k, v))  # (N,H,s,members,.)
            real = None if real is None else real.mT

        allowed = None if real is None else real[:, None, :, None]
        out = attend_blocks(q, k, v, allowed)
        if is_strided:
            out = out.transpose(2, 3)
        return out.flatten(2, 3)[:, :, :L]
