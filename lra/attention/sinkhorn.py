"""Sparse Sinkhorn attention (Tay et al., ICML 2020)."""

import torch
from torch import Tensor, nn

from ..ops.blocks import FLOOR, attend, blocks, real_blocks
from ..ops.precision import full_precision
from ..options import Above, Positive, Whole
from .base import Attention, Sizes


class Sinkhorn(Attention):
    """Every query attends to its own block and to one block mixed from all of them, in one softmax.

        R = normalise(P(Σ_t k_jt)),   k'_i = Σ_j R_ij k_j,   v'_i = Σ_j R_ij v_j   for blocks i, j of ``block`` tokens

    The sort network P maps the sum of a block's keys to one score for each block of ``length``: a linear
    map with bias, one per head. The paper pools the layer's input; keys, a linear map of it, are what the released LRA
    code pools. iterations: 0 normalises rows of R by softmax (the released default); above 0 that many Sinkhorn steps,
    rows then columns, bring it near a doubly stochastic matrix. Gumbel noise is left out.

    Blocks without a real token take no part in R, padded tokens enter the mix as zeros, and a place of the mixed block
    counts as a key if some block has a real token there.

    O(L block + (L / block)²) time.
    """

    def __init__(self, sizes: Sizes, *, block: Positive = 50, iterations: Whole = 0, temperature: Above = 1.0):
        super().__init__(sizes)
        self.block, self.iterations, self.temperature = block, iterations, temperature
        H, D, count = sizes.heads, sizes.head_dim, -(-sizes.length // block)
        self.weight = nn.Parameter(torch.empty(H, D, count).uniform_(-1, 1) * D**-0.5)
        self.bias = nn.Parameter(torch.zeros(H, 1, count))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        L = q.shape[2]
        size = min(self.block, L)
        q, k, v = (blocks(t, size) for t in (q, k, v))  # (N,H,B,b,D)
        real = real_blocks(mask, L, size, q.device)  # (N,B,b)
        allowed = None
        if real is not None:
            k, v = k * real[:, None, ..., None], v * real[:, None, ..., None]
            mixed = real.any(1, keepdim=True).expand_as(real)
            allowed = torch.cat([real, mixed], -1)[:, None, :, None]  # (N,1,B,1,2b)
        k_mixed, v_mixed = self._mixed(k, v, self.weight, self.bias, real)
        out = attend(q, torch.cat([k, k_mixed.to(k.dtype)], 3), torch.cat([v, v_mixed.to(v.dtype)], 3), allowed)
        return out.flatten(2, 3)[:, :, :L]

    @full_precision
    def _mixed(self, k: Tensor, v: Tensor, weight: Tensor, bias: Tensor, real: Tensor | None) -> list[Tensor]:
        """k', v' (N,H,B,b,D) of k, v (N,H,B,b,D), real (N,B,b)."""
        B = k.shape[2]
        scores = k.sum(3) @ weight[..., :B] + bias[..., :B]
        sort = self.normalise(scores / self.temperature, None if real is None else real.any(-1))  # (N,H,B,B)
        return [(sort @ t.flatten(3)).unflatten(3, t.shape[3:]) for t in (k, v)]

    def normalise(self, scores: Tensor, real: Tensor | None) -> Tensor:
        """scores (N,H,B,B) and which blocks are real (N,B) -> the block-to-block matrix, its padded columns zero."""
        if real is None:
            real = scores.new_ones(1, scores.shape[-1], dtype=torch.bool)
        if not self.iterations:
            return scores.masked_fill(~real[:, None, None], FLOOR).softmax(-1)
        pairs = (real[:, None, None] & real[:, None, :, None]).expand_as(scores)
        for _ in range(self.iterations):  # in logarithms; padded rows would otherwise count in the columns' sums
            for dim in (-1, -2):
                scores = scores.masked_fill(~pairs, FLOOR)
                scores = scores - scores.logsumexp(dim, keepdim=True)
        return scores.masked_fill(~pairs, FLOOR).exp()
