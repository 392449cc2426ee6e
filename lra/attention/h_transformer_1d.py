"""H-Transformer-1D attention (Zhu and Soricut, ACL 2021)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.blocks import Part, add_parts, attend_part, normalise_parts, split_blocks
from ..ops.precision import full_precision
from ..options import Positive
from .base import Attention, Sizes


class HTransformer1D(Attention):
    """Hierarchical attention: near keys one by one, far keys as means over cells that double with the distance.

    At level l a cell is 2^l positions and a block is ``block`` cells; blocks 2i and 2i + 1 are siblings. A query
    attends to the keys of its block and of its sibling block at level 0, and to its sibling block only at every
    level above, up to the level with two blocks. So each pair of positions belongs to exactly one level (section 4):

        Y = Σ_l P_l exp(q̄_l k̄_lᵀ / √D) Σ_cell v,   Z = Σ_l P_l exp(q̄_l k̄_lᵀ / √D) n_cell,   result Y / Z

    with means q̄, k̄ and sums over the n real tokens of a cell (eq. 25 to 27), and P_l the copy of a cell to each of its
    positions (eq. 28). Z counts the tokens of a cell, so constant values are reproduced. All levels share one shift of
    their exponentials, see ``lra.ops.blocks.add_parts``. Up to ``2 block`` positions it is exact softmax attention.

    O(L block D) time and O(L block) memory. In plain torch: ``lra/reference/h_transformer_1d.py``.

    Shapes: C cells of a level.

    Args:
        block: cells of a block.
    """

    def __init__(self, sizes: Sizes, *, block: Positive = 16):
        super().__init__(sizes)
        self.block = block

    @full_precision
    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        L = q.shape[2]
        q = q * q.shape[-1] ** -0.5
        # Level 0 has 2^levels blocks. bit_length() would make torch.compile recompile for every length.
        levels = 0
        while self.block << levels < L:
            levels += 1
        num_padding = (self.block << levels) - L
        if mask is None and not num_padding:
            near_part, sibling_parts = self._full_parts(q, k, v, levels)
        else:
            near_part, sibling_parts = self._masked_parts(q, k, v, mask, levels, num_padding)

        if not sibling_parts:
            return normalise_parts([near_part])[:, :, :L]
        # P_l, from the coarsest level down: the sums of a cell are copied to its two cells at the next finer level.
        far_part = sibling_parts.pop()
        while sibling_parts:
            repeated = [x.repeat_interleave(2, 2) for x in far_part]
            far_part = add_parts([sibling_parts.pop(), Part(*repeated)])
        return normalise_parts([near_part, far_part])[:, :, :L]

    def _full_parts(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        levels: int,
    ) -> tuple[Part, list[Part]]:
        """Compute the part of a query's block at level 0 and the parts of its sibling blocks, one per level from 0 up.

        All cells are full.
        """
        near_part = self._attend(q, k, v)
        sibling_parts = []
        for level in range(levels):
            part = self._attend(q, k, v, from_sibling=True)
            # A mean stands for 2^l keys: log 2^l is added to all scores. The sums are relative to the largest score,
            # ``top``, so only ``top`` changes.
            top = part.top + level * math.log(2)
            sibling_parts.append(part._replace(top=top))
            if level + 1 < levels:
                # Means over pairs of cells.
                q, k, v = (x.unflatten(2, (-1, 2)).mean(3) for x in (q, k, v))
        return near_part, sibling_parts

    def _masked_parts(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None,
        levels: int,
        num_padding: int,
    ) -> tuple[Part, list[Part]]:
        """Compute the same parts from cells that differ in their number n of real tokens.

        ``num_padding`` positions extend the sequence to 2^levels blocks.
        """
        if mask is None:
            mask = torch.ones(1, q.shape[2], dtype=torch.bool, device=q.device)

        # Sums over the real tokens of each cell, and their number.
        n = mask[:, None, :, None].to(q.dtype)  # (N or 1,1,L,1)
        padding = (0, 0, 0, num_padding)
        q = F.pad(q * n, padding)  # (N,H,C,D)
        k = F.pad(k * n, padding)  # (N,H,C,D)
        v = F.pad(v * n, padding)  # (N,H,C,E)
        n = F.pad(n, padding)  # (N or 1,1,C,1)
        # At level 0 a cell is one position, so its sums are its means.
        near_part = self._attend(q, k, v, n)
        sibling_parts = []
        for level in range(levels):
            means = _means(q, k, v, n)
            part = self._attend(*means, n, from_sibling=True)
            sibling_parts.append(part)
            if level + 1 < levels:
                # Sums over pairs of cells.
                q, k, v, n = (x.unflatten(2, (-1, 2)).sum(3) for x in (q, k, v, n))
        return near_part, sibling_parts

    def _attend(
        self,
        q: Float[Tensor, "N H C D"],
        k: Float[Tensor, "N H C D"],
        v: Float[Tensor, "N H C E"],
        n: Float[Tensor, "#N 1 C 1"] | None = None,
        *,
        from_sibling: bool = False,
    ) -> Part:
        """Attend from the cells of each block to the cells of the same block, or of its sibling block.

        Args:
            q, k, v: means over cells.
            n: number of real tokens of each cell; None if it is the same for all cells.
            from_sibling: whether keys are taken from the sibling block.
        """
        q = split_blocks(q, self.block)  # (N,H,B,block,D)
        k = split_blocks(k, self.block)  # (N,H,B,block,D)
        v = split_blocks(v, self.block)  # (N,H,B,block,E)
        if from_sibling:
            k = _swap_siblings(k)
            v = _swap_siblings(v)
        scores = q @ k.mT  # (N,H,B,block,block)
        allowed = None
        if n is not None:
            n_keys = split_blocks(n, self.block)  # (N or 1,1,B,block,1)
            if from_sibling:
                n_keys = _swap_siblings(n_keys)
            # A mean stands for n keys: log n is added to its scores.
            log_n = n_keys.clamp(min=1).log()
            scores = scores + log_n.mT
            allowed = n_keys.mT > 0
        part = attend_part(scores, v, allowed)
        flat_part = [x.flatten(2, 3) for x in part]
        return Part(*flat_part)


def _means(
    q: Float[Tensor, "N H C D"],
    k: Float[Tensor, "N H C D"],
    v: Float[Tensor, "N H C E"],
    n: Float[Tensor, "#N 1 C 1"],
) -> tuple[Float[Tensor, "N H C D"], Float[Tensor, "N H C D"], Float[Tensor, "N H C E"]]:
    """Divide sums over cells by their numbers of real tokens."""
    divisor = n.clamp(min=1)
    return q / divisor, k / divisor, v / divisor


def _swap_siblings(x: Float[Tensor, "N H B block w"]) -> Float[Tensor, "N H B block w"]:
    """Exchange blocks 2i and 2i + 1."""
    pairs = x.unflatten(2, (-1, 2))
    return pairs.flip(3).flatten(2, 3)
