"""``core`` by library matrix products, for matrices that do not fit on chip."""

import torch
from torch import Tensor

from .. import pinv


def combine(rv: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Combine parts (S,G,M,E) with their base-2 log-sum-exp (S,G,M) to (G,M,E), (G,M)."""
    # Shift by the maximum; -inf, of a query without real keys, becomes finite to avoid inf - inf.
    top = lse.amax(0)  # (G,M)
    lowest = torch.finfo(top.dtype).min
    weight = torch.exp2(lse - top.clamp(min=lowest))  # (S,G,M)
    total = weight.sum(0)
    total = total.masked_fill(total == 0, 1)

    weighted = rv * weight[..., None]  # (S,G,M,E)
    combined = weighted.sum(0) / total[..., None]
    return combined, top + total.log2()


def inner_matrix(a: Tensor, b: Tensor, a_real: Tensor | None, b_real: Tensor | None) -> Tensor:
    """Compute U of the selected queries a and keys b (G,M,D) in float32; a_real, b_real (G,M)."""
    scale = a.shape[-1] ** -0.5
    s = a @ b.mT * scale  # (G,M,M)
    if b_real is not None:
        s = s.masked_fill(b_real[:, None] == 0, float("-inf"))
    u = s.softmax(-1)
    if a_real is None:
        return u
    return u * a_real[..., None]


def backward(a, b, a_real, b_real, rv: Tensor, dw: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Compute the parts of the gradients of a and b (G,M,D) that come from U."""
    u = inner_matrix(a, b, a_real, b_real)

    # The steps again, from Z_0 = Uᵀ / s with s the largest column sum.
    column_sums = u.sum(-2)
    s, first = column_sums.max(-1)
    s = s[:, None, None]
    saved = []
    pinv.cubic_chain(u, u.mT / s, steps, saved)

    # Through W = Z (R V) and the steps: the gradients of U and of Z_0.
    dz = dw @ rv.mT
    du, grad = pinv.cubic_chain_backward(u, saved, dz)

    # Through Z_0: dU += Gᵀ / s and, in the first largest column, - sum(G * Z_0) / s.
    is_first = torch.arange(u.shape[-1], device=u.device) == first[:, None]  # (G,M)
    pull = (grad * u.mT).sum((-2, -1)) / s[:, 0, 0] ** 2
    du = du + grad.mT / s - (is_first * pull[:, None])[:, None]

    # Through the softmax: the gradient of the scores.
    scale = a.shape[-1] ** -0.5
    centred = du - (du * u).sum(-1, keepdim=True)
    ds = u * centred * scale
    return ds @ b, ds.mT @ a
