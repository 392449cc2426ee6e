"""H-Transformer-1D attention (Zhu and Soricut, ACL 2021)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.blocks import Part, add_parts, attend_part, normalise_parts, split_blocks
from ..ops.precision import full_precision
from ..options import Positive
from .base import Attention, Sizes

Neighbours = Literal["sibling", "both"]
# Blocks from which a query takes keys, relative to its own block.
Source = Literal["own", "sibling", "left", "right"]


class HTransformer1D(Attention):
    """Hierarchical attention: near keys one by one, the others as means over cells of 2, 4, 8 ... positions.

    At level l a cell is 2^l positions and a block is ``block`` cells; blocks 2i and 2i + 1 are siblings. A query
    attends to the keys of its block and of its sibling block at level 0, and to its sibling block only at every
    level above, up to the level with two blocks. So each pair of positions belongs to exactly one level (section 6):

        Y = Σ_l P_l exp(q̄_l k̄_lᵀ / √D) Σ_cell v,   Z = Σ_l P_l exp(q̄_l k̄_lᵀ / √D) n_cell,   result Y / Z

    with means q̄, k̄ and sums over the n real tokens of a cell (eq. 25 to 27), and P_l the copy of a cell to each of its
    positions (eq. 28). Z counts the tokens of a cell, so constant values are reproduced. All levels share one shift of
    their exponentials, see ``lra.ops.blocks.add_parts``. Up to ``2 block`` positions it is exact softmax attention.

    With siblings, two adjacent tokens of different blocks meet at the coarsest level at which a block ends between
    them, so they may be compared as means. With ``neighbours="both"`` the blocks to the left and to the right take the
    place of the sibling, and a pair belongs to
    the first level at which its blocks are equal or adjacent, so the cells grow with the distance.

    O(L block D) time and O(L block) memory. In plain torch: ``lra/reference/h_transformer_1d.py``.

    Shapes: C cells of a level.

    Args:
        block: cells of a block.
        neighbours: ``sibling`` as in the library with which other papers measured it (docs/formulas.md), ``both`` as in
            the authors' code, which also has a relative position bias.

    Raises:
        ValueError: neighbours is both and block is odd.
    """

    def __init__(self, sizes: Sizes, *, block: Positive = 16, neighbours: Neighbours = "sibling"):
        super().__init__(sizes)
        if neighbours == "both" and block % 2:
            raise ValueError(f"block must be even with neighbours=both, not {block}")
        self.block = block
        self.sources: tuple[Source, ...] = ("sibling",) if neighbours == "sibling" else ("left", "right")

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
        if mask is None and not num_padding and self.sources == ("sibling",):
            near_part, other_parts = self._full_parts(q, k, v, levels)
        else:
            near_part, other_parts = self._masked_parts(q, k, v, mask, levels, num_padding)

        if not other_parts:
            return normalise_parts([near_part])[:, :, :L]
        # P_l, from the coarsest level down: the sums of a cell are copied to its two cells at the next finer level.
        # Level 0 is added last; there the keys of the other blocks count one by one.
        other_part = other_parts.pop()
        while other_parts:
            repeated = [x.repeat_interleave(2, 2) for x in other_part]
            other_part = add_parts([other_parts.pop(), Part(*repeated)])
        return normalise_parts([near_part, other_part])[:, :, :L]

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
            part = self._attend(q, k, v, source="sibling")
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
        """Compute the part of a query's block at level 0 and, for each level, the part of all blocks in ``sources``.

        Cells may differ in their number n of real tokens. ``num_padding`` positions extend the sequence to 2^levels
        blocks.
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
        other_parts = []
        for level in range(levels):
            means = _means(q, k, v, n)
            parts = [self._attend(*means, n, source=source, level=level) for source in self.sources]
            other_parts.append(add_parts(parts))
            if level + 1 < levels:
                # Sums over pairs of cells.
                q, k, v, n = (x.unflatten(2, (-1, 2)).sum(3) for x in (q, k, v, n))
        return near_part, other_parts

    def _attend(
        self,
        q: Float[Tensor, "N H C D"],
        k: Float[Tensor, "N H C D"],
        v: Float[Tensor, "N H C E"],
        n: Float[Tensor, "#N 1 C 1"] | None = None,
        *,
        source: Source = "own",
        level: int = 0,
    ) -> Part:
        """Attend from the cells of each block to the cells of one block.

        Args:
            q, k, v: means over cells.
            n: number of real tokens of each cell; None if it is the same for all cells.
            source: block of the keys.
            level: level of the cells.
        """
        q = split_blocks(q, self.block)  # (N,H,B,block,D)
        k = split_blocks(k, self.block)  # (N,H,B,block,D)
        v = split_blocks(v, self.block)  # (N,H,B,block,E)
        k = _take_blocks(k, source)
        v = _take_blocks(v, source)
        scores = q @ k.mT  # (N,H,B,block,block)
        allowed = None
        if n is not None:
            n_keys = split_blocks(n, self.block)  # (N or 1,1,B,block,1)
            n_keys = _take_blocks(n_keys, source)
            # A mean stands for n keys: log n is added to its scores.
            log_n = n_keys.clamp(min=1).log()
            scores = scores + log_n.mT
            allowed = n_keys.mT > 0
            if level and source in ("left", "right"):
                allowed = allowed & self._beyond_finer_level(source, q.device)
        part = attend_part(scores, v, allowed)
        flat_part = [x.flatten(2, 3) for x in part]
        return Part(*flat_part)

    def _beyond_finer_level(self, source: Source, device: torch.device) -> Bool[Tensor, "block block"]:
        """Mark the pairs of cells, of a block and its left or right neighbour, that no finer level contains.

        A block is two blocks of the next finer level, where the halves that face each other are adjacent blocks.
        """
        number = torch.arange(self.block, device=device)
        is_left_half = number < self.block // 2
        query_faces = is_left_half if source == "left" else ~is_left_half
        key_faces = ~query_faces
        return ~(query_faces[:, None] & key_faces)


def _means(
    q: Float[Tensor, "N H C D"],
    k: Float[Tensor, "N H C D"],
    v: Float[Tensor, "N H C E"],
    n: Float[Tensor, "#N 1 C 1"],
) -> tuple[Float[Tensor, "N H C D"], Float[Tensor, "N H C D"], Float[Tensor, "N H C E"]]:
    """Divide sums over cells by their numbers of real tokens."""
    divisor = n.clamp(min=1)
    return q / divisor, k / divisor, v / divisor


def _take_blocks(x: Float[Tensor, "N H B block w"], source: Source) -> Float[Tensor, "N H B block w"]:
    """Put the source of each block in its place; zeros if there is no block to the left or to the right."""
    if source == "own":
        return x
    if source == "sibling":
        # Exchange blocks 2i and 2i + 1.
        pairs = x.unflatten(2, (-1, 2))
        return pairs.flip(3).flatten(2, 3)
    no_block = torch.zeros_like(x[:, :, :1])
    if source == "left":
        return torch.cat([no_block, x[:, :, :-1]], 2)
    return torch.cat([x[:, :, 1:], no_block], 2)
