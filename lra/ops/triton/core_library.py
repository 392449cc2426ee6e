"""``core`` by library matrix products, for matrices that do not fit on chip."""

import torch
from torch import Tensor

from .. import pinv


def combine(rv: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Combine parts (S,G,M,E) with their base-2 log-sum-exp (S,G,M) to (G,M,E), (G,M)."""
    top = lse.amax(0)
    weight = torch.exp2(lse - top.clamp(min=torch.finfo(top.dtype).min))
    total = weight.sum(0)
    total = total.masked_fill(total == 0, 1)
    return (rv * weight[..., None]).sum(0) / total[..., None], top + total.log2()


def inner_matrix(a: Tensor, b: Tensor, a_real: Tensor | None, b_real: Tensor | None) -> Tensor:
    """Compute U of the selected queries a and keys b (G,M,D) in float32; a_real, b_real (G,M)."""
    s = a @ b.mT * a.shape[-1] ** -0.5
    if b_real is not None:
        s = s.masked_fill(b_real[:, None] == 0, float("-inf"))
    u = s.softmax(-1)
    return u if a_real is None else u * a_real[..., None]


def backward(a, b, a_real, b_real, rv: Tensor, dw: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Compute the parts of the gradients of a and b (G,M,D) that come from U."""
    u = inner_matrix(a, b, a_real, b_real)
    s, first = u.sum(-2).max(-1)
    s = s[:, None, None]
    saved = []
    pinv.cubic_chain(u, u.mT / s, steps, saved)
    du, grad = pinv.cubic_chain_backward(u, saved, dw @ rv.mT)
    column = torch.arange(u.shape[-1], device=u.device) == first[:, None]
    pull = (grad * u.mT).sum((-2, -1)) / s[:, 0, 0] ** 2
    du = du + grad.mT / s - (column * pull[:, None])[:, None]
    ds = u * (du - (du * u).sum(-1, keepdim=True)) * a.shape[-1] ** -0.5
    return ds @ b, ds.mT @ a
