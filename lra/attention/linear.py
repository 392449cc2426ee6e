"""Attention with kernel features, φ(q) (φ(k)ᵀ v): linear attention, Performer and random feature attention.

The shared product, ``lra.ops.linear_attention.linear_attention``, takes O(L F E) time for F features.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.blocks import split_blocks
from ..ops.linear_attention import linear_attention, unit_exp
from ..ops.precision import full_precision, upcast
from ..options import Above, NonNegative, Positive
from .base import Attention, Sizes, zero_padding

Kernel = Literal["exp", "relu"]
Redraw = Literal["train", "never"]
Scalings = Literal[1, 2]
# Tokens of a block of causal sums.
BLOCK = 64


class Linear(Attention):
    """Linear attention with φ(x) = elu(x) + 1 (Katharopoulos et al., ICML 2020, eq. 5 and 7), O(L D E) time.

        out_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j)

    Args:
        normalise: divide by the denominator. False follows Nystromformer's code, which has no denominator and divides
            φ(q) and φ(k) by length^¼ each. Its length is the padded length of the batch; here it is ``sizes.length``,
            so padding does not affect the result.
        causal: sum over j <= i (eq. 8 and 9). Denominators are at least 1e-6 if causal, else at least 1e-6 times the
            number of real keys.
    """

    compactable = True

    def __init__(self, sizes: Sizes, *, normalise: bool = True, causal: bool = False):
        super().__init__(sizes)
        self.normalise = normalise
        self.causal = causal
        # Σ φ(k) vᵀ and, for the denominator, Σ φ(k).
        num_columns = sizes.value_dim + 1 if normalise else sizes.value_dim
        self.state_size = sizes.heads * sizes.head_dim * num_columns

    @full_precision
    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        # Eq. 7: φ(x) = elu(x) + 1.
        phi_q = F.elu(q) + 1  # (N,H,L,D)
        phi_k = F.elu(k) + 1  # (N,H,L,D)
        scale = self.sizes.length**-0.5
        if self.causal:
            # Eq. 9: sums over the keys up to each query.
            numerator, denominator = causal_sums(phi_q, zero_padding(phi_k, mask), v)
            if self.normalise:
                return numerator / denominator.clamp(min=1e-6)
            return numerator * scale
        # Eq. 5, with and without its denominator.
        if self.normalise:
            return linear_attention(phi_q, phi_k, v, mask)
        state = zero_padding(phi_k, mask).mT @ v  # (N,H,D,E)
        return (phi_q @ state) * scale


class Performer(Attention):
    """FAVOR+ attention with positive orthogonal random features (Choromanski et al., ICLR 2021), O(L F (D + E)) time.

    With x = q / D^¼ or k / D^¼ and random vectors w_1 ... w_F:

        exp:   φ(x)_f = exp(w_f·x - |x|²/2 - c) + eps   (lemma 1)
        relu:  φ(x)_f = max(w_f·x, 0) + 0.001           (generalised attention)

    The exponential kernel estimates softmax attention; with eps = 0 the error vanishes as F grows. The stabiliser
    c is the largest w·x of each query, and for keys the largest one over all real keys of an example and head, as in
    the released code. With eps = 0 c cancels; the largest exponent (for keys w·x - |x|²/2) is subtracted instead.

    Args:
        features: F, the number of random vectors w and of features φ_f.
        kernel: ``exp`` or ``relu``. The official default, max(x, 0) + 0.001 of unscaled q and k, has no vectors w.
        eps: constant added to the features of ``exp``.
        scalings: how many times q and k are divided by D^¼: twice in Nystromformer's code, so its logits are q·k / D.
        redraw: ``train`` draws w at every call in training; ``never`` keeps the draw that is used for evaluation.
    """

    compactable = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        features: Positive = 256,
        kernel: Kernel = "exp",
        eps: NonNegative = 1e-4,
        scalings: Scalings = 1,
        redraw: Redraw = "train",
    ):
        super().__init__(sizes)
        self.kernel = kernel
        self.eps = eps
        self.scale = sizes.head_dim ** (-0.25 * scalings)
        # The random vectors w_1 ... w_F. Checkpoints contain the name ``rows``.
        self.rows = RandomFeatures(features, sizes.head_dim, redraw=redraw, orthogonal=True)

    @full_precision
    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        q = q * self.scale
        k = k * self.scale
        w = self.rows().to(q.dtype)  # (F,D)
        # Avoid 0 / 0 if eps = 0 and all products underflow.
        floor = torch.finfo(q.dtype).tiny
        if self.kernel == "relu":
            phi_q = F.relu(q @ w.mT)  # (N,H,L,F)
            phi_k = F.relu(k @ w.mT)  # (N,H,L,F)
            return linear_attention(phi_q, phi_k, v, mask, floor=floor, offset=0.001)
        if self.eps == 0:
            # A factor common to the features of a query, or of all keys, cancels. Scale the largest feature to 1.
            phi_q = unit_exp(q @ w.mT, -1)
            exponents = k @ w.mT - k.square().sum(-1, keepdim=True) / 2  # (N,H,L,F)
            if mask is not None:
                exponents = exponents.masked_fill(~mask[:, None, :, None], -torch.inf)
            phi_k = unit_exp(exponents, (-2, -1))
            return linear_attention(phi_q, phi_k, v, mask, floor=floor)
        phi_q = self._query_features(q, w)
        phi_k = self._key_features(k, w, mask)
        return linear_attention(phi_q, phi_k, v, mask, floor=floor, offset=self.eps)

    def _query_features(self, q: Float[Tensor, "N H L D"], w: Float[Tensor, "F D"]) -> Float[Tensor, "N H L F"]:
        """Compute exp(w·q - |q|²/2 - c) with c = max_f w_f·q for each query."""
        projections = q @ w.mT  # (N,H,L,F)
        # w_max has the largest projection. The gradient of c flows through the dot product q·w_max, without another
        # tensor (N,H,L,F).
        feature = projections.detach().argmax(-1)  # (N,H,L)
        w_max = w[feature]  # (N,H,L,D)
        # -(c + |q|²/2) = -q·(w_max + q/2)
        products = -q * (w_max + q / 2)  # (N,H,L,D)
        shift = products.sum(-1, keepdim=True)  # (N,H,L,1)
        return (projections + shift).exp()

    def _key_features(
        self,
        k: Float[Tensor, "N H L D"],
        w: Float[Tensor, "F D"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N H L F"]:
        """Compute exp(w·k - |k|²/2 - c) with c = max_jf w_f·k_j over the real keys."""
        projections = k @ w.mT  # (N,H,L,F)
        # Position j and feature f of the largest projection.
        maxima, features = projections.detach().max(-1)  # (N,H,L)
        if mask is not None:
            maxima = maxima.masked_fill(~mask[:, None], -torch.inf)
        position = maxima.argmax(-1, keepdim=True)  # (N,H,1)
        feature = features.gather(-1, position)  # (N,H,1)

        # c as the dot product of that key and that w_f.
        index = position[..., None].expand(-1, -1, -1, k.shape[-1])  # (N,H,1,D)
        largest_key = k.gather(2, index)  # (N,H,1,D)
        products = largest_key * w[feature]  # (N,H,1,D)
        c = products.sum(-1, keepdim=True)  # (N,H,1,1)

        squared_norm = k.square().sum(-1, keepdim=True)  # (N,H,L,1)
        shift = -squared_norm / 2 - c
        if mask is not None:
            # A padded key may be far above the real ones: its features are zero instead of an overflow.
            is_padding = ~mask[:, None, :, None]
            shift = shift.masked_fill(is_padding, -torch.inf)
        return (projections + shift).exp()


class RFA(Attention):
    """Random feature attention (Peng et al., ICLR 2021, section 3.1), O(L F (D + E)) time.

        φ(x) = [sin(w_1·x), ..., sin(w_F·x), cos(w_1·x), ..., cos(w_F·x)] / √F   (eq. 3), |q| = |k| = 1

    w = scale * Gaussian with a learned scale (H,D), which starts at 1. φ(q)·φ(k) estimates the Gaussian kernel
    exp(-|scale * (q - k)|² / 2). While all entries of the scale are equal, this is exp(scale² q·k) up to a constant, so
    many features give softmax(scale² q·k) attention. The gate of section 3.2 is causal and is left out. In plain torch:
    ``lra/reference/feature_maps.py``.

    Args:
        features: number of random vectors w; φ has twice as many entries.
        floor: lower bound on the mean of φ(q)·φ(k) over the real keys, because the estimates can be negative.
        redraw: ``train`` draws w at every call in training; ``never`` keeps the draw that is used for evaluation.
    """

    compactable = True

    def __init__(self, sizes: Sizes, *, features: Positive = 128, floor: Above = 0.01, redraw: Redraw = "train"):
        super().__init__(sizes)
        self.floor = floor
        # The random vectors w_1 ... w_F. Checkpoints contain the name ``rows``.
        self.rows = RandomFeatures(features, sizes.head_dim, redraw=redraw, orthogonal=False)
        self.scale = nn.Parameter(torch.ones(sizes.heads, sizes.head_dim))

    @full_precision
    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        scale = upcast(self.scale)[:, None]  # (H,1,D)
        w = self.rows().to(q.dtype) * scale  # (H,F,D)
        # Eq. 3; the features of the queries have both factors 1/√F.
        num_features = w.shape[1]
        phi_q = self._features(q, w) / num_features  # (N,H,L,2 F)
        phi_k = self._features(k, w)  # (N,H,L,2 F)
        return linear_attention(phi_q, phi_k, v, mask, floor=self.floor)

    def _features(self, x: Float[Tensor, "N H L D"], w: Float[Tensor, "H F D"]) -> Float[Tensor, "N H L 2*F"]:
        """Compute √F φ(x / |x|)."""
        unit = F.normalize(x, dim=-1)
        projections = unit @ w.mT  # (N,H,L,F)
        return torch.cat([projections.sin(), projections.cos()], -1)


class RandomFeatures(nn.Module):
    """Random vectors w (F,D): standard normal, or orthogonal in blocks of D vectors with the norms of normal ones.

    Args:
        features: number of vectors F.
        dim: their size D.
        redraw: ``train`` draws new vectors at every call in training. In evaluation, and always with ``never``, the
            draw of the constructor is returned, which is a buffer.
        orthogonal: whether the D vectors of a block are orthogonal (section 2.4 of the Performer paper).
    """

    def __init__(self, features: int, dim: int, *, redraw: Redraw, orthogonal: bool):
        super().__init__()
        self.redraw = redraw
        self.orthogonal = orthogonal
        self.draw: Tensor
        self.register_buffer("draw", self._draw(features, dim))

    def forward(self) -> Float[Tensor, "F D"]:
        if self.training and self.redraw == "train":
            features, dim = self.draw.shape
            return self._draw(features, dim, self.draw.device)
        return self.draw

    def _draw(self, features: int, dim: int, device: torch.device | None = None) -> Float[Tensor, "{features} {dim}"]:
        normal = torch.randn(features, dim, device=device)  # (F,D)
        if not self.orthogonal:
            return normal
        num_blocks = math.ceil(features / dim)
        gaussian = torch.randn(num_blocks, dim, dim, device=device)
        q, r = torch.linalg.qr(gaussian)
        # Without the signs of R, Q is not uniform over orthogonal matrices (Mezzadri 2007).
        signs = r.diagonal(dim1=-2, dim2=-1).sign()  # (blocks,D)
        q = q * signs[:, None]
        directions = q.flatten(0, 1)[:features]  # (F,D)
        return normal.norm(dim=-1, keepdim=True) * directions


def causal_sums(
    q: Float[Tensor, "N H L F"],
    k: Float[Tensor, "N H L F"],
    v: Float[Tensor, "N H L E"],
) -> tuple[Float[Tensor, "N H L E"], Float[Tensor, "N H L 1"]]:
    """Compute q_i·Σ_(j<=i) k_j v_jᵀ and q_i·Σ_(j<=i) k_j, in O(L (BLOCK + F E / BLOCK)) memory.

    Args:
        q, k: features.
        v: values.

    Returns:
        Numerator and denominator.
    """
    L = v.shape[2]
    # A column of ones next to the values gives the denominator.
    v = F.pad(v, (0, 1), value=1.0)
    q = split_blocks(q, BLOCK)  # (N,H,B,b,F)
    k = split_blocks(k, BLOCK)  # (N,H,B,b,F)
    v = split_blocks(v, BLOCK)  # (N,H,B,b,E + 1)

    # Pairs of positions inside a block.
    scores = (q @ k.mT).tril()  # (N,H,B,b,b)
    inside = scores @ v  # (N,H,B,b,E + 1)
    # Sums over all earlier blocks.
    states = k.mT @ v  # (N,H,B,F,E + 1)
    earlier_states = states.cumsum(2) - states
    sums = inside + q @ earlier_states
    sums = sums.flatten(2, 3)[:, :, :L]
    return sums[..., :-1], sums[..., -1:]
