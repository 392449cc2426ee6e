"""H-Transformer-1D attention (Zhu and Soricut, ACL 2021)."""

import torch.nn.functional as F
from torch import Tensor

from ..ops.blocks import Part, blocks, merge, union, weigh
from ..ops.precision import full_precision
from ..options import Positive
from .base import Attention, Sizes


class HTransformer1D(Attention):
    """Hierarchical attention: near keys one by one, far keys as means over ever longer cells.

    At level l a cell is 2^l positions and a block is ``block`` cells; blocks 2i and 2i + 1 are siblings. A query sees
    the keys of its own block and of the sibling one at level 0, and those of the sibling block alone at every level
    above, up to the level of two blocks, so that each pair of positions is met at exactly one level:

        Y = Σ_l P_l exp(q̄_l k̄_lᵀ / √D) Σ_cell v,   Z = Σ_l P_l exp(q̄_l k̄_lᵀ / √D) n_cell,   result Y / Z

    with means q̄, k̄ and sums over the n real tokens of a cell, P_l the copy of a cell's row to each of its positions.
    Since Z counts the tokens of a cell, values of one give one. The exponentials of all levels share one shift, that of
    ``lra.ops.blocks.union``. A row of up to ``2 block`` positions is exact softmax attention.

    O(L block) time and memory.
    """

    def __init__(self, sizes: Sizes, *, block: Positive = 16):
        super().__init__(sizes)
        self.block = block

    @full_precision
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        N, _, L, D = q.shape
        levels = (-(-L // self.block) - 1).bit_length()  # of sibling blocks; 2^levels blocks at level 0
        fill = (0, 0, 0, (self.block << levels) - L)
        real = q.new_ones(N, 1, L, 1) if mask is None else mask[:, None, :, None].to(q.dtype)
        sums = [F.pad(x, fill) for x in (q * D**-0.5 * real, k * real, v * real, real)]
        own = self._part(*sums)
        siblings = []
        for level in range(levels):
            siblings.append(self._part(*sums, sibling=True))
            if level + 1 < levels:
                sums = [x.unflatten(2, (-1, 2)).sum(3) for x in sums]
        if not siblings:
            return merge([own])[:, :, :L]
        far = siblings.pop()
        while siblings:  # from the coarsest level down, so that no level is copied to all L positions
            far = union([siblings.pop(), Part(*(x.repeat_interleave(2, 2) for x in far))])
        return merge([own, far])[:, :, :L]

    def _part(self, q: Tensor, k: Tensor, v: Tensor, n: Tensor, *, sibling: bool = False) -> Part:
        """The sums of each query's block or sibling block, from sums over cells and their counts n (N,1,C,1)."""
        count = n.clamp(min=1)
        q, k, v, n = (blocks(x, self.block) for x in (q / count, k / count, v / count, n))  # (N,H,B,block,.)
        if sibling:
            k, v, n = (x.unflatten(2, (-1, 2)).flip(3).flatten(2, 3) for x in (k, v, n))
        scores = q @ k.mT + n.clamp(min=1).log().mT  # a mean stands for n keys
        return Part(*(x.flatten(2, 3) for x in weigh(scores, v, n.mT > 0)))
