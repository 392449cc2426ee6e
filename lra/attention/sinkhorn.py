"""Sparse Sinkhorn attention (Tay et al., ICML 2020)."""

import torch
from torch import Tensor, nn

from ..ops.blocks import MIN_SCORE, attend, blocks, real_blocks
from ..ops.precision import full_precision
from ..options import Above, Positive, Whole
from .base import Attention, Sizes


class Sinkhorn(Attention):
    """Every query attends to its own block and to one block that is sorted, or mixed, from all blocks, in one softmax.

        R = normalise(P(Σ_t k_jt)),   k'_i = Σ_j R_ij k_j,   v'_i = Σ_j R_ij v_j   for blocks i, j of ``block`` tokens

    The sort network P maps the sum of a block's keys to one score for each block of ``length`` (section 3.1): a linear
    map with bias, one per head. The paper pools the layer's input; the released LRA code pools keys, which are a linear
    map of it. Gumbel noise is left out.

    Blocks without a real token take no part in R. Padded tokens enter the mixture as zeros, and a position of the mixed
    block counts as a key if some block has a real token there.

    O(L block D + (L / block)² block D) time: R mixes whole blocks, which is quadratic in L for a fixed block.

    Args:
        block: tokens of a block.
        iterations: 0 normalises rows of R by a softmax (the released default). Larger values are Sinkhorn steps, rows
            then columns, which make R nearly doubly stochastic (section 3.2).
        temperature: divisor of the scores.
    """

    def __init__(self, sizes: Sizes, *, block: Positive = 50, iterations: Whole = 0, temperature: Above = 1.0):
        super().__init__(sizes)
        self.block = block
        self.iterations = iterations
        self.temperature = temperature
        num_heads = sizes.heads
        head_dim = sizes.head_dim
        num_blocks = -(-sizes.length // block)
        weight = torch.empty(num_heads, head_dim, num_blocks).uniform_(-1, 1)
        self.weight = nn.Parameter(weight * head_dim**-0.5)
        self.bias = nn.Parameter(torch.zeros(num_heads, 1, num_blocks))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        seq_len = q.shape[2]
        size = min(self.block, seq_len)
        q, k, v = (blocks(t, size) for t in (q, k, v))  # (N,H,B,b,D)
        real = real_blocks(mask, seq_len, size, q.device)  # (N,B,b)
        allowed = None
        if real is not None:
            is_real = real[:, None, ..., None]  # (N,1,B,b,1)
            k = k * is_real
            v = v * is_real
            is_mixed = real.any(1, keepdim=True).expand_as(real)
            allowed = torch.cat([real, is_mixed], -1)[:, None, :, None]  # (N,1,B,1,2b)

        # k' and v', the block that is mixed for each block.
        mixed_k, mixed_v = self._mixed(k, v, self.weight, self.bias, real)  # (N,H,B,b,.)

        # One softmax over both blocks.
        keys = torch.cat([k, mixed_k.to(k.dtype)], 3)  # (N,H,B,2b,D)
        values = torch.cat([v, mixed_v.to(v.dtype)], 3)  # (N,H,B,2b,E)
        out = attend(q, keys, values, allowed)
        return out.flatten(2, 3)[:, :, :seq_len]

    @full_precision
    def _mixed(self, k: Tensor, v: Tensor, weight: Tensor, bias: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute k', v' (N,H,B,b,.) from k, v (N,H,B,b,.) and real (N,B,b)."""
        num_blocks = k.shape[2]
        # P of the pooled keys: row i has the scores of block i.
        pooled = k.sum(3)  # (N,H,B,D)
        scores = pooled @ weight[..., :num_blocks] + bias[..., :num_blocks]  # (N,H,B,B)
        is_used = None if real is None else real.any(-1)  # (N,B)
        R = self.normalise(scores / self.temperature, is_used)
        mixed_k = (R @ k.flatten(3)).unflatten(3, k.shape[3:])
        mixed_v = (R @ v.flatten(3)).unflatten(3, v.shape[3:])
        return mixed_k, mixed_v

    def normalise(self, scores: Tensor, real: Tensor | None) -> Tensor:
        """Compute R from scores (N,H,B,B) and the blocks with real tokens (N,B); columns of other blocks are zero."""
        if real is None:
            real = scores.new_ones(1, scores.shape[-1], dtype=torch.bool)
        if not self.iterations:
            return scores.masked_fill(~real[:, None, None], MIN_SCORE).softmax(-1)

        # Sinkhorn steps in logarithms. Rows of padded blocks would otherwise count in the sums of columns.
        is_pair = (real[:, None, None] & real[:, None, :, None]).expand_as(scores)
        for _ in range(self.iterations):
            for dim in (-1, -2):
                scores = scores.masked_fill(~is_pair, MIN_SCORE)
                scores = scores - scores.logsumexp(dim, keepdim=True)
        return scores.masked_fill(~is_pair, MIN_SCORE).exp()
