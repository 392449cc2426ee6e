"""Variants of ``cur_plus`` (``lra.ops.cells``): cells of keys alone, formed anew, and with heavy keys taken exactly.

O = C v̄ + S e: C = softmax(q k̄ᵀ / √D + log n) over means k̄, v̄ of cells of n keys, e = R v - U v̄ the error of that
in the kept rows, S the smoother of ``lra.ops.cells``. Shapes as in ``cur_variants``.
"""

import torch
from torch import Tensor

from ...ops.cells import bandwidth, boosted, cells, nearest
from ...ops.selection import gather_kept
from .cur_variants import KeptFactors, weights


def over_cells(x: KeptFactors, lloyd: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Compute C (N,H,L,c), U (N,H,r,c) and v̄ (N,H,c,E).

    Args:
        x: kept rows and columns.
        lloyd: number of times that the cells are formed again around their means (Lloyd 1982).
    """
    keys = x.k_cols
    for _ in range(lloyd):
        keys = means(x.k, keys)
    keys, values, sizes = cells(x.k, x.v, keys, None, None)
    bias = sizes.log()[:, :, None]  # -inf for an empty cell
    return weights(x.q, keys, bias), weights(x.q_rows, keys, bias), values


def means(x: Tensor, centres: Tensor) -> Tensor:
    """Take one step of Lloyd's algorithm: the mean of the keys nearest to each centre, or the centre without any."""
    means_, _, sizes = cells(x, x, centres, None, None)
    return torch.where(sizes[..., None] > 0, means_, centres)


def cells_alone(x: KeptFactors) -> Tensor:
    """C v̄ without correction (proportional attention of ToMe: Bolya et al. 2023, equation 1)."""
    C, _, values = over_cells(x)
    return C @ values


def smoothed(x: KeptFactors, lloyd: int = 0) -> Tensor:
    """C v̄ + S e, ``cur_plus`` itself without ``lloyd``."""
    C, U, values = over_cells(x, lloyd)
    return C @ values + kernel(x.q, x.q_rows) @ (x.exact - U @ values)


def heavy_keys(x: KeptFactors, share: float) -> Tensor:
    """``smoothed`` with the heaviest keys of each query taken exactly instead of by their cells.

    These are the ``share`` times c heaviest keys of the nearest kept row (heavy keys: Vyas et al. 2020; with a smooth
    rest: Scatterbrain, Chen et al. 2021). A heavy key adds exp(its own score) less its share of its cell's weight to
    numerator and denominator.

    Args:
        x: kept rows and columns.
        share: share of c.
    """
    owner, own = nearest(x.k, x.k_cols, None).squeeze(-1), nearest(x.q, x.q_rows, None).squeeze(-1)
    keys, values, sizes = cells(x.k, x.v, x.k_cols, None, None)
    heavy = x.R.topk(max(1, round(share * x.cols.shape[2]))).indices  # (N,H,r,t)

    def out(q: Tensor, heavy: Tensor) -> Tensor:  # (N,H,i,D), (N,H,i,t) -> (N,H,i,E)
        k, v = (gather_kept(y, heavy.flatten(2)).unflatten(2, heavy.shape[2:]) for y in (x.k, x.v))  # (N,H,i,t,D)
        cell = owner.gather(2, heavy.flatten(2)).view_as(heavy)
        q = q * q.shape[-1] ** -0.5
        rough, sharp = q @ keys.mT, (q[:, :, :, None] @ k.mT).squeeze(3)
        most = torch.maximum(rough.amax(-1, keepdim=True), sharp.amax(-1, keepdim=True))
        more = (sharp - most).exp() - (rough.gather(3, cell) - most).exp()
        rough = (rough - most).exp() * sizes[:, :, None]
        total = rough.sum(-1, keepdim=True) + more.sum(-1, keepdim=True)
        return (rough @ values + (more[:, :, :, None] @ v).squeeze(3)) / total

    error = x.exact - out(x.q_rows, heavy)
    return out(x.q, gather_kept(heavy, own)) + kernel(x.q, x.q_rows) @ error


def kernel(q: Tensor, q_rows: Tensor) -> Tensor:
    """softmax(-|q - q_rows|² / h) (1 + (1 - T) + (1 - T)² + ...), h and T as in ``lra.ops.cells``."""
    h = bandwidth(q, q_rows, None, None)
    own, all = ((-torch.cdist(x, q_rows).square() / h).softmax(-1) for x in (q_rows, q))
    return all @ boosted(torch.eye(own.shape[-1], dtype=own.dtype), own)
