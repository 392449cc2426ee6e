"""Sparse Sinkhorn attention (Tay et al., ICML 2020)."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.blocks import MIN_SCORE, attend_blocks, real_blocks, split_blocks
from ..ops.precision import full_precision, upcast
from ..options import Above, Positive, Whole
from .base import Attention, Sizes


class Sinkhorn(Attention):
    """Every query attends to its own block and to one block that is sorted, or mixed, from all blocks, in one softmax.

        S_i = P(Σ_t k_it),   R = normalise(S / temperature),   k'_i = Σ_j R_ij k_j,   v'_i = Σ_j R_ij v_j

    for blocks i, j of ``block`` tokens. The sort network P, a linear map with bias for each head, maps the sum of block
    i's keys to row i of S, one score for each block of ``length`` (section 3.1). The paper pools the layer's input; the
    released LRA code pools keys, which are a linear map of it. That code sums blocks and weights separately, so with
    R by softmax each of its mixed blocks is the sum of all blocks, and it adds the outputs of separate softmaxes over
    the own and the mixed block; k'_i, v'_i and the softmax over both follow the paper. Gumbel noise is left out.

    Blocks without a real token take no part in R. Padded tokens enter the mixture as zeros, and a position of the mixed
    block counts as a key if some block has a real token there.

    O(L block D + (L / block)² block D) time: R mixes whole blocks, which is quadratic in L for a fixed block. In plain
    torch: ``lra/reference/sinkhorn.py``.

    Args:
        block: tokens of a block.
        iterations: number of Sinkhorn steps, each of which normalises the rows and then the columns, so that R becomes
            nearly doubly stochastic (section 3.2). 0, the released default, normalises the rows by a softmax instead.
            The released steps end by bounding log R to -1 .. 1, which is left out.
        temperature: divisor of the scores.
    """

    def __init__(self, sizes: Sizes, *, block: Positive = 50, iterations: Whole = 0, temperature: Above = 1.0):
        super().__init__(sizes)
        self.block = block
        self.iterations = iterations
        self.temperature = temperature
        num_heads = sizes.heads
        head_dim = sizes.head_dim
        num_blocks = math.ceil(sizes.length / block)
        # P of each head: a linear map with bias.
        weight = torch.empty(num_heads, head_dim, num_blocks).uniform_(-1, 1)
        self.weight = nn.Parameter(weight * head_dim**-0.5)
        self.bias = nn.Parameter(torch.zeros(num_heads, 1, num_blocks))

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        L = q.shape[2]
        size = min(self.block, L)
        q, k, v = (split_blocks(x, size) for x in (q, k, v))  # (N,H,B,b,.)
        real = real_blocks(mask, L, size, q.device)  # (N or 1,B,b)
        allowed = None
        if real is not None:
            is_real = real[:, None, ..., None]  # (N,1,B,b,1)
            k = k * is_real
            v = v * is_real
            # A position of the mixed block is a key if some block has a real token there.
            is_mixed = real.any(1, keepdim=True).expand_as(real)
            is_key = torch.cat([real, is_mixed], -1)  # (N,B,2 b)
            allowed = is_key[:, None, :, None]  # (N,1,B,1,2 b)

        # k' and v', the block that is mixed for each block.
        mixed_k, mixed_v = self._mix_blocks(k, v, real)  # (N,H,B,b,.)

        # One softmax over both blocks.
        keys = torch.cat([k, mixed_k.to(k.dtype)], 3)  # (N,H,B,2 b,D)
        values = torch.cat([v, mixed_v.to(v.dtype)], 3)  # (N,H,B,2 b,E)
        out = attend_blocks(q, keys, values, allowed)
        return out.flatten(2, 3)[:, :, :L]

    @full_precision
    def _mix_blocks(
        self,
        k: Float[Tensor, "N H B b D"],
        v: Float[Tensor, "N H B b E"],
        real: Bool[Tensor, "#N B b"] | None,
    ) -> tuple[Float[Tensor, "N H B b D"], Float[Tensor, "N H B b E"]]:
        """Compute k' and v'."""
        B = k.shape[2]
        # P of the pooled keys: row i has the scores of block i.
        weight, bias = upcast((self.weight, self.bias))  # (H,D,blocks), (H,1,blocks)
        pooled = k.sum(3)  # (N,H,B,D)
        scores = pooled @ weight[..., :B] + bias[..., :B]  # (N,H,B,B)
        has_real = None if real is None else real.any(-1)  # (N,B)
        R = self.normalise(scores / self.temperature, has_real)

        # Each block is one vector of b D or b E numbers.
        mixed_k = R @ k.flatten(3)
        mixed_v = R @ v.flatten(3)
        return mixed_k.view_as(k), mixed_v.view_as(v)

    def normalise(
        self,
        scores: Float[Tensor, "N H B B"],
        has_real: Bool[Tensor, "#N B"] | None,
    ) -> Float[Tensor, "N H B B"]:
        """Compute R; the columns of blocks without a real token are zero."""
        if has_real is None:
            num_blocks = scores.shape[-1]
            has_real = scores.new_ones(1, num_blocks, dtype=torch.bool)
        is_real_column = has_real[:, None, None]  # (N or 1,1,1,B)
        if not self.iterations:
            return scores.masked_fill(~is_real_column, MIN_SCORE).softmax(-1)

        # Sinkhorn steps in logarithms. Rows of blocks without a real token are masked too, since they would count in
        # the sums of columns.
        is_real_row = has_real[:, None, :, None]  # (N or 1,1,B,1)
        is_pair = (is_real_column & is_real_row).expand_as(scores)
        for _ in range(self.iterations):
            for dim in (-1, -2):
                scores = scores.masked_fill(~is_pair, MIN_SCORE)
                scores = scores - scores.logsumexp(dim, keepdim=True)
        return scores.masked_fill(~is_pair, MIN_SCORE).exp()
