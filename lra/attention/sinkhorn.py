"""Sparse Sinkhorn attention (Tay et al., ICML 2020)."""

import torch
from torch import Tensor, nn

from ..ops.blocks import FLOOR, attend, blocks, real_blocks
from ..ops.pinv import at_least_float32
from .base import Attention


class Sinkhorn(Attention):
    """Every query attends to its own block and to one block mixed from all of them, in one softmax.

        R = normalise(P(Σ_t k_jt)),   k'_i = Σ_j R_ij k_j,   v'_i = Σ_j R_ij v_j   for blocks i, j of ``block`` tokens

    The sort network P maps the sum of a block's keys to one score for each block of ``length``: a linear
    map with bias, one per head. The paper pools the layer's input; keys, a linear map of it, are what the released LRA
    code pools. iterations: 0 normalises rows of R by softmax (the released default); above 0 that many Sinkhorn steps,
    rows then columns, bring it near a doubly stochastic matrix. Gumbel noise is left out.

    Blocks without a real token take no part in R, padded tokens enter the mix as zeros, and a place of the mixed block
    counts as a key where some block has a real token there.

    O(L block + (L / block)²) time. Raises ValueError for a block below 1, a negative iterations or a temperature that
    is not positive.
    """

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        value_dim: int,
        length: int,
        dropout: float = 0.0,
        block: int = 50,
        iterations: int = 0,
        temperature: float = 1.0,
    ):
        super().__init__(heads=heads, head_dim=head_dim, value_dim=value_dim, length=length, dropout=dropout)
        if block < 1:
            raise ValueError(f"attn.block must be 1 or more, not {block}")
        if iterations < 0:
            raise ValueError(f"attn.iterations must be 0 (softmax) or more, not {iterations}")
        if temperature <= 0:
            raise ValueError(f"attn.temperature must be positive, not {temperature}")
        self.block, self.iterations, self.temperature = block, iterations, temperature
        count = -(-length // block)
        self.weight = nn.Parameter(torch.empty(heads, head_dim, count).uniform_(-1, 1) * head_dim**-0.5)
        self.bias = nn.Parameter(torch.zeros(heads, 1, count))

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
        with torch.autocast(q.device.type, enabled=False):
            k_wide, v_wide, weight, bias = at_least_float32(k, v, self.weight, self.bias)
            scores = k_wide.sum(3) @ weight[..., : k.shape[2]] + bias[..., : k.shape[2]]
            sort = self.normalise(scores / self.temperature, None if real is None else real.any(-1))  # (N,H,B,B)
            mix = lambda t: (sort @ t.flatten(3)).unflatten(3, t.shape[3:])
            k_mixed, v_mixed = mix(k_wide).to(k.dtype), mix(v_wide).to(v.dtype)
        out = attend(q, torch.cat([k, k_mixed], 3), torch.cat([v, v_mixed], 3), allowed)
        return out.flatten(2, 3)[:, :, :L]

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
