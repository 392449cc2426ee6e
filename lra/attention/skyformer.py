"""Skyformer attention (Chen, Zeng, Ji and Yang, NeurIPS 2021)."""

from functools import partial
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.gaussian import gaussian_kernel
from ..ops.pinv import Inverse, cubic, is_batch_dependent
from ..ops.precision import full_precision
from ..ops.segment_means import argsort_valid_first
from ..ops.selection import Resample, gather_tokens
from ..options import Positive, Range
from .base import Attention, Sizes, zero_padding


class Skyformer(Attention):
    """Approximate Gaussian kernel attention κ(Q,K) V by m landmarks S (section 4).

        1. S = ``samples`` random queries, then ``samples`` random keys, m in all          (N,H,m,D)
        2. M = κ(S,S) + ridge I,   κ(a, b) = exp(-||a - b||² / (2 √D))                     (N,H,m,m)
        3. M⁻¹ = R^-½ pinv(R^-½ M R^-½) R^-½ with the row sums R of M
        4. out = κ(Q,S) M⁻¹ κ(S,K) V                                                       (N,H,L,E)

    κ(Q,K) is a block of one kernel matrix over queries and keys together; κ(Q,S) M⁻¹ κ(S,K) is the same block of the
    matrix's Nyström approximation. Half of the landmarks are queries, half are keys, drawn uniformly and with
    replacement among the real tokens, at the same positions in every head. Nothing is normalised: weights of a query do
    not sum to one. O(L m (D + E) + m³) time. In plain torch: ``lra/reference/skyformer.py``.

    Args:
        sizes: see ``lra.attention.base.Sizes``.
        samples: number of drawn queries, and of drawn keys.
        ridge: added to the diagonal of M, as released; without it M is singular if a token is drawn twice.
        resample: ``train`` draws new random numbers at every call in training and keeps one draw in evaluation;
            ``always`` draws new ones in evaluation too, as released. All examples of a call share one draw, scaled to
            the length of each, as released.
        pinv: pseudo-inverse, (...,m,m) -> (...,m,m).
    """

    compactable = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        samples: Positive = 64,
        ridge: Annotated[float, Range(0)] = 0.1,
        resample: Resample = "train",
        pinv: Inverse = partial(cubic, steps=6),
    ):
        super().__init__(sizes)
        self.ridge = ridge
        self.resample = resample
        self.pinv = pinv
        self.batch_dependent = is_batch_dependent(pinv)
        # Random numbers for evaluation.
        self.draw: Tensor
        self.register_buffer("draw", torch.rand(2 * samples))

    @full_precision
    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        # ||q D^-¼ - k D^-¼||² / 2 = ||q - k||² / (2 √D)
        q = q * q.shape[-1] ** -0.25
        k = k * k.shape[-1] ** -0.25

        # 1. Landmarks.
        S = self.landmarks(q, k, mask)  # (N,H,m,D)

        # 2. The kernel matrix of the landmarks.
        eye = torch.eye(S.shape[2], dtype=S.dtype, device=S.device)
        M = gaussian_kernel(S, S) + self.ridge * eye  # (N,H,m,m)

        # 3. and 4. Products from right to left: w = κ(S,K) V, then M⁻¹ w, then κ(Q,S) M⁻¹ w.
        r = M.sum(-1, keepdim=True).rsqrt()  # (N,H,m,1), the diagonal of R^-½
        v = zero_padding(v, mask)
        w = gaussian_kernel(S, k) @ v  # (N,H,m,E)
        query_map = gaussian_kernel(q, S)  # (N,H,L,m)
        inverse = self.pinv(r * M * r.mT)  # (N,H,m,m)
        scaled_w = r * w
        solved = r * (inverse @ scaled_w)  # M⁻¹ w, (N,H,m,E)
        return query_map @ solved

    def landmarks(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N H m D"]:
        """Draw m/2 queries, then m/2 keys: a random number u selects the real token floor(u n)."""
        N, H, L, _ = q.shape
        draw = self.draw
        if self.training or self.resample == "always":
            draw = torch.rand_like(draw)
        num_real = torch.full((N, 1), L, device=q.device)
        if mask is not None:
            num_real = mask.sum(-1, keepdim=True).clamp(min=1)  # (N,1)
        # The product may round up to n.
        index = (draw * num_real).long().minimum(num_real - 1)  # (N,m)
        if mask is not None:
            index = argsort_valid_first(mask).gather(1, index)
        index = index[:, None].expand(-1, H, -1)  # (N,H,m)
        query_index, key_index = index.chunk(2, -1)
        queries = gather_tokens(q, query_index)  # (N,H,m/2,D)
        keys = gather_tokens(k, key_index)  # (N,H,m/2,D)
        return torch.cat([queries, keys], 2)
