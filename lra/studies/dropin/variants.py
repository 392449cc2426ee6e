"""Variants of CUR and of ``cur_plus``: rules that choose rows and columns of an attention map, and their combinations.

``cur_plus`` (``lra.ops.cluster_attention``) is O = C v̄ + S e: C = softmax(q k̄ᵀ / √D + log n) over means k̄, v̄ of
clusters of n keys, e = R v - U v̄ the error of C v̄ in the kept rows, S a smoother. Shapes: q, k (N,H,L,D), v (N,H,L,E).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from ...ops import selection
from ...ops.cluster_attention import bandwidth, boosted, form_clusters, nearest
from ...ops.cur import CUROptions
from ...ops.pinv import exact
from ...ops.selection import gather_tokens

Inverse = Callable[[Tensor], Tensor]  # (N,H,r,c) -> (N,H,c,r)
Choice = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]  # q, k, v, count -> rows, columns


def weights(q: Tensor, k: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """softmax(q kᵀ / √D + bias), q (N,H,i,D), k (N,H,j,D) -> (N,H,i,j)."""
    return (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1)


@dataclass(frozen=True)
class KeptFactors:
    """Kept rows (N,H,r) of queries and cols (N,H,c) of keys, int64, and their factors, each computed if it is used."""

    q: Tensor
    k: Tensor
    v: Tensor
    rows: Tensor
    cols: Tensor

    q_rows = cached_property(lambda x: gather_tokens(x.q, x.rows))
    k_cols = cached_property(lambda x: gather_tokens(x.k, x.cols))
    C = cached_property(lambda x: weights(x.q, x.k_cols))
    U = cached_property(lambda x: weights(x.q_rows, x.k_cols))
    R = cached_property(lambda x: weights(x.q_rows, x.k))
    exact = cached_property(lambda x: x.R @ x.v)  # the kept rows of the output (N,H,r,E)


def product(x: KeptFactors, inverse: Inverse) -> Tensor:
    """C Z R v with Z = inverse(U), CUR itself (Francois et al. 2025, equation of section 3)."""
    return x.C @ (inverse(x.U) @ x.exact)


def missing_mass(x: KeptFactors, inverse: Inverse) -> Tensor:
    """C Z R v + (1 - C Z 1) v̄: the missing mass of the rows of C Z R goes to the mean value v̄.

    That is CUR of v - v̄, which is exact for constant values (a control variate, as in Zheng et al. 2023, "Efficient
    attention via control variates").
    """
    z, mean = inverse(x.U), x.v.mean(2, keepdim=True)
    return x.C @ (z @ (x.exact - mean)) + mean


def row_sums(x: KeptFactors, inverse: Inverse) -> Tensor:
    """C Z R v / (C Z 1): rows divided by their sums, as Performer does (Choromanski et al. 2021, equation 4)."""
    z = inverse(x.U)
    return x.C @ (z @ x.exact) / (x.C @ z.sum(-1, keepdim=True))


def least_squares(x: KeptFactors) -> Tensor:
    """C M R v with M = C⁺ A R⁺, which minimises |A - C M R| (Stewart 1999; Boutsidis and Woodruff 2014).

    It needs the whole of A. Up to rounding, which rtol removes, C and R have rank below c.
    """
    inverse = partial(exact, rtol=1e-6)
    right = inverse(x.R.double()) @ x.exact.double()  # R⁺ R v
    return (x.C.double() @ (inverse(x.C.double()) @ (weights(x.q, x.k).double() @ right))).to(x.v.dtype)


def smoothed(x: KeptFactors, lloyd: int = 0, corrected: bool = True) -> Tensor:
    """C v̄ + S e, ``cur_plus`` itself by default.

    Args:
        x: kept rows and columns.
        lloyd: number of times that the cells are formed again around their means (Lloyd 1982).
        corrected: False leaves out S e (proportional attention of ToMe: Bolya et al. 2023, equation 1).
    """
    keys = x.k_cols
    for _ in range(lloyd):
        keys = means(x.k, keys)
    keys, values, sizes = form_clusters(x.k, x.v, keys, None, None)
    bias = sizes.log()[:, :, None]  # -inf for an empty cell
    out = weights(x.q, keys, bias) @ values
    if corrected:
        out = out + kernel(x.q, x.q_rows) @ (x.exact - weights(x.q_rows, keys, bias) @ values)
    return out


def heavy_keys(x: KeptFactors, share: float) -> Tensor:
    """``smoothed`` with the heaviest keys of each query taken exactly instead of by their cells.

    These are the ``share`` times c heaviest keys of the nearest kept row (heavy keys: Vyas et al. 2020; with a smooth
    rest: Scatterbrain, Chen et al. 2021). A heavy key adds exp(its own score) less its share of its cell's weight to
    numerator and denominator.
    """
    owner, own = nearest(x.k, x.k_cols, None).squeeze(-1), nearest(x.q, x.q_rows, None).squeeze(-1)
    keys, values, sizes = form_clusters(x.k, x.v, x.k_cols, None, None)
    heavy = x.R.topk(max(1, round(share * x.cols.shape[2]))).indices  # (N,H,r,t)

    def out(q: Tensor, heavy: Tensor) -> Tensor:  # (N,H,i,D), (N,H,i,t) -> (N,H,i,E)
        k, v = (gather_tokens(y, heavy.flatten(2)).unflatten(2, heavy.shape[2:]) for y in (x.k, x.v))  # (N,H,i,t,D)
        cell = owner.gather(2, heavy.flatten(2)).view_as(heavy)
        q = q * q.shape[-1] ** -0.5
        rough, sharp = q @ keys.mT, (q[:, :, :, None] @ k.mT).squeeze(3)
        most = torch.maximum(rough.amax(-1, keepdim=True), sharp.amax(-1, keepdim=True))
        more = (sharp - most).exp() - (rough.gather(3, cell) - most).exp()
        rough = (rough - most).exp() * sizes[:, :, None]
        total = rough.sum(-1, keepdim=True) + more.sum(-1, keepdim=True)
        return (rough @ values + (more[:, :, :, None] @ v).squeeze(3)) / total

    error = x.exact - out(x.q_rows, heavy)
    return out(x.q, gather_tokens(heavy, own)) + kernel(x.q, x.q_rows) @ error


def means(x: Tensor, centres: Tensor) -> Tensor:
    """Take one step of Lloyd's algorithm: the mean of the keys nearest to each centre, or the centre without any."""
    means_, _, sizes = form_clusters(x, x, centres, None, None)
    return torch.where(sizes[..., None] > 0, means_, centres)


def kernel(q: Tensor, q_rows: Tensor) -> Tensor:
    """softmax(-|q - q_rows|² / h) (1 + (1 - T) + (1 - T)² + ...), h and T as in ``lra.ops.cluster_attention``."""
    h = bandwidth(q, q_rows, None, None)
    own, all = ((-torch.cdist(x, q_rows).square() / h).softmax(-1) for x in (q_rows, q))
    return all @ boosted(torch.eye(own.shape[-1], dtype=own.dtype), own)


def select(score: str) -> Choice:
    """Make a rule of ``lra.ops.selection``, applied to queries for rows and to keys for columns."""
    return lambda q, k, v, count: selection.select(q, k, CUROptions(count=count, score=score))


def alike(one: Callable[[Tensor, int], Tensor]) -> Choice:
    """Apply one rule to queries and to keys."""
    return lambda q, k, v, count: (one(q, count), one(k, count))


def kmeans_pp(x: Tensor, count: int) -> Tensor:
    """Draw the seeds of k-means++, each in proportion to its squared distance from the earlier ones.

    Source: Arthur and Vassilvitskii 2007, section 2.2.
    """
    N, H, L, _ = x.shape
    at = torch.randint(L, (N, H, 1))
    apart, seeds = torch.full((N, H, L), float("inf")), [at]
    for _ in range(count - 1):
        apart = torch.minimum(apart, (x - gather_tokens(x, at)).square().sum(-1))
        # If only repeated rows are left, any of them is drawn.
        chance = (apart + apart.amax(-1, keepdim=True).clamp(min=1) * 1e-9).scatter(-1, torch.cat(seeds, -1), 0)
        at = torch.multinomial(chance.flatten(0, 1), 1).view(N, H, 1)
        seeds.append(at)
    return torch.cat(seeds, -1)


def leverage(x: Tensor, count: int, ridge: float = 1e-3) -> Tensor:
    """The largest ridge leverage scores xᵢᵀ (xᵀx + λ I)⁻¹ xᵢ, λ = ridge times the mean squared column.

    CUR's scores (Mahoney and Drineas 2009, equation 3), taken from the top (Papailiopoulos et al. 2014).
    """
    gram = x.mT @ x
    scale = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    gram = gram + ridge * scale * torch.eye(x.shape[-1], dtype=x.dtype)
    return (torch.linalg.solve(gram, x.mT).mT * x).sum(-1).topk(count).indices


def received(q: Tensor, k: Tensor, v: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Rows at equal distances; columns to which those rows pay the most attention (H2O: Zhang et al. 2023)."""
    rows, _ = select("step")(q, k, v, count)
    return rows, weights(gather_tokens(q, rows), k).sum(2).topk(count).indices
