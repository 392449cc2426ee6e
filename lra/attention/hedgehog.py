"""Hedgehog attention (Zhang, Bhatia, Kumbong and Re, ICLR 2024)."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.linear_attention import linear_attention
from ..ops.precision import full_precision, upcast
from .base import Attention, Sizes

Softmax = Literal["halves", "joint"]
# Smallest feature.
SMALLEST = 1e-12


class Hedgehog(Attention):
    """Linear attention with learned features that can give spiky weights (section 4.2), O(L D E) time.

        out_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j),   φ(x) = [softmax(y), softmax(-y)],   y = x W + b

    The paper has φ(x) = [exp(y), exp(-y)]. The softmaxes, which the authors' code has, bound φ; they also change the
    weights of the keys. φ is at least 1e-12, as in that code, so that the denominator is not 0 if the features of a
    query and of all keys are disjoint. Queries and keys of each head have their own W, which starts at the identity,
    and b, which starts at 0. The mechanism is trained from scratch; the paper's distillation from softmax attention is
    left out.

    Args:
        softmax: normalisation over the features. ``halves``: [softmax(y), softmax(-y)], the authors' code. ``joint``:
            softmax([2y, -2y]), as in flash-linear-attention.
        tie_qk: whether queries and keys share W and b.

    Source: the paper and the code named in docs/formulas.md. In plain torch: ``lra/reference/feature_maps.py``.
    """

    compactable = True

    def __init__(self, sizes: Sizes, *, softmax: Softmax = "halves", tie_qk: bool = False):
        super().__init__(sizes)
        self.softmax = softmax
        num_heads = sizes.heads
        head_dim = sizes.head_dim
        # One map for queries and one for keys, or one for both.
        num_maps = 1 if tie_qk else 2
        identity = torch.eye(head_dim)
        self.weight = nn.Parameter(identity.repeat(num_maps, num_heads, 1, 1))
        self.bias = nn.Parameter(torch.zeros(num_maps, num_heads, 1, head_dim))

    @full_precision
    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        weight, bias = upcast((self.weight, self.bias))
        # y = x W + b
        y_q = q @ weight[0] + bias[0]  # (N,H,L,D)
        y_k = k @ weight[-1] + bias[-1]  # (N,H,L,D)
        phi_q = self.features(y_q)  # (N,H,L,2 D)
        phi_k = self.features(y_k)  # (N,H,L,2 D)
        # The smallest features already bound the denominators.
        floor = torch.finfo(q.dtype).tiny
        return linear_attention(phi_q, phi_k, v, mask, floor=floor)

    def features(self, y: Float[Tensor, "N H L D"]) -> Float[Tensor, "N H L 2*D"]:
        """Compute φ, which is at least ``SMALLEST``."""
        if self.softmax == "joint":
            phi = torch.cat([2 * y, -2 * y], -1).softmax(-1)
        else:
            positive = y.softmax(-1)
            negative = (-y).softmax(-1)
            phi = torch.cat([positive, negative], -1)
        return phi.clamp(min=SMALLEST)
