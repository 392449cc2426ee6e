"""Steps of ``core`` by torch's batched products: combining many parts, and inverses too large for a chip."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from .. import pinv


def combine(
    rv: Float[Tensor, "S G M E"],
    lse: Float[Tensor, "S G M"],
) -> tuple[Float[Tensor, "G M E"], Float[Tensor, "G M"]]:
    """Combine the S parts of R V, and of its base-2 log-sum-exp."""
    # Shift by the maximum; -inf, of a query without real keys, becomes finite to avoid inf - inf.
    top = lse.amax(0)  # (G,M)
    lowest = torch.finfo(top.dtype).min
    shift = top.clamp(min=lowest)
    weight = torch.exp2(lse - shift)  # (S,G,M)
    total = weight.sum(0)
    total = total.masked_fill(total == 0, 1)

    weighted = rv * weight[..., None]  # (S,G,M,E)
    combined = weighted.sum(0) / total[..., None]
    return combined, top + total.log2()


def inner_matrix(
    a: Float[Tensor, "G M D"],
    b: Float[Tensor, "G M D"],
    a_real: UInt8[Tensor, "G M"] | None,
    b_real: UInt8[Tensor, "G M"] | None,
) -> Float[Tensor, "G M M"]:
    """Compute U of the selected queries a and keys b in float32; a_real, b_real: bytes of real ones."""
    scale = a.shape[-1] ** -0.5
    s = (a @ b.mT) * scale  # (G,M,M)
    if b_real is not None:
        is_padding = b_real[:, None] == 0
        s = s.masked_fill(is_padding, float("-inf"))
    u = s.softmax(-1)
    if a_real is None:
        return u
    return u * a_real[..., None]


def backward(
    a: Float[Tensor, "G M D"],
    b: Float[Tensor, "G M D"],
    a_real: UInt8[Tensor, "G M"] | None,
    b_real: UInt8[Tensor, "G M"] | None,
    rv: Float[Tensor, "G M E"],
    dw: Float[Tensor, "G M E"],
    steps: int,
) -> tuple[Float[Tensor, "G M D"], Float[Tensor, "G M D"]]:
    """Compute the gradients of a and b through U, from dw, the gradient of W = cubic(U) (R V)."""
    u = inner_matrix(a, b, a_real, b_real)

    # The steps again, from Z_0 = Uᵀ / s with s the largest column sum.
    column_sums = u.sum(-2)
    s, first = column_sums.max(-1)
    s = s[:, None, None]
    start = u.mT / s  # Z_0
    saved: list[Tensor] = []
    pinv.cubic_chain(u, start, steps, saved)

    # Through W = Z (R V) and the steps: the gradients of U and of Z_0.
    dz = dw @ rv.mT
    du, grad = pinv.cubic_chain_backward(u, saved, dz)

    # Through Z_0, whose gradient G is ``grad``: dU += Gᵀ / s and, in the first largest column, - sum(G * Z_0) / s.
    columns = torch.arange(u.shape[-1], device=u.device)
    is_first = columns == first[:, None]  # (G,M)
    total = (grad * u.mT).sum((-2, -1))  # (G,)
    pull = total / s[:, 0, 0] ** 2
    column_pull = is_first * pull[:, None]  # (G,M)
    du = du + grad.mT / s - column_pull[:, None]

    # Through the softmax: scale dSu. Both products below need the factor.
    scale = a.shape[-1] ** -0.5
    mean = (du * u).sum(-1, keepdim=True)
    centred = du - mean
    ds = u * centred * scale
    return ds @ b, ds.mT @ a
