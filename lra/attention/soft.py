"""SOFT and SOFT++, attention without softmax (Lu et al., NeurIPS 2021; Lu et al. 2022, arXiv 2207.03341).

``lra/reference/soft.py`` has the same equations for one head of one sequence.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..ops.blocks import split_blocks
from ..ops.gaussian import gaussian_kernel
from ..ops.newton import newton
from ..ops.precision import full_precision, upcast
from ..ops.segment_means import argsort_valid_first, segment_means
from ..options import Range, require_range
from .base import Attention, Sizes, zero_padding

Sample = Literal["pool", "conv", "random", "first"]


class Soft(Attention):
    """Gaussian kernel attention through m bottleneck tokens q̃; queries and keys are one projection.

        1. q̃ = m bottleneck tokens of q                                                    (N,H,m,D)
        2. P = κ(q̃, q)    A = κ(q̃, q̃)    κ(x, y) = exp(-||x - y||² / (2 √D))
        3. SOFT:   out = Pᵀ (A⁻¹ (P v)),   A⁻¹ by the Newton-Raphson iteration             (N,H,L,E)
           SOFT++: out = Pᵀ Λ^-½ A⁻¹ Λ^-½ P v,   Λ = diag(row sums of A)

    Windows are cut from positions; padding counts as zero in a convolution and is left out of a mean. A bottleneck
    token without a real token is a row and column of the identity in A, so the inverse stays block diagonal, and its
    row of P v is zero; the result equals the result of the smaller problem. The starting value of the iteration does
    not change either: it depends on the largest column sum, which is at least 1 in the real block.

    O(L m (D + E) + m³) time.

    Args:
        sizes: see ``lra.attention.base.Sizes``.
        sample: bottleneck tokens. ``pool``: means of windows. ``conv``: a strided convolution, shared by the heads.
            ``random``: distinct random tokens, drawn for every call and example in training, once for evaluation.
            ``first``: the first tokens.
        window: width and stride of the windows, from 1 to ``length``; unused with ``count``.
        count: m. null: one token per window, so that m grows with the length and the inverse takes cubic time. A number
            keeps m fixed; ``pool`` then averages segments, token r of n real ones in segment floor(r min(m, n) / n).
        activate: whether LayerNorm and GELU follow the convolution, as in the released code.
        normalise: whether to compute SOFT++. The released SOFT++ also has another ``pinv``, see conf/attn/softpp.yaml.
        pinv: inverse of A, (N,H,m,m) -> (N,H,m,m). The default inverts A + 0.01 I, as in the released SOFT.

    Raises:
        ValueError: window or count is outside 1 .. length, or count is given with sample=conv.
    """

    shared_qk = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        sample: Sample = "pool",
        window: int = 4,
        count: int | None = None,
        activate: bool = True,
        normalise: bool = False,
        pinv: Callable[[Tensor], Tensor] = partial(newton, steps=20, init="soft", ridge=0.01),
    ):
        super().__init__(sizes)
        if count is None:
            require_range("window", window, Range(1, sizes.length), "length")
        else:
            require_range("count", count, Range(1, sizes.length), "length")
        if count is not None and sample == "conv":
            raise ValueError(f"count must be null with sample=conv, whose windows are fixed, not {count}")
        self.sample = sample
        self.window = window
        self.count = count
        self.normalise = normalise
        self.pinv = pinv
        # Windows and random numbers are tied to positions, which compaction changes.
        self.compactable = sample == "first" or (sample == "pool" and count is not None)
        # Random numbers for evaluation.
        if sample == "random":
            self.draw: Tensor
            self.register_buffer("draw", torch.rand(sizes.length))
        # A convolution whose stride is its width is a linear map of each window.
        if sample == "conv":
            head_dim = sizes.head_dim
            self.conv = nn.Sequential(nn.Linear(window * head_dim, head_dim, bias=False))
            if activate:
                self.conv.append(nn.LayerNorm(head_dim))
                self.conv.append(nn.GELU())

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        N, _, L, D = q.shape
        if mask is None:
            mask = torch.ones(N, L, dtype=torch.bool, device=q.device)
        # ||q D^-¼ - k D^-¼||² / 2 = ||q - k||² / (2 √D)
        q = upcast(q) * D**-0.25

        # 1. Bottleneck tokens; 2. and 3. the product.
        tokens, token_mask = self.bottleneck(q, mask)  # (N,H,m,D), (N,m)
        return self._product(q, v, mask, tokens, token_mask)

    @full_precision
    def _product(
        self,
        q: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"],
        tokens: Float[Tensor, "N H m D"],
        token_mask: Bool[Tensor, "N m"],
    ) -> Float[Tensor, "N H L E"]:
        """Compute steps 2 and 3 from bottleneck tokens, of which token_mask marks the real ones."""
        # 2. P and A; a bottleneck token without a real token is a row and column of the identity in A.
        P = gaussian_kernel(tokens, q)  # (N,H,m,L)
        A = gaussian_kernel(tokens, tokens)  # (N,H,m,m)
        eye = torch.eye(tokens.shape[2], dtype=q.dtype, device=q.device)
        is_pair = token_mask[:, :, None] & token_mask[:, None]  # (N,m,m)
        A = A.where(is_pair[:, None], eye)

        # P v, without padding and without bottleneck tokens that hold no real token.
        real_v = zero_padding(v, mask)
        Pv = zero_padding(P @ real_v, token_mask)  # (N,H,m,E)

        # 3. out = Pᵀ A⁻¹ P v, SOFT++ with Λ^-½ on both sides of A⁻¹.
        inverse = self.pinv(A)  # (N,H,m,m)
        if self.normalise:
            inverse_root = A.sum(-1, keepdim=True).rsqrt()  # (N,H,m,1), the diagonal of Λ^-½
            return P.mT @ (inverse_root * (inverse @ (inverse_root * Pv)))
        return P.mT @ (inverse @ Pv)

    def bottleneck(
        self,
        q: Float[Tensor, "N H L D"],
        mask: Bool[Tensor, "N L"],
    ) -> tuple[Float[Tensor, "N H m D"], Bool[Tensor, "N m"]]:
        """Compute step 1: bottleneck tokens, and which of them hold real tokens."""
        L = q.shape[2]
        if self.sample in ("pool", "conv"):
            if self.count is None:
                return self._windows(q, mask)
            (tokens,), token_mask = segment_means(mask, min(self.count, L), q)
            return tokens, token_mask

        # Single tokens: m slots, of which the first num_used hold real tokens. -(-a // b) is ceil(a / b).
        num_real = mask.sum(-1, keepdim=True)  # (N,1)
        if self.count is None:
            m = math.ceil(L / self.window)
            num_used = -(-num_real // self.window)
        else:
            m = min(self.count, L)
            num_used = num_real.clamp(max=self.count)
        position = self._order(mask)[:, None, :m]  # (N,1,m)
        index = position[..., None].expand(-1, q.shape[1], -1, q.shape[3])  # (N,H,m,D)
        number = torch.arange(m, device=q.device)
        return q.gather(2, index), number < num_used

    def _windows(
        self,
        q: Float[Tensor, "N H L D"],
        mask: Bool[Tensor, "N L"],
    ) -> tuple[Float[Tensor, "N H m D"], Bool[Tensor, "N m"]]:
        """Pool or convolve windows of positions; padding is zero in a convolution and left out of a mean."""
        real_q = zero_padding(q, mask)
        windows = split_blocks(real_q, self.window)  # (N,H,m,window,D)
        num_real = split_blocks(mask, self.window, 1).sum(-1)  # (N,m)
        token_mask = num_real > 0
        if self.sample == "conv":
            weight = next(self.conv.parameters())
            inputs = windows.flatten(3).to(weight.dtype)  # (N,H,m,window D)
            return self.conv(inputs), token_mask
        divisor = num_real.clamp(min=1)[:, None, :, None]  # (N,1,m,1)
        return windows.sum(3) / divisor, token_mask

    def _order(self, mask: Bool[Tensor, "N L"]) -> Int[Tensor, "N L"]:
        """Sort positions, real tokens first, by position or by a random number."""
        N, L = mask.shape
        if self.sample == "first":
            return argsort_valid_first(mask)
        draw = self.draw[:L].expand(N, -1)
        if self.training:
            draw = torch.rand(N, L, device=mask.device)
        # Random numbers are below 1, so padding comes last.
        return draw.masked_fill(~mask, 2).argsort(dim=-1)
