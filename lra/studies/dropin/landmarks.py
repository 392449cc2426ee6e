"""Rules to choose rows and columns: q, k (N,H,L,D), v (N,H,L,E), count -> rows, cols, int64 (N,H,count).

Every token is real. The rules of ``lra.ops.selection`` are CUR's options; those of this file are candidates only.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...ops import selection
from ...ops.cur_naive import CUROptions
from ...ops.selection import gather_kept
from .cur_variants import weights

Choice = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]


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
        apart = torch.minimum(apart, (x - gather_kept(x, at)).square().sum(-1))
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
    return rows, weights(gather_kept(q, rows), k).sum(2).topk(count).indices
