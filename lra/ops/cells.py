"""Attention over cells of keys, corrected by exact rows: the replacement of CUR's inverse in ``cur_plus``.

Shapes as in ``lra.attention.base``. With k̄, v̄, n the means and sizes of the cells of kept keys, and e = R v - U v̄
the error of C v̄ in the kept rows, whose exact output is R v,

    O = C v̄ + S g      C = softmax(q k̄ᵀ / √D + log n)      U = its kept rows      S = softmax(-|q - q_rows|² / h)

C is the proportional attention of merged tokens (ToMe: Bolya et al. 2023), S the kernel regression of Nadaraya and
Watson (1964) over queries. S e would flatten e; with T the kept rows of S, g = e + (1 - T) e + (1 - T)² e + ... smooths
the remainder as well (twicing: Tukey 1977; L2 boosting: Bühlmann and Yu 2003). The eigenvalues of T lie in [0, 1], so
the sum converges. Rows of C and S sum to one, so the result is exact for a constant v, and keeping every row and column
is exact attention, without an inverse.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .precision import full_precision, to_unit
from .scores import allowed, attend_written_out, weigh

Impl = Literal["eager", "sdpa"]
ROUNDS = 5  # of smoothing; more have hardly any effect


@full_precision
def cells(k: Tensor, v: Tensor, k_cols: Tensor, mask: Tensor | None, col_mask: Tensor | None):
    """Form a cell around each kept key of the real keys nearest to it.

    The assignment has no gradient.

    Args:
        k: (N,H,L,D).
        v: (N,H,L,E).
        k_cols: kept keys (N,H,c,D).
        mask: (N,L).
        col_mask: real kept keys (N,H,c); a padded one has a cell of size 0.

    Returns:
        Mean keys (N,H,c,D), mean values (N,H,c,E) and sizes (N,H,c), in float32 or wider.
    """
    N, H, c = k_cols.shape[:3]
    heads = torch.arange(N * H, device=k.device).view(N, H, 1, 1)
    joined = (nearest(k, k_cols, col_mask) + c * heads).flatten()  # (N·H·L,)

    def total(x: Tensor) -> Tensor:
        x = x if mask is None else x * mask[:, None, :, None]
        sums = x.new_zeros(N * H * c, x.shape[-1]).index_add(0, joined, x.flatten(0, 2))
        return sums.view(N, H, c, x.shape[-1])

    sizes = total(torch.ones_like(k[..., :1]))  # (N,H,c,1)
    some = sizes.clamp(min=1)
    return total(k) / some, total(v) / some, sizes.squeeze(-1)


@torch.no_grad()
def nearest(x: Tensor, centres: Tensor, real: Tensor | None) -> Tensor:
    """Find the nearest real centre: x (N,H,L,D), centres (N,H,c,D), real (N,H,c) -> index int64 (N,H,L,1)."""
    N, H = x.shape[:2]
    unit = to_unit(x)
    x, centres = x * unit, centres * unit
    squared = centres.square().sum(-1)
    if real is not None:
        squared = squared.masked_fill(~real, float("inf"))
    x, centres, squared = (each.flatten(0, 1) for each in (x, centres, squared))
    apart = torch.baddbmm(squared[:, None], x, centres.mT, alpha=-2)  # |x|² is the same for all centres
    return apart.argmin(-1, keepdim=True).unflatten(0, (N, H))


def corrected(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_rows: Tensor,
    k_cols: Tensor,
    *,
    mask: Tensor | None = None,
    row_mask: Tensor | None = None,
    col_mask: Tensor | None = None,
    impl: Impl = "sdpa",
) -> tuple[Tensor, Tensor]:
    """Compute C v̄ + S g and R v in O(L c (D + E)) time.

    h is the mean squared distance from a real query to the nearest kept one.

    Args:
        q, k, v, q_rows, k_cols, mask, row_mask, col_mask: see ``lra.ops.three_factor.three_factor``.
        impl: ``eager`` writes every factor out in float32; ``sdpa`` computes the products by torch's fused attention
            and returns v's dtype.

    Returns:
        (N,H,L,E) and (N,H,c,E).
    """
    keys, values, sizes = cells(k, v, k_cols, mask, col_mask)
    bias = sizes.log()[:, :, None]  # (N,H,1,c), -inf for an empty cell
    factor = q.shape[-1] ** -0.5
    rv = _attend(q_rows, k, v, factor, None if mask is None else mask[:, None], None, impl)
    out = _attend(q, keys, values, factor, None, bias, impl)
    correction = _correction(q, q_rows, rv, keys, values, bias, mask, row_mask, torch.finfo(rv.dtype).eps, impl)
    return (out + correction).to(rv.dtype), rv


@full_precision
def _correction(q, q_rows, exact, keys, values, bias, mask, row_mask, eps: float, impl: Impl) -> Tensor:
    """Compute S g (N,H,L,E); ``eps`` is the rounding of ``exact``, R v, in the dtype in which it was computed."""
    error = exact - attend_written_out(q_rows, keys, values, None, bias, factor=q.shape[-1] ** -0.5)
    if row_mask is not None:
        error = error * row_mask[..., None]
    unit = to_unit(q)
    q, q_rows = q * unit, q_rows * unit  # S is the same for any multiple of the queries
    h = bandwidth(q, q_rows, mask, row_mask).maximum(_alike(keys, unit, eps))
    near = -q_rows.square().sum(-1)[:, :, None] / h  # (N,H,1,c): |q|² is the same for all of a row
    g = boosted(error, weigh(q_rows * (2 / h) @ q_rows.mT, row_mask, "softmax", near))
    return _attend(q * (2 / h), q_rows, g, 1.0, row_mask, near, impl)


def boosted(error: Tensor, own: Tensor) -> Tensor:
    """Compute e + (1 - T) e + ... + (1 - T)^(ROUNDS - 1) e.

    Args:
        error: e (N,H,c,E).
        own: T (N,H,c,c), without weight on padded rows.
    """
    left = total = error
    for _ in range(ROUNDS - 1):
        left = left - own @ left
        total = total + left
    return total


def bandwidth(q: Tensor, q_rows: Tensor, mask: Tensor | None, row_mask: Tensor | None) -> Tensor:
    """Compute the mean squared distance from a real query to the nearest kept one, bounded by rounding: (N,H,1,1)."""
    own = q_rows.gather(2, nearest(q, q_rows, row_mask).expand(-1, -1, -1, q.shape[-1]))
    apart = (q - own).square().sum(-1)  # (N,H,L)
    real = None if mask is None else mask[:, None]
    mean = lambda x: x.mean(-1) if real is None else (x * real).sum(-1) / real.sum(-1).clamp(min=1)
    size = mean(q.detach().square().sum(-1))
    limits = torch.finfo(q.dtype)
    return mean(apart).maximum(size * limits.eps).clamp(min=limits.tiny)[..., None, None]


def _alike(keys: Tensor, unit: Tensor, eps: float) -> Tensor:
    """Compute eps D / max |k|², a squared distance at which scores of two queries differ by √eps at most: (N,H,1,1).

    A smaller bandwidth would amplify the rounding of the errors in the gradient. ``unit`` is the queries' factor.
    """
    limits = torch.finfo(keys.dtype)
    own = to_unit(keys)
    longest = (keys.detach() * own).square().sum(-1).amax(-1)[..., None, None].clamp(min=limits.tiny)
    return (own * unit * (eps * keys.shape[-1] / longest).sqrt()).square().clamp(limits.tiny, limits.max)


def _attend(q, k, v, factor: float, keys: Tensor | None, bias: Tensor | None, impl: Impl) -> Tensor:
    """Compute softmax(factor q kᵀ + bias) v, with real keys (N,H,j) or broadcastable and bias (N,H,1,j)."""
    if impl == "eager":
        return attend_written_out(q, k, v, keys, bias, factor=factor)
    bias = None if bias is None else bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), allowed(keys, bias), scale=factor)
