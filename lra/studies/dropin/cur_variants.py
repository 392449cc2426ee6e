"""Kept rows and columns of an attention map: rules that choose them, and CUR's ways to combine them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from ...ops import selection
from ...ops.cur_naive import CUROptions
from ...ops.pinv import exact
from ...ops.selection import gather_kept

Inverse = Callable[[Tensor], Tensor]  # (N,H,r,c) -> (N,H,c,r)


def weights(q: Tensor, k: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """softmax(q kᵀ / √D + bias), q (N,H,i,D), k (N,H,j,D) -> (N,H,i,j)."""
    return (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1)


@dataclass(frozen=True)
class KeptFactors:
    """Kept rows and columns: q, k (N,H,L,D), v (N,H,L,E), rows (N,H,r) of queries and cols (N,H,c) of keys, int64."""

    q: Tensor
    k: Tensor
    v: Tensor
    rows: Tensor
    cols: Tensor

    @cached_property
    def q_rows(self) -> Tensor:
        return gather_kept(self.q, self.rows)

    @cached_property
    def k_cols(self) -> Tensor:
        return gather_kept(self.k, self.cols)

    @cached_property
    def C(self) -> Tensor:
        return weights(self.q, self.k_cols)

    @cached_property
    def U(self) -> Tensor:
        return weights(self.q_rows, self.k_cols)

    @cached_property
    def R(self) -> Tensor:
        return weights(self.q_rows, self.k)

    @cached_property
    def exact(self) -> Tensor:
        """R v, the kept rows of the output (N,H,r,E)."""
        return self.R @ self.v

    def copied(self, out: Tensor) -> Tensor:
        """Replace the kept rows of the output (N,H,L,E) by the exact ones."""
        return out.scatter(2, self.rows[..., None].expand_as(self.exact), self.exact)


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
