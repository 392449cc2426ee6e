"""Kernel feature attention, phi(q) (phi(k)ᵀ v) with F features: linear, Performer, random feature attention."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.blocks import blocks
from ..ops.kernel_features import attend, zero_padding
from ..ops.precision import at_least_float32, full_precision
from ..options import Above, Positive
from .base import Attention, Sizes

Kernel = Literal["exp", "relu"]
Redraw = Literal["train", "never"]
Scalings = Literal[1, 2]
BLOCK = 64  # positions of which causal sums are made pair by pair


class Linear(Attention):
    """phi(x) = elu(x) + 1 (Katharopoulos et al., ICML 2020, equation 7).

    normalise: divide by phi(q)·sum phi(k); false is the PyTorch LRA code, which has no denominator and divides phi(q)
    and phi(k) by length^¼ each. There it is the length of the padded row, here the configured one: the same if rows
    are padded to it, and no part of the result if they are not. causal: sums over the keys up to the query.
    """

    hole_free = True

    def __init__(self, sizes: Sizes, *, normalise: bool = True, causal: bool = False):
        super().__init__(sizes)
        self.normalise, self.causal = normalise, causal

    @full_precision
    def forward(self, q, k, v, mask=None):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if self.causal:
            total, weight = causal_sums(q, zero_padding(k, mask), v)
            return total / weight.clamp(min=1e-6) if self.normalise else total * self.sizes.length**-0.5
        if self.normalise:
            return attend(q, k, v, mask)
        return q @ (zero_padding(k, mask).mT @ v) * self.sizes.length**-0.5


class Performer(Attention):
    """FAVOR+ (Choromanski et al., ICLR 2021): positive features of x = q / D^¼ and k / D^¼ with orthogonal rows w.

    kernel: ``exp``: exp(w·x - |x|²/2 - c) + eps, an estimate of softmax attention (lemma 1) that many features and
    eps = 0 make exact; ``relu``: relu(w·x) + 0.001, the generalised attention of the official default. The stabiliser
    c is, as released, the largest w·x of a query, or of the real keys of an example and head; with eps = 0 it cancels.
    scalings: how often D^¼ divides; the PyTorch LRA code does it 2 times, which makes the logits q·k / D.
    redraw: ``train`` draws w anew at every call while training, ``never`` keeps the draw that evaluation uses.

    O(L F (D + E)) time.
    """

    hole_free = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        features: Positive = 256,
        kernel: Kernel = "exp",
        eps: float = 1e-4,
        scalings: Scalings = 1,
        redraw: Redraw = "train",
    ):
        super().__init__(sizes)
        self.kernel, self.eps, self.scale = kernel, eps, sizes.head_dim ** (-0.25 * scalings)
        self.rows = RandomFeatures(features, sizes.head_dim, redraw=redraw, orthogonal=True)

    @full_precision
    def forward(self, q, k, v, mask=None):
        q, k, tiny = q * self.scale, k * self.scale, torch.finfo(q.dtype).tiny  # positive features need no floor
        w = self.rows().to(q.dtype).mT  # (D,F)
        if self.kernel == "relu":
            return attend(F.relu(q @ w) + 0.001, F.relu(k @ w) + 0.001, v, mask, floor=tiny)
        q_rows, k_rows = q @ w, k @ w  # (N,H,L,F)
        if mask is not None:
            k_rows = k_rows.masked_fill(~mask[:, None, :, None], torch.finfo(k.dtype).min)
        q = q_rows - q_rows.amax(-1, keepdim=True) - q.square().sum(-1, keepdim=True) / 2
        k = k_rows - k_rows.amax((-2, -1), keepdim=True) - k.square().sum(-1, keepdim=True) / 2
        return attend(q.exp() + self.eps, k.exp() + self.eps, v, mask, floor=tiny)


class RFA(Attention):
    """Random feature attention (Peng et al., ICLR 2021, section 3.1): phi(x) = [sin(w·x), cos(w·x)], |q| = |k| = 1.

    w = scale * Gaussian with a learned scale (H,D). On the unit sphere the Gaussian kernel that phi estimates is
    exp(scale² q·k) up to a constant, so that many features give softmax(scale² q·k) attention. Estimates can be
    negative: the denominator, the mean kernel over the keys, is kept at or above ``floor``. features: rows w; phi has
    twice as many entries. redraw: as in Performer. The gate of section 3.2 is causal and is left out.

    O(L F (D + E)) time.
    """

    hole_free = True

    def __init__(self, sizes: Sizes, *, features: Positive = 128, floor: Above = 0.01, redraw: Redraw = "train"):
        super().__init__(sizes)
        self.floor = floor
        self.rows = RandomFeatures(features, sizes.head_dim, redraw=redraw, orthogonal=False)
        self.scale = nn.Parameter(torch.ones(sizes.heads, sizes.head_dim))

    @full_precision
    def forward(self, q, k, v, mask=None):
        w = (self.rows().to(q.dtype) * at_least_float32(self.scale)[:, None]).mT  # (H,D,F)
        q, k = (F.normalize(x, dim=-1) @ w for x in (q, k))
        q, k = (torch.cat([x.sin(), x.cos()], -1) * x.shape[-1] ** -0.5 for x in (q, k))  # (N,H,L,2F)
        return attend(q, k, v, mask, floor=self.floor)


class RandomFeatures(nn.Module):
    """Random rows (F,D): standard normal, or orthogonal in blocks of D with the lengths of normal ones.

    One draw, a buffer, serves evaluation; ``redraw``: ``train`` draws anew at every call while training, ``never`` not.
    """

    def __init__(self, features: int, dim: int, *, redraw: Redraw, orthogonal: bool):
        super().__init__()
        self.redraw, self.orthogonal = redraw, orthogonal
        self.register_buffer("draw", self._draw(features, dim))

    def forward(self) -> Tensor:
        if self.training and self.redraw == "train":
            return self._draw(*self.draw.shape, device=self.draw.device)
        return self.draw

    def _draw(self, features: int, dim: int, device=None) -> Tensor:
        normal = torch.randn(features, dim, device=device)
        if not self.orthogonal:
            return normal
        q, r = torch.linalg.qr(torch.randn(-(-features // dim), dim, dim, device=device))
        q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # without the signs q is not uniform over rotations
        return normal.norm(dim=-1, keepdim=True) * q.flatten(0, 1)[:features]


def causal_sums(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute q_i·Σ_(j<=i) k_j v_jᵀ and q_i·Σ_(j<=i) k_j.

    By pairs within blocks of ``BLOCK``, by sums of whole blocks between them: memory O(L (BLOCK + F E / BLOCK)).

    Args:
        q, k: features, (N,H,L,F).
        v: (N,H,L,E).

    Returns:
        (N,H,L,E) and (N,H,L,1).
    """
    L, v = v.shape[2], torch.cat([v, torch.ones_like(v[..., :1])], -1)
    q, k, v = (blocks(t, BLOCK) for t in (q, k, v))  # (N,H,B,b,.)
    states = k.mT @ v
    before = states.cumsum(2) - states  # of the blocks before, (N,H,B,F,E + 1)
    sums = ((q @ k.mT).tril() @ v + q @ before).flatten(2, 3)[:, :, :L]
    return sums[..., :-1], sums[..., -1:]
